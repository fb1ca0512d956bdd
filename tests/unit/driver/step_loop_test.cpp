// Supervised runs from their first iteration to their last: stops, restarts, evaluations, exports,
// at np 1, 2 and 4.
#include <gmock/gmock.h>

#include <cmath>

#include "unit/config/expect_error.hpp"
#include "unit/driver/tiny_runs.hpp"

namespace trireme::driver {
namespace {

using config::Command;
using config::error_of;
using test::world;
using testing::HasSubstr;

struct Supervised {
  Command command;
  std::string rows;  // the held-out ones, too
  std::vector<const char*> numbers;
};

const std::vector<Supervised>& supervised() {
  static const std::vector<Supervised> all{
      {Command::sft, "examples.jsonl", {"loss", "grad_norm", "lr", "target_tokens"}},
      {Command::rm, "pairs.jsonl", {"loss", "accuracy", "chosen_reward", "reward_std", "lr"}},
      {Command::dpo, "pairs.jsonl", {"loss", "accuracy", "margin", "lr"}}};
  return all;
}

class Steps : public TinyRuns {
 protected:
  // Everything that a run can do at one iteration, at each second of four.
  Overrides everything(const Supervised& one) const {
    return {
        "run.iterations=4",        "eval.steps=2", held_out(one.rows),          "ckpt.interval=2",
        "ckpt.save_hf=checkpoint", "ckpt.keep=2",  "ckpt.best_metric=eval_loss"};
  }
};

TEST_F(Steps, ALineAnIterationAndAllThatTheDeckAsksFor) {
  for (const Supervised& one : supervised()) {
    const std::string run(config::to_string(one.command));
    EXPECT_EQ(go(one.command, run, everything(one)), ExitCode::done);
    const auto lines = metrics(run);
    ASSERT_EQ(lines.size(), 4u) << run;
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i].at("iteration"), i + 1);
      for (const char* number : one.numbers)
        EXPECT_TRUE(lines[i].at(number).is_number()) << run << ": " << number;
      EXPECT_EQ(lines[i].contains("eval_loss"), i % 2 == 1) << run << ", iteration " << i + 1;
      EXPECT_TRUE(lines[i].at("memory").contains("actor_moments"));
      EXPECT_EQ(lines[i].at("memory").contains("reference_weights"), one.command == Command::dpo);
      EXPECT_EQ(lines[i].at("epoch"), 0.5 * static_cast<double>(i + 1)) << "4 of 8 rows each";
      EXPECT_GE(lines[i].at("threads").at("trainer"), 1);
      EXPECT_FALSE(lines[i].at("busy").contains("generator")) << "nobody writes";
    }
    EXPECT_EQ(steps(run), (std::vector<int64_t>{2, 4}));
    EXPECT_TRUE(exists(run + "/ckpt/best/manifest.json"));
    EXPECT_TRUE(exists(run + "/hf-step-000002/config.json"));
    EXPECT_FALSE(exists(run + "/hf-step-000004")) << "the end has hf/";
    EXPECT_TRUE(exists(run + "/hf/model.safetensors"));
    EXPECT_TRUE(exists(run + "/hf/tokenizer.json"));
    EXPECT_TRUE(exists(run + "/report.html"));
    EXPECT_TRUE(exists(run + "/summary.json"));
    EXPECT_EQ(last_start(run).at("how"), "done");
    const RunState end = state(run, 4);
    EXPECT_EQ(end.command, run);
    EXPECT_EQ(end.training.actor_steps, 4);
    EXPECT_EQ(end.rewards.size(), 4u);
    EXPECT_EQ(end.sampler.taken, std::vector<int64_t>{16});
    world().barrier();
  }
}

// A stop between any two iterations, also in an epoch's middle, and a restart with the same
// command.
TEST_F(Steps, AStoppedRunEndsWithTheNumbersOfAnUndisturbedOne) {
  for (const Supervised& one : supervised()) {
    const std::string run(config::to_string(one.command));
    const Overrides deck{"run.iterations=5",      "eval.steps=2", held_out(one.rows),
                         "train.enable_ema=true", "run.seed=11",  "train.batch_size=3",
                         "ckpt.interval=0"};
    const auto stopped_at = [&](int iteration) {
      Overrides with = deck;
      with.push_back(base::text("fault.at=[\"signal:0:train:", iteration, ":10\"]"));
      return with;
    };
    EXPECT_EQ(go(one.command, "whole-" + run, deck), ExitCode::done);
    EXPECT_EQ(go(one.command, run, stopped_at(1)), ExitCode::stopped_with_checkpoint);
    EXPECT_EQ(steps(run), std::vector<int64_t>{1}) << "an iteration is one optimizer step";
    EXPECT_EQ(go(one.command, run, stopped_at(2)), ExitCode::stopped_with_checkpoint);
    EXPECT_EQ(go(one.command, run, deck), ExitCode::done);
    EXPECT_EQ(timeless(run), timeless("whole-" + run)) << run;
    EXPECT_EQ(state(run, 5).rewards, state("whole-" + run, 5).rewards);
    world().barrier();
  }
}

