// Learning-rate schedules. Source: transformers.get_scheduler as OpenRLHF calls it
// (utils/deepspeed/deepspeed.py), warm-up = ceil(steps * ratio).
#pragma once

#include <cstdint>

#include "trireme/config/choices.hpp"
#include "trireme/config/options.hpp"

namespace trireme::zero {

// The schedule of one optimizer. `steps` is fixed when a run starts and stored with its
// checkpoints.
class LearningRate {
 public:
  // options.warmup_ratio in [0, 1], options.min_lr_ratio in [0, 1] and steps > 0, else
  // UserError(configuration).
  LearningRate(const config::OptimizerOptions& options, int64_t steps);

  // For optimizer step k, from 0: with a warm-up the first step has learning rate 0. Beyond `steps`
  // as transformers: linear stays 0, the cosine rises again.
  double at(int64_t step) const;
  // The same for a run that goes on beyond its schedule (more iterations at a restart): it keeps
  // the last rate.
  double at_or_last(int64_t step) const;
  int64_t warmup_steps() const { return warmup_; }
  int64_t steps() const { return steps_; }

 private:
  double factor(int64_t step) const;  // at(step) / base learning rate

  config::LrScheduler kind_;
  double base_;
  double min_ratio_;
  int64_t warmup_;
  int64_t steps_;
};

}  // namespace trireme::zero
