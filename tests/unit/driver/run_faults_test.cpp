// A run whose deck or inputs have changed, whose saves fail, or that diverges, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include <gmock/gmock.h>

#include "unit/config/expect_error.hpp"
#include "unit/driver/controlled_run.hpp"

namespace trireme::driver {
namespace {

using config::error_of;
using test::world;
using testing::HasSubstr;

// ---- Changed decks and inputs ----

TEST_F(Control, ChangesOfMeaningNeedPermission) {
  const learn::Inputs rows{{"data.dataset", "first"}}, others{{"data.dataset", "second"}};
  {
    ControlledRun start(options({"run.iterations=2"}), 2, rows);
    EXPECT_EQ(start.iterate(), std::nullopt);
    EXPECT_EQ(start.control.finish(start.state), ExitCode::done);
  }
  world().barrier();
  const std::string deck = base::read_file(in("run/deck.toml"));
  struct Case {
    Overrides overrides;
    learn::Inputs inputs;
    const char* complaint;  // null: it starts
  };
  const Case cases[] = {
      {{"actor.adam.lr=2e-3"}, rows, "actor.adam.lr"},
      {{"run.seed=4"}, rows, "run.seed"},
      {{}, others, "data.dataset"},
      {{"actor.adam.lr=2e-3", "ckpt.allow_changes=[\"data.dataset\"]"}, others, "actor.adam.lr"},
      {{"actor.adam.lr=2e-3", "ckpt.allow_changes=[\"critic.\"]"}, rows, "actor.adam.lr"},
      {{"ckpt.keep=5", "run.iterations=9", "trace.enabled=true"}, rows, nullptr},
      {{"actor.adam.lr=2e-3", "ckpt.allow_changes=[\"actor.\"]"}, rows, nullptr},
      {{"ckpt.allow_changes=[\"data.dataset\"]"}, others, nullptr}};
  for (const Case& one : cases) {
    const config::Options changed = options(one.overrides);
    if (one.complaint) {
      EXPECT_THAT(error_of(ExitCode::configuration, [&] { ControlledRun(changed, 9, one.inputs); }),
                  HasSubstr(one.complaint));
      world().barrier();
      EXPECT_EQ(base::read_file(in("run/deck.toml")), deck) << "that of the last start that began";
      EXPECT_EQ(last_start("run").at("how"), "done") << "a refused start is none";
    } else {
      const ControlledRun start(changed, 9, one.inputs);
      EXPECT_TRUE(start.resumed);
      EXPECT_EQ(start.state.deck, config::dump_deck(changed));
      EXPECT_EQ(start.state.inputs, one.inputs);
      world().barrier();
      EXPECT_NE(base::read_file(in("run/deck.toml")), deck);
      world().barrier();
      if (world().rank() == 0) base::write_file_atomically(in("run/deck.toml"), deck);
    }
    world().barrier();
  }
}

TEST_F(Control, WhatWasAllowedIsNotAskedForAgain) {
  const Overrides changed{"actor.adam.lr=2e-3"};
  {
    ControlledRun start(options(), 5);
    EXPECT_EQ(start.iterate(), std::nullopt);
    touch("run/stop");
    EXPECT_EQ(start.iterate(), ExitCode::stopped_with_checkpoint);
  }
  world().barrier();
  {
    ControlledRun allowed(options({changed[0], "ckpt.allow_changes=[\"actor.adam.lr\"]"}), 5);
    touch("run/stop");
    EXPECT_EQ(allowed.iterate(), ExitCode::stopped_with_checkpoint);
  }
  world().barrier();
  const ControlledRun again(options(changed), 5);
  EXPECT_EQ(again.state.iteration, 3);
}

// ---- Saves that fail, and saves beside training ----

TEST_F(Control, AFailedSaveIsCountedAndMadeAgainAtTheNextIteration) {
  ControlledRun start(
      options({"ckpt.interval=3", "ckpt.background=false", "fault.io_fail=fsync:1:28"}), 9);
  const std::vector<std::vector<int64_t>> after{{}, {}, {}, {4}, {4}, {4, 6}};
  const std::vector<int64_t> failed{0, 0, 0, 1, 1, 1};
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(start.iterate(), std::nullopt) << "no run ends for it";
    EXPECT_EQ(saved(), after[i]) << "after iteration " << i + 1;
    EXPECT_EQ(metrics("run").back().value("failed_saves", 0), failed[i]);
    world().barrier();
  }
}

TEST_F(Control, AsManyFailuresAsTheDeckAllows) {
  ControlledRun start(options({"ckpt.background=false", "ckpt.max_failures=2",
                               "fault.at=[\"io_fail:*:ckpt.fsync:*:28\"]"}),
                      9);
  EXPECT_EQ(start.iterate(), std::nullopt);
  EXPECT_THAT(error_of(ExitCode::io_error, [&] { start.iterate(); }),
              HasSubstr("ckpt.max_failures"));
  EXPECT_EQ(saved(), std::vector<int64_t>{});
}

// A save of the background is held until the main thread waits for it: the request to stop comes
// meanwhile, and both checkpoints are there in the end.
TEST_F(Control, AStopDuringASaveEndsBehindBoth) {
  ControlledRun start(options({"fault.at=[\"gate:*:ckpt.voted:1:1\", "
                               "\"open:0:wait for the checkpoint:1:1\"]"}),
                      9);
  EXPECT_EQ(start.iterate(), std::nullopt);
  EXPECT_EQ(saved(), std::vector<int64_t>{}) << "it is at work";
  touch("run/stop");
  EXPECT_EQ(start.iterate(), ExitCode::stopped_with_checkpoint);
  EXPECT_EQ(saved(), (std::vector<int64_t>{1, 2}));
}

TEST_F(Control, AStopDuringASaveThatFailsSavesAllTheSame) {
  ControlledRun start(
      options({"fault.at=[\"gate:*:ckpt.written:1:1\", "
               "\"open:0:wait for the checkpoint:1:1\", \"io_fail:*:ckpt.fsync:1:28\"]"}),
      9);
  EXPECT_EQ(start.iterate(), std::nullopt);
  touch("run/stop");
  EXPECT_EQ(start.iterate(), ExitCode::stopped_with_checkpoint);
  EXPECT_EQ(saved(), std::vector<int64_t>{2});
}

// While the checkpoint of a better evaluation cannot be written, the best one that there is stays.
TEST_F(Control, TheBestThatCouldNotBeSavedLeavesTheOneBefore) {
  ControlledRun start(
      options({"ckpt.keep=2", "ckpt.background=false", "ckpt.best_metric=eval_loss", "eval.steps=1",
               held_out("examples.jsonl"), "fault.at=[\"io_fail:*:ckpt.half_written:2:28\"]"}),
      9);
  const std::optional<double> judged[] = {3.0, 2.0, 2.5, 2.5, 2.5};
  for (const auto& value : judged) EXPECT_EQ(start.iterate(value), std::nullopt);
  EXPECT_EQ(start.state.best.iteration, 2);
  EXPECT_EQ(saved(), (std::vector<int64_t>{1, 4, 5}));
  EXPECT_TRUE(exists("run/ckpt/best/manifest.json")) << "the link leads somewhere";
  world().barrier();
  EXPECT_EQ(start.iterate(1.0), std::nullopt);
  EXPECT_EQ(saved(), (std::vector<int64_t>{5, 6})) << "it goes with the next better one";
}

// ---- Numbers that go wrong ----

TEST_F(Control, ARunThatDivergesEndsWithAnError) {
  ControlledRun start(options({"train.divergence.kl=0.5", "train.divergence.patience=2"}), 9);
  start.state.outcome.kl = 0.75;
  EXPECT_EQ(start.iterate(), std::nullopt) << "once is chance";
  start.state.outcome.kl = 0.25;
  EXPECT_EQ(start.iterate(), std::nullopt);
  start.state.outcome.kl = 0.75;
  EXPECT_EQ(start.iterate(), std::nullopt) << "not twice in a row";
  EXPECT_THAT(error_of(ExitCode::internal, [&] { start.iterate(); }), HasSubstr("kl is 0.75"));
}

}  // namespace
}  // namespace trireme::driver
