// The trainers' state between two iterations, without the weights.
#pragma once

#include <cstdint>

namespace trireme::learn {

struct TrainingState {
  int64_t actor_steps = 0;  // optimizer steps
  int64_t critic_steps = 0;
  double kl_coefficient = 0;
  bool operator==(const TrainingState&) const = default;
};

}  // namespace trireme::learn
