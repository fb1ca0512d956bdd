// Runs of PPO that are stopped anywhere and go on, at np 1, 2 and 4: the numbers are those of a run
// that nobody disturbed.
#include <gmock/gmock.h>

#include "unit/config/expect_error.hpp"
#include "unit/driver/tiny_runs.hpp"

namespace trireme::driver {
namespace {

using config::Command;
using config::error_of;
using test::world;
using testing::HasSubstr;

constexpr int64_t steps_of_an_iteration = 8;  // of two sequences, twice

class Ppo : public TinyRuns {
 protected:
  Overrides with(Overrides overrides, const Overrides& more) const {
    overrides.insert(overrides.end(), {"train.batch_size=2", "train.max_epochs=2"});
    overrides.insert(overrides.end(), more.begin(), more.end());
    return overrides;
  }
  // A run of this deck that nobody disturbs, made once.
  const std::string& undisturbed(const Overrides& deck) {
    std::string& run = undisturbed_[deck];
    if (run.empty()) {
      run = base::text("undisturbed-", undisturbed_.size());
      EXPECT_EQ(go(Command::ppo, run, with(deck, {"ckpt.interval=0"})), ExitCode::done);
    }
    return run;
  }
  // Stopped by a signal of rank 0 when it comes to this place.
  ExitCode stop(const std::string& run, const std::string& place, const Overrides& deck) {
    return go(Command::ppo, run,
              with(deck, {"ckpt.interval=0", "fault.at=[\"signal:0:" + place + ":10\"]"}));
  }
  void expect_goes_on(const std::string& run, const Overrides& deck) {
    EXPECT_EQ(go(Command::ppo, run, with(deck, {"ckpt.interval=0"})), ExitCode::done) << run;
    const std::string& reference = undisturbed(deck);
    EXPECT_EQ(timeless(run), timeless(reference)) << run;
    EXPECT_EQ(lines(run + "/samples.jsonl"), lines(reference + "/samples.jsonl")) << run;
    world().barrier();
  }
  Overrides evaluated() const {
    return {held_out("prompts.jsonl"), "eval.steps=1", "eval.n_samples_per_prompt=1"};
  }

