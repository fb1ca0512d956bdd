#include "trireme/zero/schedule.hpp"

#include <gtest/gtest.h>

#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

TEST(LearningRate, RefusesWhatCannotBeScheduled) {
  config::OptimizerOptions options;
  EXPECT_THROW(zero::LearningRate(options, 0), UserError);
  options.warmup_ratio = 1.5;
  EXPECT_THROW(zero::LearningRate(options, 10), UserError);
  options.warmup_ratio = 0.1;
  options.min_lr_ratio = -0.1;
  EXPECT_THROW(zero::LearningRate(options, 10), UserError);
}

TEST(LearningRate, StaysWhereTheScheduleEnded) {
  config::OptimizerOptions options;
  options.adam.lr = 1;
  options.min_lr_ratio = 0.25;
  options.warmup_ratio = 0.1;
  const zero::LearningRate schedule(options, 20);
  EXPECT_EQ(schedule.at_or_last(0), 0);
  EXPECT_DOUBLE_EQ(schedule.at_or_last(20), 0.25);
  for (const int64_t step : {21, 25, 40, 1000})
    EXPECT_EQ(schedule.at_or_last(step), schedule.at_or_last(20)) << "the cosine would rise again";
}

}  // namespace
}  // namespace trireme::test
