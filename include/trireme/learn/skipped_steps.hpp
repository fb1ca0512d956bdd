// Optimizer steps that are left out because their gradient is not finite: a few in a row may pass,
// a model that has a NaN in it does not get better.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

class SkippedSteps {
 public:
  // `most` in a row may be left out (train.max_skipped_steps); -1: any number.
  explicit SkippedSteps(int64_t most) : most_(most) {}
  // After each step of the model named, on every trainer alike. `talks`: this rank warns. Throws
  // UserError(internal) for one too many, with the first tensor and rank.
  void count(const std::string& model, const zero::StepResult& result, bool talks);

 private:
  int64_t most_;
  int64_t in_a_row_ = 0;
};

}  // namespace trireme::learn
