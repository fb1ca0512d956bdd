// Reverse scans over ragged sequences, one team per sequence. Pointers to host memory.
// Legend: B sequences, T packed columns; sequence i owns columns [cu_seqlens[i], cu_seqlens[i +
// 1]).
#pragma once

#include <cstdint>

namespace trireme::kernels {

struct Ragged {
  const int64_t* cu_seqlens;  // [B + 1]
  int64_t sequences;          // B
};

// Values of a critic and rewards, by the columns.
struct ValuedColumns {
  const float* values;   // [T]
  const float* rewards;  // [T]
  const uint8_t* mask;   // [T]
};

// Generalised advantage estimation (Schulman et al. 2016, eq. 16; OpenRLHF:
// get_advantages_and_returns), with values and rewards taken as 0 where the mask is 0, and the
// recursion running through such columns:
//   delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lambda A_{t+1};  returns = A + V
// Writes advantages and returns [T].
void gae(const Ragged& sequences, const ValuedColumns& columns, float gamma, float lambda,
         float* advantages, float* returns);

// G_t = mask_t r_t + gamma G_{t+1} (OpenRLHF: get_cumulative_returns)
void discounted_returns(const Ragged& sequences, const float* rewards, const uint8_t* mask,
                        float gamma, float* returns);

// Count, sum of (x - center) and of its square over the elements whose mask is 1, in double.
struct MaskedMoments {
  double count = 0;
  double sum = 0;
  double squares = 0;
};
MaskedMoments masked_moments(const float* x, const uint8_t* mask, int64_t count, double center);

}  // namespace trireme::kernels
