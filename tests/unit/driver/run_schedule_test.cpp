// When a run evaluates, which checkpoint is the best, and when a run ends early.
#include "trireme/driver/run_schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace trireme::driver {
namespace {

using ::testing::HasSubstr;

TEST(RunSchedule, EvaluatesEverySoManyIterationsAndAtTheEnd) {
  config::EvalOptions eval;
  eval.steps = 3;
  std::vector<int64_t> due;
  for (int64_t iteration = 1; iteration <= 10; ++iteration) {
    if (evaluation_due(eval, iteration, 10)) due.push_back(iteration);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{3, 6, 9, 10}));
  eval.steps = -1;
  EXPECT_FALSE(evaluation_due(eval, 10, 10)) << "switched off";
}

TEST(RunSchedule, TheFigureThatJudgesIsTheOneThatTheDeckNames) {
  config::CkptOptions ckpt;
  const std::vector<std::pair<std::string, double>> evaluation{{"eval_reward", 0.25},
                                                               {"eval_pass1", 0.5}};
  EXPECT_EQ(judged_value(ckpt, evaluation), std::nullopt);
  ckpt.best_metric = "eval_pass1";
  EXPECT_EQ(judged_value(ckpt, evaluation), 0.5);
  ckpt.best_metric = "eval_loss";
  EXPECT_THROW(judged_value(ckpt, evaluation), InternalError) << "a guard must not go quiet";
}

TEST(RunSchedule, AfterAnIterationARunSavesOrLeaves) {
  using job::StopReason;
  const AfterIteration nothing{}, save{.save = true}, served{.save = true, .serves_request = true};
  EXPECT_EQ(after_iteration(true, StopReason::none, false), nothing);
  EXPECT_EQ(after_iteration(true, StopReason::none, true), save);
  for (const bool due : {false, true}) {
    EXPECT_EQ(after_iteration(true, StopReason::save_and_go_on, due), served);
    for (const auto reason : {StopReason::warning_signal, StopReason::terminate_signal,
                              StopReason::interrupt, StopReason::stop_file, StopReason::walltime}) {
      EXPECT_EQ(after_iteration(true, reason, due).leave, reason);
      EXPECT_FALSE(after_iteration(true, reason, due).save) << "leaving saves";
      EXPECT_EQ(after_iteration(false, reason, due), nothing) << "the end of the run saves";
    }
  }
}

TEST(RunSchedule, TheBestCheckpointHasTheBestFiniteValueOfTheMetric) {
  config::CkptOptions ckpt;
  EXPECT_FALSE(better_checkpoint(ckpt, {}, 1, 0.5)) << "no metric is named";
  ckpt.best_metric = "eval_reward";
  const auto first = better_checkpoint(ckpt, {}, 2, -3.0);
  EXPECT_EQ(first, (BestCheckpoint{"eval_reward", 2, -3.0})) << "there was none";
  EXPECT_FALSE(better_checkpoint(ckpt, *first, 4, -3.0)) << "not better";
  EXPECT_FALSE(better_checkpoint(ckpt, *first, 4, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(better_checkpoint(ckpt, *first, 6, -2.5)->iteration, 6);
  ckpt.best_metric = "eval_loss";
  EXPECT_EQ(better_checkpoint(ckpt, *first, 8, 7.0)->value, 7.0) << "of another metric";
  EXPECT_FALSE(better_checkpoint(ckpt, {"eval_loss", 8, 7.0}, 10, 7.5)) << "a loss falls";
  EXPECT_TRUE(better_checkpoint(ckpt, {"eval_loss", 8, 7.0}, 10, 6.5));
}

TEST(RunSchedule, ARunEndsEarlyAtItsTargetOrWhenNothingGetsBetter) {
  config::CkptOptions ckpt;
  config::EvalOptions eval;
  eval.steps = 2;
  ckpt.best_metric = "eval_reward";
  RunState state;
  state.iteration = 8;
  EXPECT_FALSE(early_end(ckpt, eval, state)) << "nothing was evaluated";
  state.best = {"eval_reward", 4, 0.75};
  EXPECT_FALSE(early_end(ckpt, eval, state)) << "no rule ends it";
  ckpt.target = 0.8;
  EXPECT_FALSE(early_end(ckpt, eval, state));
  ckpt.target = 0.75;
  EXPECT_THAT(early_end(ckpt, eval, state).value(), HasSubstr("reaches ckpt.target = 0.75"));
  ckpt.target.reset();
  ckpt.patience = 3;
  EXPECT_FALSE(early_end(ckpt, eval, state)) << "two evaluations since";
  ckpt.patience = 2;
  EXPECT_THAT(early_end(ckpt, eval, state).value(), HasSubstr("2 evaluations brought no better"));
  state.best.metric = "eval_pass1";
  EXPECT_FALSE(early_end(ckpt, eval, state)) << "the best of a deck that named another metric";
  ckpt.best_metric = "eval_loss";
  ckpt.target = 1.5;
  state.best = {"eval_loss", 8, 1.4};
  EXPECT_TRUE(early_end(ckpt, eval, state)) << "a loss reaches its target from above";
}

}  // namespace
}  // namespace trireme::driver
