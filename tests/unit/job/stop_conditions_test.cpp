#include "trireme/job/stop_conditions.hpp"

#include <gtest/gtest.h>

#include <string>

namespace trireme::job {
namespace {

TEST(StopConditions, TheFirstThatHasAReasonCountsAndNoneBehindItIsAsked) {
  StopConditions conditions;
  EXPECT_EQ(conditions.ask(), StopReason::none) << "nothing can stop it";
  StopReason first = StopReason::none, second = StopReason::none;
  std::string asked;
  conditions.add([&] { return asked += '1', first; });
  conditions.add([&] { return asked += '2', second; });
  EXPECT_EQ(conditions.ask(), StopReason::none);
  EXPECT_EQ(asked, "12");
  second = StopReason::stop_file;
  EXPECT_EQ(conditions.ask(), StopReason::stop_file);
  first = StopReason::save_and_go_on;
  asked.clear();
  EXPECT_EQ(conditions.ask(), StopReason::save_and_go_on)
      << "the order says what is urgent, not the reason";
  EXPECT_EQ(asked, "1");
}

}  // namespace
}  // namespace trireme::job