 private:
  std::map<Overrides, std::string> undisturbed_;
};

const Overrides plain{}, one_ahead{"train.async_depth=1"},
    carried_over{"train.async_depth=2", "train.partial_rollout_enable=true",
                 "train.deterministic=true"};

TEST_F(Ppo, AStopInAnyPhaseGoesOnAsIfThereHadBeenNone) {
  struct Case {
    const char* name;
    std::string place;
    Overrides deck;
    const char* phase;  // of the checkpoint
    int64_t mini_batch, step;
  };
  const std::string third_step = base::text("actor step:", steps_of_an_iteration + 3);
  const Case cases[] = {
      {"rollout", "rollout:3", plain, phase::between, 0, 1},  // writing and waiting are two regions
      {"values", "values:2", plain, phase::reward, 0, 2},
      {"train", third_step, plain, phase::train, 3, 2},
      {"evaluation", "evaluate:2", evaluated(), phase::evaluate, steps_of_an_iteration, 2},
      {"ahead", third_step, one_ahead, phase::train, 3, 2},
      {"partial", third_step, carried_over, phase::train, 3, 2}};
  for (const Case& one : cases) {
    EXPECT_EQ(stop(one.name, one.place, one.deck), ExitCode::stopped_with_checkpoint) << one.name;
    EXPECT_EQ(metrics(one.name).size(), 1u) << one.name << ": of the finished iteration";
    EXPECT_EQ(steps(one.name), std::vector<int64_t>{one.step}) << one.name;
    const RunState left = state(one.name, one.step);
    EXPECT_EQ(left.iteration, 1);
    EXPECT_EQ(left.phase, one.phase) << one.name;
    EXPECT_EQ(left.mini_batch, one.mini_batch) << one.name;
    EXPECT_EQ(left.inside_iteration(), one.step == 2);
    world().barrier();
    expect_goes_on(one.name, one.deck);
  }
}

TEST_F(Ppo, AStopInTheFirstIterationHasNoStateOfAnEarlierOne) {
  for (const auto& [name, place] :
       {std::pair("first-values", "values:1"), {"first-step", "actor step:3"}}) {
    EXPECT_EQ(stop(name, place, plain), ExitCode::stopped_with_checkpoint) << name;
    EXPECT_EQ(metrics(name).size(), 0u);
    expect_goes_on(name, plain);
  }
}

// Each signal comes inside a step, which is finished.
TEST_F(Ppo, SeveralStopsInOneIterationReplaceEachOther) {
  for (const auto& [place, done] :
       {std::pair(base::text("actor step:", steps_of_an_iteration + 2), 2),
        {std::string("actor step:2"), 4},
        {std::string("actor step:1"), 5}}) {
    EXPECT_EQ(stop("often", place, plain), ExitCode::stopped_with_checkpoint);
    EXPECT_EQ(steps("often"), std::vector<int64_t>{2});
    EXPECT_EQ(state("often", 2).mini_batch, done);
    world().barrier();
  }
  EXPECT_EQ(stop("often", "rollout:1", plain), ExitCode::stopped_with_checkpoint);
  EXPECT_EQ(state("often", 2).iteration, 2) << "in the rollout of the third iteration";
  EXPECT_EQ(state("often", 2).phase, phase::between);
  world().barrier();
  expect_goes_on("often", plain);
}

// The iteration before is in a checkpoint and nothing is done of this one: nothing is written.
TEST_F(Ppo, NothingIsWrittenWhenNothingIsNew) {
  EXPECT_EQ(go(Command::ppo, "saved",
               with(plain, {"ckpt.background=false", "fault.at=[\"signal:0:rollout:3:10\"]"})),
            ExitCode::stopped_with_checkpoint);
  EXPECT_EQ(steps("saved"), std::vector<int64_t>{1});
  EXPECT_EQ(state("saved", 1).phase, phase::between);
  EXPECT_EQ(last_start("saved").at("how"), "stopped");
  world().barrier();
  expect_goes_on("saved", plain);
}

TEST_F(Ppo, ARunThatStopsBetweenIterationsFinishesItsOwn) {
  EXPECT_EQ(stop("whole", "actor step:3", {"run.stop_within=iteration"}),
            ExitCode::stopped_with_checkpoint);
  EXPECT_EQ(metrics("whole").size(), 1u);
  EXPECT_EQ(state("whole", 1).phase, phase::between);
  world().barrier();
}

// ---- One iteration with everything due ----

TEST_F(Ppo, EvaluationSaveExportAndReferenceAtOneIteration) {
  const Overrides deck{held_out("prompts.jsonl"),
                       "eval.n_samples_per_prompt=1",
                       "run.iterations=4",
                       "eval.steps=2",
                       "ckpt.interval=2",
                       "ckpt.save_hf=checkpoint",
                       "reference.sync_every=2",
                       "ckpt.best_metric=eval_reward",
                       "critic.save_value_network=true"};
  EXPECT_EQ(go(Command::ppo, "run", deck), ExitCode::done);
  const auto all = metrics("run");
  ASSERT_EQ(all.size(), 4u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].contains("eval_reward"), i % 2 == 1);
    EXPECT_EQ(all[i].at("version"), i + 2);
    for (const char* number : {"reward", "kl", "policy_loss", "value_loss", "response_length"})
      EXPECT_TRUE(all[i].at(number).is_number()) << number;
    for (const char* role : {"trainer", "generator", "reward"})
      EXPECT_TRUE(all[i].at("busy").contains(role)) << role;
  }
  EXPECT_EQ(all[2].at("kl"), 0) << "the reference became the actor of the second iteration";
  EXPECT_NE(all[1].at("kl"), 0);
  EXPECT_TRUE(exists("run/ckpt/best/manifest.json"));
  EXPECT_TRUE(exists("run/hf-step-000002/model.safetensors"));
  EXPECT_TRUE(exists("run/hf-step-000002-critic/model.safetensors"));
  EXPECT_TRUE(exists("run/hf/model.safetensors"));
  EXPECT_TRUE(exists("run/hf-critic/model.safetensors"));
  EXPECT_TRUE(exists("run/reference/iteration-000004/model.safetensors"));
  const RunState end = state("run", 4);
  EXPECT_EQ(end.training.actor_steps, end.training.critic_steps);
  EXPECT_EQ(end.version, 5);
  world().barrier();
}

