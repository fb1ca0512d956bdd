// Reverse scans, a sequence per team: the recursion goes through one thread, whose order of
// additions is that of the formula.
#pragma once

#include <cstdint>

#include "trireme/base/kernel_function.hpp"

namespace trireme::kernels {

struct GaeScan {
  const int64_t* cu_seqlens;
  const float* values;
  const float* rewards;
  const uint8_t* mask;
  float gamma;
  float lambda;
  float* advantages;
  float* returns;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t sequence) const {
    if (team.rank() != 0) return;
    float next_value = 0.f;
    float next_advantage = 0.f;
    for (int64_t t = cu_seqlens[sequence + 1] - 1; t >= cu_seqlens[sequence]; --t) {
      const bool action =
          mask[t] != 0;  // selected, not multiplied: what lies under the mask may be NaN
      const float value = action ? values[t] : 0.f;
      const float reward = action ? rewards[t] : 0.f;
      const float delta = reward + gamma * next_value - value;
      const float advantage = delta + gamma * lambda * next_advantage;
      advantages[t] = advantage;
      returns[t] = advantage + value;
      next_value = value;
      next_advantage = advantage;
    }
  }
};

struct ReturnScan {
  const int64_t* cu_seqlens;
  const float* rewards;
  const uint8_t* mask;
  float gamma;
  float* returns;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t sequence) const {
    if (team.rank() != 0) return;
    float next = 0.f;
    for (int64_t t = cu_seqlens[sequence + 1] - 1; t >= cu_seqlens[sequence]; --t) {
      next = (mask[t] != 0 ? rewards[t] : 0.f) + gamma * next;
      returns[t] = next;
    }
  }
};

}  // namespace trireme::kernels