// A finished run that is started again with more iterations keeps its schedule.
TEST_F(Steps, MoreIterationsGoOnBehindTheScheduleOfTheFirstStart) {
  EXPECT_EQ(go(Command::sft, "run", {"run.iterations=2"}), ExitCode::done);
  const auto first = metrics("run");
  EXPECT_EQ(go(Command::sft, "run", {"run.iterations=2"}), ExitCode::done) << "nothing is left";
  EXPECT_EQ(metrics("run"), first);
  EXPECT_EQ(go(Command::sft, "run", {"run.iterations=4"}), ExitCode::done);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], first[0]) << "as they were";
  EXPECT_EQ(lines[2].at("lr"), lines[3].at("lr")) << "at the end of the schedule";
  EXPECT_NEAR(lines[2].at("lr").get<double>(), 1e-4, 1e-12) << "actor.min_lr_ratio of the rate";
  EXPECT_EQ(state("run", 4).schedule_steps, 2);
  world().barrier();
}

TEST_F(Steps, WhatWasWrittenAfterTheCheckpointIsWrittenAgain) {
  EXPECT_EQ(go(Command::sft, "run", {"ckpt.interval=2", "run.iterations=3"}), ExitCode::done);
  const auto whole = timeless("run");
  if (world().rank() == 0) std::filesystem::remove_all(in("run/ckpt/step-000003"));
  world().barrier();
  EXPECT_EQ(go(Command::sft, "run", {"ckpt.interval=2", "run.iterations=3"}), ExitCode::done);
  EXPECT_EQ(timeless("run"), whole) << "no line twice";
}

TEST_F(Steps, ARunEndsAtItsTargetAndAStartAfterItFindsIt) {
  const Overrides deck{"run.iterations=9", "eval.steps=2", held_out("examples.jsonl"),
                       "ckpt.best_metric=eval_loss", "ckpt.target=1000"};
  EXPECT_EQ(go(Command::sft, "run", deck), ExitCode::done);
  EXPECT_EQ(metrics("run").size(), 2u) << "the first evaluation reaches it";
  EXPECT_EQ(steps("run").back(), 2);
  EXPECT_EQ(go(Command::sft, "run", deck), ExitCode::done);
  EXPECT_EQ(metrics("run").size(), 2u);
  world().barrier();
}

TEST_F(Steps, ARunEndsWhenNothingGetsBetter) {
  EXPECT_EQ(go(Command::sft, "run",
               {"run.iterations=9", "eval.steps=1", held_out("examples.jsonl"),
                "ckpt.best_metric=eval_loss", "ckpt.patience=2", "actor.adam.lr=1e-12"}),
            ExitCode::done);
  EXPECT_EQ(metrics("run").size(), 3u) << "two evaluations behind the first";
  EXPECT_EQ(state("run", 3).best.iteration, 1);
  world().barrier();
}

TEST_F(Steps, AStepWhoseGradientIsNotFiniteIsLeftOut) {
  const Overrides deck{"run.iterations=2", "train.max_skipped_steps=1",
                       "fault.at=[\"nan:*:grad:1\"]"};
  EXPECT_EQ(go(Command::sft, "once", deck), ExitCode::done);
  EXPECT_EQ(state("once", 2).training.actor_steps, 1);
  EXPECT_TRUE(exists("once/not_finite")) << "what it was of is kept";
  world().barrier();
  EXPECT_THAT(error_of(ExitCode::internal,
                       [&] {
                         go(Command::sft, "always",
                            {"run.iterations=5", "train.max_skipped_steps=1",
                             "fault.at=[\"nan:*:grad:*\"]"});
                       }),
              HasSubstr("train.max_skipped_steps"));
  world().barrier();
  EXPECT_EQ(last_start("always").at("how"), "error");
  world().barrier();
}

TEST_F(Steps, AStartOfAnotherCommandInTheFolderIsRefused) {
  EXPECT_EQ(go(Command::rm, "run"), ExitCode::done);
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { go(Command::dpo, "run"); }),
              HasSubstr("trireme rm"));
  world().barrier();
  EXPECT_EQ(metrics("run").size(), 3u);
  world().barrier();
}

// The moving average is exported beside the weights, and the reward scale of rm by its held-out
// rows, also where no evaluation was due.
TEST_F(Steps, ExportsHaveWhatTrainingMade) {
  EXPECT_EQ(go(Command::rm, "run",
               {"run.iterations=2", held_out("pairs.jsonl"), "eval.steps=2",
                "ckpt.save_hf=checkpoint", "train.enable_ema=true"}),
            ExitCode::done);
  EXPECT_FALSE(metrics("run").front().contains("eval_loss")) << "it was not due";
  for (const char* folder : {"run/hf-step-000001", "run/hf"}) {
    const auto config = nlohmann::json::parse(base::read_file(in(folder) / "config.json"));
    EXPECT_NE(config.at("std"), 1) << "of the held-out rewards";
    const std::string average = std::string(folder) + "-ema";
    EXPECT_NE(base::read_file(in(average) / "model.safetensors"),
              base::read_file(in(folder) / "model.safetensors"));
  }
  world().barrier();
}

}  // namespace
}  // namespace trireme::driver
