// A run whose policy collapses is ended before it burns the rest of its allocation:
// train.divergence.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/config/options.hpp"

namespace trireme::learn {

class Divergence {
 public:
  explicit Divergence(const config::DivergenceOptions& limits) : limits_(limits) {}
  // Of one iteration, the same on every rank. NaN: not computed in this run, and never a reason.
  struct Signs {
    double kl, entropy, reward;
  };
  // After each iteration. Throws UserError(internal) on all of them when limits were passed in
  // train.divergence.patience iterations in a row; earlier saves stay.
  void look_at(const Signs& now);

 private:
  // Names what is beyond its limit; empty: nothing.
  std::string complaint(const Signs& now) const;

  config::DivergenceOptions limits_;
  double best_reward_ = 0;
  bool seen_ = false;
  int64_t in_a_row_ = 0;
};

}  // namespace trireme::learn
