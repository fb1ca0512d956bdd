#include <gtest/gtest.h>

#include "driver/progress.hpp"
#include "trireme/base/error.hpp"

namespace trireme::driver {
namespace {

TEST(Progress, TextRoundTrip) {
  Progress progress;
  progress.iteration = 7;
  progress.version = 8;
  progress.actor_steps = 70;
  progress.kl_coefficient = 0.1 + 0.2;
  progress.metrics_cursor = int64_t{1} << 40;
  progress.sampler = {{100, 20}, {64, 3}};
  progress.ptx_sampler = {{50}, {7}};
  progress.best = {"eval_loss", 6, 1.0 / 7};
  progress.rewards = {0.25, 1.0 / 3};
  progress.command = "ppo";
  progress.deck = "[run]\ndir = \"a b\"\n";
  EXPECT_EQ(progress_from_json(to_json(progress)), progress);
}

TEST(Progress, MalformedTextIsRefused) {
  const std::string whole = to_json(Progress{});
  EXPECT_THROW(progress_from_json(whole.substr(0, whole.size() / 2)), UserError);
  EXPECT_THROW(progress_from_json("{}"), UserError);
  EXPECT_THROW(progress_from_json("[]"), UserError);
}

}  // namespace
}  // namespace trireme::driver
