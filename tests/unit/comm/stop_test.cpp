#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "support/world.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/stop.hpp"

namespace trireme::comm {
namespace {

RequestFiles no_file() { return {.stop = "/nonexistent/stop", .save = "/nonexistent/save"}; }

TEST(Stop, OneRanksSignalIsEveryRanksDecision) {
  const auto& world = test::world();
  job::install_signal_handlers();
  EXPECT_EQ(agree_to_stop(world, no_file()), job::StopReason::none);
  if (world.rank() == world.size() - 1) std::raise(SIGUSR2);
  EXPECT_EQ(agree_to_stop(world, no_file()), job::StopReason::save_and_go_on);
  job::clear_save_request();
  EXPECT_EQ(agree_to_stop(world, no_file()), job::StopReason::none);
}

TEST(Stop, ContinueSignalIsNoStop) {
  job::install_signal_handlers();
  std::raise(SIGCONT);
  std::raise(SIGPIPE);
  EXPECT_EQ(job::pending_signal(), job::StopReason::none);
}

TEST(Stop, FilesInTheRunFolderSaveAndStop) {
  const auto& world = test::world();
  const auto path = std::filesystem::temp_directory_path() /
                    base::text("trireme-stop-", world.broadcast_value(getpid(), 0));
  if (world.rank() == 0) std::ofstream(path) << "";
  world.barrier();
  EXPECT_EQ(agree_to_stop(world, {.stop = {}, .save = path}), job::StopReason::save_and_go_on);
  EXPECT_EQ(agree_to_stop(world, {.stop = path, .save = path}), job::StopReason::stop_file)
      << "stopping saves as well";
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove(path);
}

TEST(Stop, AnyRanksWishCounts) {
  const auto& world = test::world();
  const bool mine = world.rank() == world.size() - 1;
  EXPECT_EQ(
      agree_to_stop(world, no_file(), mine ? job::StopReason::walltime : job::StopReason::none),
      job::StopReason::walltime);
}

TEST(Stop, NobodyAskedToTerminate) { EXPECT_FALSE(job::seconds_since_terminate()); }

}  // namespace
}  // namespace trireme::comm
