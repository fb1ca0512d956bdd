// A run whose policy collapses is ended before it burns the rest of its allocation: train.divergence.
#pragma once

#include <cstdint>
#include <string>

#include "driver/metrics.hpp"
#include "trireme/config/options.hpp"

namespace trireme::driver {

class Divergence {
 public:
  explicit Divergence(const config::DivergenceOptions& limits) : limits_(limits) {}
  // After each iteration, with the same metrics on every rank. Throws UserError(internal) on all of them when limits were passed in
  // train.divergence.patience iterations in a row; what was saved before stays.
  void look_at(const IterationMetrics& metrics);

 private:
  // What is beyond its limit, in words; empty: nothing.
  std::string complaint(const IterationMetrics& metrics) const;

  config::DivergenceOptions limits_;
  double best_reward_ = 0;
  bool seen_ = false;
  int64_t in_a_row_ = 0;
};

}  // namespace trireme::driver
