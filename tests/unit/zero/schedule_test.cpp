#include "torch/torch.hpp"

#include "trireme/zero/schedule.hpp"

#include <gtest/gtest.h>

#include "support/golden.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

config::LrScheduler scheduler(const std::string& word) {
  if (word == "linear") return config::LrScheduler::linear;
  if (word == "constant_with_warmup") return config::LrScheduler::constant_with_warmup;
  EXPECT_EQ(word, "cosine_with_min_lr");
  return config::LrScheduler::cosine_with_min_lr;
}

TEST(LearningRate, EqualsTransformers) {
  const auto cases = Golden::instance().starting_with("lr.");
  EXPECT_EQ(cases.size(), 5u);
  for (const GoldenCase* c : cases) {
    config::OptimizerOptions options;
    options.adam.lr = c->number("base_lr").value();
    options.lr_scheduler = scheduler(c->word("scheduler").value());
    options.warmup_ratio = c->number("warmup_ratio").value();
    options.min_lr_ratio = c->number("min_lr_ratio").value();
    const zero::LearningRate rate(options, static_cast<int64_t>(c->number("steps").value()));
    EXPECT_EQ(rate.warmup_steps(), static_cast<int64_t>(c->number("warmup_steps").value()));
    at::Tensor got = at::zeros(c->output("lr").sizes(), at::kDouble);
    for (int64_t k = 0; k < got.numel(); ++k) got[k] = rate.at(k);
    EXPECT_TRUE(c->matches("lr", got)) << c->name;
    EXPECT_TRUE(c->matches("factor", got.div(options.adam.lr))) << c->name;
  }
}

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
