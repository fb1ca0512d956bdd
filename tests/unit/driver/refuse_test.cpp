#include <gtest/gtest.h>

#include "driver/refuse.hpp"
#include "trireme/base/error.hpp"

namespace trireme::driver {
namespace {

TEST(Refuse, NamesEveryKeyAtOnce) {
  config::Options options;
  EXPECT_NO_THROW(refuse_unbuilt(options, config::Command::ppo));
  options.train.optimizer_offload = true;
  options.train.async_depth = 1;
  options.algo.dynamic_filtering_enable = true;
  options.fault.kill_at = "0:1";
  options.run.mismatch_check = 8;
  try {
    refuse_unbuilt(options, config::Command::ppo);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::configuration);
    const std::string text = error.what();
    for (const char* key : {"train.optimizer_offload", "train.async_depth", "[fault]", "run.mismatch_check"}) {
      EXPECT_NE(text.find(key), std::string::npos) << key;
    }
  }
}

}  // namespace
}  // namespace trireme::driver
