// Online log-sum-exp of one row of logits that arrives in chunks, in one fixed summation order on
// every instruction set: sixteen fp32 lanes per chunk, chunk sums added in double. Trainer and
// generator use the same chunks, so that both get the same bits. No Torch, no allocation.
#pragma once

#include <cstdint>
#include <limits>

namespace trireme::kernels {

// Chunk length, in rows of the vocabulary, that log-probs are computed with unless the caller says
// otherwise.
inline constexpr int64_t vocabulary_chunk = 4096;

// Running statistics of a row.
struct LogSumExp {
  float max = -std::numeric_limits<float>::infinity();
  double sum = 0;       // of exp(z - max)
  double weighted = 0;  // of exp(z - max) * (z - max); kept by update_with_entropy only

  float log_sum_exp() const;
  float entropy() const;  // log_sum_exp - sum(softmax(z) z)
};

// z[i] = logits[i] * scale, scale = 1 / temperature. A bf16 value is given by its bits.
void update(LogSumExp& row, const float* logits, int64_t count, float scale);
void update(LogSumExp& row, const uint16_t* logits, int64_t count, float scale);
void update_with_entropy(LogSumExp& row, const float* logits, int64_t count, float scale);
void update_with_entropy(LogSumExp& row, const uint16_t* logits, int64_t count, float scale);

// Replaces a chunk of logits by the gradient with respect to them, the target's own term apart:
//   p = exp(z - log_sum_exp);  logits[i] = -scale * p * (grad_log_prob + grad_entropy * (z -
//   log_sum_exp + entropy))
struct SoftmaxGradient {
  float scale = 1;
  float log_sum_exp = 0;
  float entropy = 0;        // counts when grad_entropy != 0
  float grad_log_prob = 0;  // of the row's log-prob
  float grad_entropy = 0;   // of the row's entropy
};
void softmax_gradient(const SoftmaxGradient& row, float* logits, int64_t count);
void softmax_gradient(const SoftmaxGradient& row, uint16_t* logits, int64_t count);

}  // namespace trireme::kernels
