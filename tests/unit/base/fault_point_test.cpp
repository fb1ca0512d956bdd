#include "trireme/base/fault_point.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <new>
#include <string>
#include <thread>

#include "trireme/base/error.hpp"
#include "trireme/base/fault_gates.hpp"
#include "trireme/base/stopwatch.hpp"

namespace trireme::base {
namespace {

class FaultPoint : public testing::Test {
 protected:
  void TearDown() override { install_faults({}); }
};

TEST_F(FaultPoint, StrikesAtItsPlaceInItsPass) {
  install_faults({{"alloc_fail", "train", 2, 0}, {"io_fail", "checkpoint read", 1, 5}});
  EXPECT_NO_THROW(fault_point("rollout"));
  EXPECT_NO_THROW(fault_point("train"));
  EXPECT_THROW(fault_point("train"), std::bad_alloc);
  EXPECT_NO_THROW(fault_point("train"));
  try {
    fault_point("checkpoint read");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::io_error);
    EXPECT_NE(std::string(error.what()).find("checkpoint read"), std::string::npos);
  }
}

TEST_F(FaultPoint, EveryPass) {
  install_faults({{"delay", "reward", 0, 30}});
  const Stopwatch watch;
  for (int i = 0; i < 3; ++i) fault_point("reward");
  EXPECT_GE(watch.seconds(), 0.09);
}

TEST_F(FaultPoint, NumbersAreCountedApart) {
  install_faults({{"nan", "loss", 2, 0}, {"kill", "loss", 1, 0}});
  EXPECT_FALSE(nan_wanted("loss"));
  EXPECT_TRUE(nan_wanted("loss"));
  EXPECT_FALSE(nan_wanted("loss"));
  EXPECT_FALSE(nan_wanted("grad"));
}

TEST_F(FaultPoint, OneCollectiveIsLeftOut) {
  install_faults({{"skip", "train", 2, 0}});
  fault_point("train");
  EXPECT_FALSE(skip_wanted());
  fault_point("train");
  EXPECT_TRUE(skip_wanted());
  EXPECT_FALSE(skip_wanted());
}

// The other end of a gate is another process as a rule; here it is another thread.
TEST_F(FaultPoint, AGateHoldsUntilItIsOpened) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trireme-gates-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  set_gate_folder(folder);
  install_faults({{"gate", "train", 2, 1}, {"open", "rollout", 1, 1}, {"gate", "sync", 1, 1}});
  fault_point("train");  // not this pass
  std::atomic<bool> opened{false}, passed_in_time{false};
  std::thread waiter([&] {
    fault_point("train");
    passed_in_time = opened.load();
  });
  opened = true;
  fault_point("rollout");
  waiter.join();
  fault_point("sync");  // it stays open
  EXPECT_TRUE(passed_in_time);
  EXPECT_TRUE(std::filesystem::exists(folder / ".gate-1"));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(open_gate(2), UserError);
  set_gate_folder(".");
}

TEST_F(FaultPoint, EndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT((install_faults({{"kill", "train", 1, 0}}), fault_point("train")),
              testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT((install_faults({{"exit", "train", 1, 42}}), fault_point("train")),
              testing::ExitedWithCode(42), "");
  EXPECT_THROW(install_faults({{"melt", "train", 1, 0}}), InternalError);
}

}  // namespace
}  // namespace trireme::base
