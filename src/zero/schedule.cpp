#include "trireme/zero/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/base/error.hpp"

namespace trireme::zero {

LearningRate::LearningRate(const config::OptimizerOptions& options, int64_t steps)
    : kind_(options.lr_scheduler),
      base_(options.adam.lr),
      min_ratio_(options.min_lr_ratio),
      warmup_(static_cast<int64_t>(std::ceil(static_cast<double>(steps) * options.warmup_ratio))),
      steps_(steps) {
  VALIDATE(steps > 0, ExitCode::configuration, "a learning-rate schedule over ", steps,
           " optimizer steps (the run would never update): raise run.iterations or lower "
           "train.batch_size");
  VALIDATE(options.warmup_ratio >= 0 && options.warmup_ratio <= 1, ExitCode::configuration,
           "warmup_ratio = ", options.warmup_ratio,
           " is not between 0 and 1: it is the share of the optimizer steps that warm up");
  VALIDATE(options.min_lr_ratio >= 0 && options.min_lr_ratio <= 1, ExitCode::configuration,
           "min_lr_ratio = ", options.min_lr_ratio,
           " is not between 0 and 1: it is the last learning rate over the first");
}

double LearningRate::at(int64_t step) const { return base_ * factor(step); }

double LearningRate::at_or_last(int64_t step) const { return at(std::min(step, steps_)); }

double LearningRate::factor(int64_t step) const {
  if (step < warmup_)
    return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup_));
  const auto rest = static_cast<double>(std::max<int64_t>(1, steps_ - warmup_));
  const double progress = static_cast<double>(step - warmup_) / rest;
  switch (kind_) {
    case config::LrScheduler::constant_with_warmup: return 1;
    case config::LrScheduler::linear: return std::max(0.0, 1 - progress);
    case config::LrScheduler::cosine_with_min_lr: {
      const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
      return std::max(0.0, cosine * (1 - min_ratio_) + min_ratio_);
    }
  }
  throw InternalError("unknown learning-rate schedule");
}

}  // namespace trireme::zero
