// What asks a run to save or to leave, and what all ranks answer, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "driver/stop_policy.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "support/samples.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

using job::StopReason;
using test::SharedFolder;
using test::world;

constexpr int64_t iterations = 10;

constexpr AfterIteration save_only{.save = true},
    save_at_request{.save = true, .serves_request = true};

// A run of ten iterations; without checkpoints, unless a test makes some.
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
  AfterIteration after(int64_t iteration, bool better = false, double seconds = 0.001) {
    policy().begins(iteration);
    trace::reset_phases();
    state_.iteration = iteration;
    return policy().after(state_, seconds, better);
  }
  AfterIteration after_long(int64_t iteration, double seconds) {
    return after(iteration, false, seconds);
  }
  // Seen by rank 0 before any rank asks.
  static void touch(const std::filesystem::path& file) {
    if (world().rank() == 0) std::ofstream(file) << "";
    world().barrier();
  }

  // Without models.
  Checkpointing& checkpoints() {
    if (!checkpoints_) {
      policy();
      checkpoints_.emplace(options_, *roles_, *folder_, at::kCPU, true);
      policy().plan(iterations, &*checkpoints_);
      StoredParts parts;
      checkpoints_->resume(parts);
    }
    return *checkpoints_;
  }
  void save(int64_t iteration) {
    state_.iteration = iteration;
    policy().saving(true);
    checkpoints().save(state_, {}, true);
    policy().saving(false);
    policy().closed();
  }
  // Before its own checkpoints go.
  ~Policy() override {
    if (policy_) policy_->plan(iterations, nullptr);
  }

  const SharedFolder parent_;
  config::Options options_;
  RunState state_;
  std::optional<comm::Roles> roles_;
  std::optional<RunFolder> folder_;
  std::optional<comm::RunWatch> watch_;
  std::optional<StopPolicy> policy_;
  std::optional<Checkpointing> checkpoints_;
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
  EXPECT_EQ(after(2, true), save_only) << "its checkpoint is the best";
  EXPECT_EQ(policy().wish(), StopReason::none);
  EXPECT_FALSE(policy().is_leaving());
}

TEST_F(Policy, OneRanksSignalMakesAllRanksSaveOnce) {
  policy();
  job::install_signal_handlers();
  if (world().rank() == world().size() - 1) std::raise(SIGUSR2);
  EXPECT_LE(policy().wish(), StopReason::save_and_go_on) << "no reason to leave an iteration";
  EXPECT_EQ(after(1), save_at_request);
  policy().save_request_served();
  EXPECT_EQ(after(2), AfterIteration{});
}

TEST_F(Policy, TheFileSaveIsServedOnceAndRemoved) {
  policy();
  touch(folder_->save_file());
  EXPECT_EQ(after(1), save_at_request);
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

TEST_F(Policy, OneRanksWarningMakesAllRanksLeave) {
  policy();
  job::install_signal_handlers();
  if (world().rank() == world().size() - 1) std::raise(SIGUSR1);
  if (world().rank() == world().size() - 1) {
    EXPECT_EQ(policy().wish(), StopReason::warning_signal);
  }
  EXPECT_EQ(after(1).leave, StopReason::warning_signal);
  policy_.reset();
  EXPECT_EQ(job::pending_signal(), StopReason::none) << "the run that it was for is over";
}

TEST_F(Policy, AStopIsMoreUrgentThanASave) {
  policy();
  touch(folder_->save_file());
  touch(folder_->stop_file());
  EXPECT_EQ(after(1).leave, StopReason::stop_file);
  world().barrier();
}

TEST_F(Policy, ABurstOfSaveRequestsIsOne) {
  policy();
  job::install_signal_handlers();
  std::raise(SIGUSR2);
  std::raise(SIGUSR2);
  touch(folder_->save_file());
  EXPECT_EQ(after(1), save_at_request);
  policy().save_request_served();
  world().barrier();
  EXPECT_EQ(after(2), AfterIteration{});
}

// ---- Checkpoints by the deck ----

TEST_F(Policy, SavesAreDueByTheNumberOfIterations) {
  options_.ckpt.interval.iterations = 3;
  checkpoints();
  const std::vector<AfterIteration> wanted{{}, {}, save_only, {}, {}, save_only};
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_EQ(after(static_cast<int64_t>(i) + 1), wanted[i]) << i + 1;
  policy().plan(iterations, nullptr);
  EXPECT_EQ(after(9), AfterIteration{}) << "nobody saves any more";
}

TEST_F(Policy, SavesAreDueByTime) {
  options_.ckpt.interval.iterations = 0;
  options_.ckpt.interval.seconds = 1e-9;
  checkpoints();
  EXPECT_EQ(after(1), save_at_request);
  EXPECT_EQ(policy().wish(), StopReason::none) << "no reason to leave an iteration";
}

// ---- Walltime: seconds since the process was started, of which tests take few ----

// The rule of docs/user/restart.md, with an iteration in the place of a save that nobody measured.
TEST_F(Policy, TheNextIterationHasToFitIntoWhatRemains) {
  options_.run.walltime.seconds = 10000;
  policy();
  EXPECT_EQ(after_long(1, 2500).leave, StopReason::none) << "1.3 x 2500 + 1.5 x 2500 + margin";
  EXPECT_EQ(after_long(2, 100).leave, StopReason::none);
  EXPECT_EQ(after_long(3, 3700).leave, StopReason::walltime) << "the longest counts";
}

TEST_F(Policy, AnEvaluationThatWasNeverMeasuredCountsAsAnIteration) {
  options_.run.walltime.seconds = 10000;
  options_.eval.steps = 3;
  policy();
  EXPECT_EQ(after_long(1, 2500).leave, StopReason::none);
  EXPECT_EQ(after_long(2, 2500).leave, StopReason::walltime) << "the third one evaluates";
}

TEST_F(Policy, ASaveThatWasMeasuredCountsAsLongAsItTook) {
  options_.run.walltime.seconds = 10000;
  checkpoints();
  save(1);
  EXPECT_EQ(after_long(1, 5000).leave, StopReason::none)
      << "1.3 x 5000 and a save of milliseconds: not 2.8 x 5000";
  EXPECT_EQ(after_long(2, 7000).leave, StopReason::none);
  EXPECT_EQ(after_long(3, 7700).leave, StopReason::walltime);
}

// When the first regular checkpoint lies in the second half of what remains, one is made early.
TEST_F(Policy, ASaveIsMadeEarlyToMeasureOne) {
  options_.run.walltime.seconds = 10000;
  options_.ckpt.interval.iterations = 0;
  checkpoints();
  EXPECT_EQ(after_long(1, 100), AfterIteration{}) << "the last of ten iterations comes soon enough";
  EXPECT_EQ(after_long(2, 700), save_at_request) << "5600 s until the end of the run";
  save(2);
  EXPECT_EQ(after_long(3, 700), AfterIteration{}) << "it is known now";
}

TEST_F(Policy, ASaveThatIsDueSoonIsNotMadeEarly) {
  options_.run.walltime.seconds = 10000;
  options_.ckpt.interval.iterations = 5;
  checkpoints();
  EXPECT_EQ(after_long(1, 700), AfterIteration{}) << "in four iterations";
  EXPECT_EQ(after_long(5, 700), save_only) << "by the interval";
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
