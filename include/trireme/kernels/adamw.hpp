// The optimizer pass on one rank's shard: clip, AdamW, cast to the compute dtype, and which of its
// values changed, reading and writing every byte once. Host memory; the same bits on every
// instruction set.
#pragma once

#include <cstdint>

namespace trireme::kernels {

// One optimizer step. Torch's AdamW (torch/optim/adamw.py, decoupled decay, no amsgrad):
//   g = clip_factor * gradient;  p -= lr * weight_decay * p
//   m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
struct AdamWStep {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  double clip_factor = 1;  // see clip_factor()
  int64_t step = 1;        // from 1, for the bias corrections
};

// Pointers into one parameter's shard; `elements` values each.
struct AdamWShard {
  float* master = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  const float* gradient = nullptr;
  uint16_t* compute_bf16 = nullptr;  // one of these two, or none
  float* compute_fp32 = nullptr;
  uint64_t* changed = nullptr;  // optional: bit i of the words tells whether compute value i
                                // changed; whole words written
  int64_t elements = 0;
};

// Updates the shard in place; returns how many compute-dtype values are not bitwise what they were
// (0 without a compute pointer). Uses the threads of at::parallel_for; the result does not depend
// on their number.
int64_t adamw(const AdamWShard& shard, const AdamWStep& step);

// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0. torch.nn.utils.clip_grad_norm_.
double clip_factor(double norm, double max_norm);

// Sum of squares, each block of 4096 in fp64, blocks added in order: the same bits for any number
// of threads.
double squared_norm(const float* values, int64_t elements);

// Round to nearest even, as LibTorch does; a NaN stays one (base/bf16.hpp).
void cast_to_bf16(const float* values, uint16_t* out, int64_t elements);

// average = beta * average + (1 - beta) * value (F27; OpenRLHF: utils/deepspeed/deepspeed.py,
// moving_average).
void moving_average(float* average, const float* values, double beta, int64_t elements);

}  // namespace trireme::kernels
