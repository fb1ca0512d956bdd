#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "trireme/base/progress.hpp"
#include "trireme/trace/activity.hpp"
#include "trireme/trace/guards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::trace {
namespace {

using testing::HasSubstr;

TEST(Standing, AFileAtWorkIsNoWaitForRanks) {
  const Region region{"exchange", no_argument, Category::communication};
  EXPECT_TRUE(standing().waiting);
  EXPECT_FALSE(standing().io);
  const base::FileWork work{"write", "/run/samples.jsonl"};
  EXPECT_FALSE(standing().waiting);
  EXPECT_TRUE(standing().io);
  EXPECT_EQ(standing().call, "write of /run/samples.jsonl");
  EXPECT_EQ(standing().where, "exchange");
}

TEST(Standing, OfTheThreadThatIsWaitedFor) {
  std::promise<int> begun;
  std::promise<void> in_file;
  std::promise<void> look;
  std::promise<void> leave;
  std::thread writer([&] {
    const Region region{"checkpoint write", 7, Category::io};
    {
      const Collective collective{"all_reduce", "checkpoint", 8};
      begun.set_value(this_thread());
      look.get_future().wait();
    }
    const base::FileWork work{"sync", "/run/data.h5"};
    in_file.set_value();
    leave.get_future().wait();
  });
  const int thread = begun.get_future().get();
  const Region region{"checkpoint", 7};
  EXPECT_EQ(standing().where, "checkpoint 7") << "nobody waits for it";
  EXPECT_EQ(standing().call, "");
  {
    const WaitForThread waiting{thread};
    EXPECT_EQ(standing().where, "checkpoint 7 > checkpoint write 7");
    EXPECT_TRUE(standing().waiting);
    EXPECT_THAT(standing().call, HasSubstr("all_reduce of 8 B on checkpoint"));
    look.set_value();
    in_file.get_future().wait();
    EXPECT_FALSE(standing().waiting);
    EXPECT_TRUE(standing().io);
    EXPECT_EQ(standing().call, "sync of /run/data.h5");
  }
  EXPECT_EQ(standing().where, "checkpoint 7");
  leave.set_value();
  writer.join();
}

TEST(Standing, CollectivesOfOtherThreadsAreProgress) {
  const uint64_t before = activity();
  std::thread([] { const Collective collective{"barrier", "checkpoint", 0}; }).join();
  EXPECT_GT(activity(), before);
}

TEST(Guards, TheOutermostCounts) {
  const auto before = guard_seconds();
  add_guard_seconds(Guard::liveness, 0.25);
  {
    const Guarding outer{Guard::replicas};
    const Guarding inner{Guard::collectives};
  }
  auto after = guard_seconds();
  EXPECT_NEAR(after.at("liveness") - before.at("liveness"), 0.25, 1e-9);
  EXPECT_GT(after.at("replicas"), before.at("replicas"));
  EXPECT_NEAR(after.at("collectives"), before.at("collectives"), 1e-12);
}

}  // namespace
}  // namespace trireme::trace
