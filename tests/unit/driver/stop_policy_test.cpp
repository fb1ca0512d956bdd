// What asks a run to save or to leave, and what all ranks answer, at np 1, 2 and 4.
#include "driver/stop_policy.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "support/samples.hpp"

namespace trireme::driver {
namespace {

using job::StopReason;
using test::SharedFolder;
using test::world;

constexpr int64_t iterations = 10;

// A run of ten iterations without checkpoints.
class Policy : public testing::Test {
 protected:
  StopPolicy& policy() {
    if (!policy_) {
      options_.run.dir = parent_.path().string();
      options_.run.log_level = config::LogLevel::error;
      roles_.emplace(comm::make_roles(options_, world()));
      folder_.emplace(options_, world());
      watch_.emplace(options_, *roles_, false);
      policy_.emplace(options_, *roles_, *folder_, *watch_);
      policy_->plan(iterations, nullptr);
    }
    return *policy_;
  }
  AfterIteration after(int64_t iteration, bool better = false) {
    policy().begins(iteration);
    state_.iteration = iteration;
    return policy().after(state_, 0.001, better);
  }
  // Seen by rank 0 before any rank asks.
  static void touch(const std::filesystem::path& file) {
    if (world().rank() == 0) std::ofstream(file) << "";
    world().barrier();
  }

  const SharedFolder parent_;
  config::Options options_;
  RunState state_;
  std::optional<comm::Roles> roles_;
  std::optional<RunFolder> folder_;
  std::optional<comm::RunWatch> watch_;
  std::optional<StopPolicy> policy_;
};

TEST_F(Policy, ARunGoesOnUntilItsLastIterationOrItsTarget) {
  options_.eval.steps = 2;
  options_.ckpt.best_metric = "eval_reward";
  options_.ckpt.target = 0.5;
  state_.iteration = 9;
  EXPECT_TRUE(policy().goes_on(state_));
  state_.iteration = 10;
  EXPECT_FALSE(policy().goes_on(state_));
  state_.iteration = 4;
  state_.best = {"eval_reward", 4, 0.75};
  EXPECT_FALSE(policy().goes_on(state_));
  state_.phase = phase::train;
  EXPECT_TRUE(policy().goes_on(state_)) << "an iteration that was interrupted is finished";
  EXPECT_TRUE(policy().evaluates(4));
  EXPECT_FALSE(policy().evaluates(5));
}

TEST_F(Policy, NothingAsksForAnything) {
  EXPECT_EQ(after(1), AfterIteration{});
  EXPECT_EQ(after(2, true), (AfterIteration{.save = true})) << "its checkpoint is the best";
  EXPECT_EQ(policy().wish(), StopReason::none);
  EXPECT_FALSE(policy().is_leaving());
}

TEST_F(Policy, OneRanksSignalMakesAllRanksSaveOnce) {
  policy();
  job::install_signal_handlers();
  if (world().rank() == world().size() - 1) std::raise(SIGUSR2);
  EXPECT_LE(policy().wish(), StopReason::save_and_go_on) << "no reason to leave an iteration";
  EXPECT_EQ(after(1), (AfterIteration{.save = true, .serves_request = true}));
  policy().save_request_served();
  EXPECT_EQ(after(2), AfterIteration{});
}

TEST_F(Policy, TheFileSaveIsServedOnceAndRemoved) {
  policy();
  touch(folder_->save_file());
  EXPECT_EQ(after(1), (AfterIteration{.save = true, .serves_request = true}));
  policy().save_request_served();
  world().barrier();
  EXPECT_FALSE(std::filesystem::exists(folder_->save_file()));
  EXPECT_EQ(after(2), AfterIteration{});
}

TEST_F(Policy, TheFileStopMakesAllRanksLeave) {
  policy();
  touch(folder_->stop_file());
  EXPECT_EQ(after(1).leave, StopReason::stop_file);
  EXPECT_TRUE(policy().is_leaving());
  world().barrier();
}

TEST_F(Policy, TheLastIterationIsFollowedByTheEndWhateverIsAsked) {
  policy();
  touch(folder_->stop_file());
  EXPECT_EQ(after(iterations), AfterIteration{});
  world().barrier();
}

TEST_F(Policy, AWalltimeThatIsOverMakesAllRanksLeave) {
  options_.run.walltime.seconds = 0.001;  // since the process was started
  EXPECT_EQ(after(1).leave, StopReason::walltime);
}

TEST_F(Policy, ARunThatStopsBetweenIterationsIsNotAskedInside) {
  options_.run.stop_within = config::StopWithin::iteration;
  options_.run.walltime.seconds = 0.001;
  comm::Progress progress(&policy());
  EXPECT_FALSE(policy().leaves_inside());
  EXPECT_EQ(policy().wish(), StopReason::none);
  EXPECT_EQ(progress.agree(world()), comm::Then::go_on);
  EXPECT_EQ(after(1).leave, StopReason::walltime);
}

}  // namespace
}  // namespace trireme::driver
