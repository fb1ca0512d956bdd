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

}  // namespace
}  // namespace trireme::test