// ---- The reference that follows the actor ----

TEST_F(Ppo, ARestartComparesWithTheReferenceThatTheRunHad) {
  const Overrides deck{"run.iterations=5", "reference.sync_every=2", "ckpt.keep=2"};
  EXPECT_EQ(go(Command::ppo, "whole", deck), ExitCode::done);
  EXPECT_EQ(
      go(Command::ppo, "run",
         {deck[0], deck[1], deck[2], "ckpt.interval=0", "fault.at=[\"signal:0:actor step:7:10\"]"}),
      ExitCode::stopped_with_checkpoint);
  EXPECT_TRUE(exists("run/reference/iteration-000002"));
  EXPECT_FALSE(exists("run/reference/iteration-000004"));
  world().barrier();
  if (world().rank() == 0)
    std::filesystem::rename(in("run/reference"), in("run/reference-elsewhere"));
  world().barrier();
  EXPECT_THAT(error_of(ExitCode::input_missing, [&] { go(Command::ppo, "run", deck); }),
              testing::AllOf(HasSubstr("iteration-000002"), HasSubstr("reference.sync_every")));
  world().barrier();
  if (world().rank() == 0)
    std::filesystem::rename(in("run/reference-elsewhere"), in("run/reference"));
  world().barrier();
  EXPECT_EQ(go(Command::ppo, "run", deck), ExitCode::done);
  EXPECT_EQ(timeless("run"), timeless("whole"));
  world().barrier();
}

// The first checkpoint is still being written when the next reference comes: it needs the one
// before.
TEST_F(Ppo, ReferencesWaitForTheFirstCheckpoint) {
  EXPECT_EQ(go(Command::ppo, "run",
               {"run.iterations=2", "reference.sync_every=1",
                "fault.at=[\"gate:*:ckpt.voted:1:1\", \"open:0:wait for the checkpoint:1:1\"]"}),
            ExitCode::done);
  EXPECT_EQ(steps("run"), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(exists("run/reference/iteration-000001"));
  world().barrier();
  EXPECT_EQ(go(Command::ppo, "run",
               {"run.iterations=2", "reference.sync_every=1",
                "ckpt.resume=" + (in("run") / "ckpt/step-000001").string()}),
            ExitCode::done);
}

// A start at a named checkpoint of another run that ends before it has saved begins there again.
TEST_F(Ppo, ReferencesOfTheStartStayUntilTheRunHasSaved) {
  const Overrides deck{"run.iterations=5", "reference.sync_every=1", "ckpt.interval=0"};
  const auto from = [&](const Overrides& more) {
    Overrides all = deck;
    all.push_back("ckpt.resume=" + (in("first") / "ckpt/step-000002").string());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_EQ(go(Command::ppo, "first", {"run.iterations=2", "reference.sync_every=1"}),
            ExitCode::done);
  if (world().rank() == 0) {
    std::filesystem::create_directories(in("second"));
    std::filesystem::copy(in("first/reference"), in("second/reference"),
                          std::filesystem::copy_options::recursive);
  }
  world().barrier();
  error_of(ExitCode::io_error,
           [&] { go(Command::ppo, "second", from({"fault.at=[\"io_fail:*:rollout:5:5\"]"})); });
  world().barrier();
  EXPECT_EQ(metrics("second").size(), 2u);
  EXPECT_EQ(go(Command::ppo, "second", from({})), ExitCode::done);
}

// One stays as long as a checkpoint may be resumed from that was compared with it.
TEST_F(Ppo, ReferencesGoWhenNoCheckpointNeedsThem) {
  EXPECT_EQ(
      go(Command::ppo, "run",
         {"run.iterations=6", "reference.sync_every=1", "ckpt.keep=2", "ckpt.background=false"}),
      ExitCode::done);
  const std::vector<int64_t> saved = steps("run");
  EXPECT_EQ(saved, (std::vector<int64_t>{5, 6}));
  EXPECT_FALSE(exists("run/reference/iteration-000001"));
  EXPECT_FALSE(exists("run/reference/iteration-000002"));
  for (const int64_t step : saved)
    EXPECT_TRUE(exists(base::text("run/reference/iteration-00000", step)));
  world().barrier();
}

}  // namespace
}  // namespace trireme::driver
