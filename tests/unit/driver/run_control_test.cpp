// What happens around iterations: reports, saves, exports, stops and the end of a run, at np 1, 2
// and 4.
#include "torch/torch.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "unit/config/expect_error.hpp"
#include "unit/driver/controlled_run.hpp"

namespace trireme::driver {
namespace {

namespace fs = std::filesystem;
using config::error_of;
using test::world;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(Control, ANewRunKnowsWhereItBegins) {
  const learn::Inputs inputs{{"data.dataset", "a digest"}};
  ControlledRun start(options({"data.date=2026-03-09"}), 7,
                      world().rank() == 0 ? inputs : learn::Inputs{});
  EXPECT_FALSE(start.resumed);
  EXPECT_EQ(start.state.command, "sft");
  EXPECT_EQ(start.state.schedule_steps, 7);
  EXPECT_EQ(start.state.deck, start.run.folder.deck());
  EXPECT_EQ(start.state.compute_type, "fp32");
  EXPECT_EQ(start.state.date, "2026-03-09");
  EXPECT_EQ(start.state.inputs, inputs) << "on all ranks";
  world().barrier();
  EXPECT_TRUE(exists("run/metrics.jsonl"));
  EXPECT_EQ(last_start("run").at("ranks"), world().size());
  EXPECT_EQ(last_start("run").at("after"), 0);
  EXPECT_FALSE(last_start("run").contains("exit_code")) << "it runs";
  world().barrier();
}

TEST_F(Control, ALineOfTheMetricsHasWhatTheRunAddsToAnIteration) {
  ControlledRun start(options(), 3);
  report::IterationMetrics metrics;
  metrics.iteration = 1;
  metrics.set("loss", 0.5);
  start.state.version = 9;
  start.state.outcome = {.curve = 0.5};
  start.control.report(metrics, start.state, 12.5);
  start.state.outcome = {};
  metrics.iteration = 2;
  start.control.report(metrics, start.state, 1);
  world().barrier();
  const auto lines = this->metrics("run");
  ASSERT_EQ(lines.size(), 2u);
  const auto& line = lines.front();
  EXPECT_EQ(line.at("iteration"), 1);
  EXPECT_EQ(line.at("iterations"), 3);
  EXPECT_EQ(line.at("version"), 9);
  EXPECT_EQ(line.at("loss"), 0.5);
  EXPECT_EQ(line.at("seconds").at("total"), 12.5);
  EXPECT_EQ(line.at("seconds").at("checkpoint_stall"), 0);
  EXPECT_GT(line.at("time"), 1e9);
  EXPECT_TRUE(line.at("memory").contains("planned_host_peak"));
  EXPECT_FALSE(line.contains("failed_saves")) << "none failed";
  EXPECT_FALSE(line.at("seconds").contains("device_waits")) << "of GPUs";
  EXPECT_EQ(start.state.metrics_cursor, fs::file_size(in("run/metrics.jsonl"))) << "on all ranks";
  ASSERT_EQ(start.state.rewards.size(), 2u);
  EXPECT_EQ(start.state.rewards[0], 0.5);
  EXPECT_TRUE(std::isnan(start.state.rewards[1])) << "not computed";
  world().barrier();
}

// Each row is an iteration: what its evaluation gave, and what there is behind it.
TEST_F(Control, SavesExportsAndTheBestFollowTheDeckAtTheSameIterations) {
  ControlledRun start(
      options({"ckpt.interval=2", "ckpt.keep=2", "ckpt.background=false", "ckpt.save_hf=checkpoint",
               "ckpt.best_metric=eval_loss", "eval.steps=1", held_out("examples.jsonl")}),
      6);
  struct Row {
    std::optional<double> judged;
    std::vector<int64_t> saved;
    int64_t best;
    std::vector<std::string> exports;
  };
  const Row rows[] = {{.judged = {}, .saved = {}, .best = 0, .exports = {}},
                      {.judged = 3.0, .saved = {2}, .best = 2, .exports = {"hf-step-000002"}},
                      {.judged = 2.0, .saved = {2, 3}, .best = 3, .exports = {"hf-step-000003"}},
                      {.judged = 2.5, .saved = {3, 4}, .best = 3, .exports = {"hf-step-000004"}},
                      {.judged = std::nan(""), .saved = {3, 4}, .best = 3, .exports = {}},
                      {.judged = 9.0, .saved = {3, 4}, .best = 3, .exports = {}}};
  for (const Row& row : rows) {
    start.exports.clear();
    EXPECT_EQ(start.iterate(row.judged), std::nullopt);
    EXPECT_EQ(saved(), row.saved) << "after iteration " << start.state.iteration;
    EXPECT_EQ(start.exports, row.exports) << "after iteration " << start.state.iteration;
    if (row.best == 0) continue;
    EXPECT_EQ(fs::read_symlink(in("run/ckpt/best")).filename(), checkpoint::folder_name(row.best));
    EXPECT_EQ(start.state.best.iteration, row.best);
  }
  EXPECT_EQ(start.control.finish(start.state), ExitCode::done);
  EXPECT_EQ(saved(), (std::vector<int64_t>{3, 4, 6})) << "the best beside the newest two";
  EXPECT_THAT(start.exports, ElementsAre("hf")) << "once, of the end";
  EXPECT_EQ(last_start("run").at("how"), "done");
  EXPECT_EQ(last_start("run").at("exit_code"), 0);
  EXPECT_FALSE(exists("run/stopped"));
}

TEST_F(Control, TheEndSavesOnlyWhereNothingIsSaved) {
  {
    ControlledRun start(options({"ckpt.background=false"}), 1);
    EXPECT_EQ(start.iterate(), std::nullopt);
    EXPECT_EQ(saved(), std::vector<int64_t>{}) << "the end saves";
    EXPECT_EQ(start.control.finish(start.state), ExitCode::done);
    EXPECT_EQ(start.exports, std::vector<std::string>{}) << "ckpt.save_hf is never";
  }
  world().barrier();
  ControlledRun again(options(), 1);
  EXPECT_TRUE(again.resumed);
  const auto first = fs::last_write_time(in("run/ckpt/step-000001/manifest.json"));
  EXPECT_EQ(again.control.finish(again.state), ExitCode::done);
  world().barrier();
  EXPECT_EQ(fs::last_write_time(in("run/ckpt/step-000001/manifest.json")), first);
  world().barrier();
}

TEST_F(Control, AStoppedRunSavesAndTheNextGoesOnWhereItStood) {
  RunState left;
  {
    ControlledRun start(options({"ckpt.interval=0"}), 5);
    EXPECT_EQ(start.iterate(), std::nullopt);
    touch("run/stop");
    start.parts.pending = world().rank() == 0 ? "rollout" : "";
    EXPECT_EQ(start.iterate(), ExitCode::stopped_with_checkpoint);
    left = start.state;
    world().barrier();
  }
  EXPECT_EQ(saved(), std::vector<int64_t>{2});
  EXPECT_TRUE(exists("run/stopped"));
  EXPECT_FALSE(exists("run/stop"));
  EXPECT_EQ(last_start("run").at("how"), "stopped");
  EXPECT_EQ(last_start("run").at("exit_code"), 75);
  world().barrier();
  ControlledRun next(options({"ckpt.interval=0"}), 5);
  EXPECT_TRUE(next.resumed);
  EXPECT_EQ(next.state.iteration, 2);
  EXPECT_EQ(next.state.rewards.size(), left.rewards.size());
  EXPECT_EQ(next.state.training, left.training);
  EXPECT_EQ(next.state.metrics_cursor, left.metrics_cursor);
  EXPECT_EQ(next.found.pending, world().rank() == 0 ? "rollout" : "");
  EXPECT_EQ(next.actor.model->steps(), 2);
}

// Where the run lies when it is left, and what a start finds then.
TEST_F(Control, AnIterationIsLeftWithWhatIsDoneOfIt) {
  struct Case {
    const char* phase;
    int64_t mini_batch;
    std::string unfinished;  // of each rank
    const char* interval;    // 1: the iteration before is saved already
    std::vector<int64_t> saved;
  };
  const Case cases[] = {{phase::between, 0, "", "1", {1}},
                        {phase::between, 0, "", "0", {1}},
                        {phase::reward, 0, "", "1", {1, 2}},
                        {phase::train, 3, "steps", "1", {1, 2}},
                        {phase::evaluate, 8, "numbers", "0", {2}}};
  for (const Case& one : cases) {
    const Overrides overrides{base::text("ckpt.interval=", one.interval), "ckpt.background=false"};
    int64_t began = 0;
    {
      ControlledRun start(options(overrides), 5);
      EXPECT_EQ(start.iterate(), std::nullopt);
      began = std::ssize(saved());
      start.state.phase = one.phase;
      start.state.mini_batch = one.mini_batch;
      EXPECT_EQ(start.control.leave_inside(start.state, one.unfinished),
                ExitCode::stopped_with_checkpoint);
      EXPECT_TRUE(start.run.policy.is_leaving());
      EXPECT_EQ(saved(), one.saved) << one.phase;
    }
    EXPECT_EQ(began, std::string(one.interval) == "1" ? 1 : 0);
    world().barrier();
    {
      const ControlledRun next(options(overrides), 5);
      EXPECT_EQ(next.state.iteration, 1);
      EXPECT_EQ(next.state.phase, one.phase);
      EXPECT_EQ(next.state.mini_batch, one.mini_batch);
      std::string all;
      for (int rank = 0; rank < world().size(); ++rank) all += one.unfinished;
      EXPECT_EQ(next.found.unfinished, world().rank() == 0 ? all : "");
    }
    world().barrier();
    if (world().rank() == 0) fs::remove_all(in("run"));
    world().barrier();
  }
}

// Exports never end a run; only one that is missing at the very end changes the exit code.
TEST_F(Control, AnExportThatFailsIsAWarningUntilTheEnd) {
  {
    ControlledRun start(options({"ckpt.save_hf=checkpoint", "ckpt.background=false"}), 2);
    start.export_error = ExitCode::io_error;
    EXPECT_EQ(start.iterate(), std::nullopt);
    EXPECT_THAT(start.exports, ElementsAre("hf-step-000001"));
    EXPECT_EQ(start.iterate(), std::nullopt);
    EXPECT_EQ(start.control.finish(start.state), ExitCode::io_error);
    EXPECT_EQ(saved(), (std::vector<int64_t>{1, 2})) << "the checkpoint is whole";
  }
  EXPECT_EQ(last_start("run").at("exit_code"), 74);
  EXPECT_EQ(last_start("run").at("how"), "done");
  world().barrier();
  ControlledRun wrong(options({"ckpt.save_hf=end"}), 2);
  wrong.export_error = ExitCode::internal;
  EXPECT_THAT(error_of(ExitCode::internal, [&] { wrong.control.finish(wrong.state); }),
              HasSubstr("no room"))
      << "what is no fault of the disk is not passed over";
}

}  // namespace
}  // namespace trireme::driver
