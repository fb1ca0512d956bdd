// Log-sum-exp of a chunk and its gradient (log_sum_exp.hpp); see lane_kernels_body.hpp.
#pragma once

#include <cmath>

#include "trireme/kernels/log_sum_exp.hpp"
#include "trireme/kernels/vector16.hpp"

namespace {

namespace lanes = trireme::kernels::lanes;
using trireme::kernels::LogSumExp;
using trireme::kernels::SoftmaxGradient;

constexpr float infinity = __builtin_inff();
constexpr float lowest = -__FLT_MAX__;

// Far below zero instead of -infinity: the exponential of both is 0, but only one of them times 0
// is 0. A NaN stays one.
TRIREME_LANES_INLINE lanes::Float finite(lanes::Float u) {
  return lanes::max(lanes::broadcast(-1e30f), u);
}

template <class T>
TRIREME_LANES_INLINE float chunk_max(const T* logits, int64_t count, float scale) {
  lanes::Float best = lanes::broadcast(lowest);
  int64_t i = 0;
  for (; i + lanes::count <= count; i += lanes::count)
    best = lanes::max(best, lanes::load(logits + i) * scale);
  if (i < count) best = lanes::max(best, lanes::load(logits + i, count - i, lowest) * scale);
  return lanes::horizontal_max(best);
}

// Moves the sums to a new maximum.
TRIREME_LANES_INLINE void rescale(LogSumExp& row, float new_max) {
  if (row.sum > 0 && new_max > row.max) {
    const double shift = static_cast<double>(row.max) - static_cast<double>(new_max);
    const double factor = std::exp(shift);
    row.weighted = factor * (row.weighted + shift * row.sum);
    row.sum *= factor;
  }
  if (new_max > row.max) row.max = new_max;
}

template <bool with_entropy, class T>
TRIREME_LANES_INLINE void update_row(LogSumExp& row, const T* logits, int64_t count, float scale) {
  if (count == 0) return;
  rescale(row, chunk_max(logits, count, scale));
  lanes::Float sum{}, weighted{};
  const auto add = [&](lanes::Float logit) __attribute__((always_inline)) {
    const lanes::Float u = logit * scale - row.max;
    const lanes::Float e = lanes::exp(u);
    sum += e;
    if constexpr (with_entropy) weighted += e * finite(u);
  };
  int64_t i = 0;
  for (; i + lanes::count <= count; i += lanes::count) add(lanes::load(logits + i));
  if (i < count) add(lanes::load(logits + i, count - i, -infinity));
  row.sum += lanes::horizontal_sum(sum);
  if constexpr (with_entropy) row.weighted += lanes::horizontal_sum(weighted);
}

template <bool with_entropy, class T>
TRIREME_LANES_INLINE void gradient_row(const SoftmaxGradient& row, T* logits, int64_t count) {
  const float factor = -row.scale * row.grad_log_prob;
  const float entropy_factor = -row.scale * row.grad_entropy;
  const auto gradient = [&](lanes::Float logit) __attribute__((always_inline)) {
    const lanes::Float log_p = logit * row.scale - row.log_sum_exp;
    const lanes::Float p = lanes::exp(log_p);
    if constexpr (with_entropy)
      return p * (factor + entropy_factor * (finite(log_p) + row.entropy));
    return p * factor;
  };
  int64_t i = 0;
  for (; i + lanes::count <= count; i += lanes::count)
    lanes::store(logits + i, gradient(lanes::load(logits + i)));
  if (i < count) lanes::store(logits + i, gradient(lanes::load(logits + i, count - i)), count - i);
}

template <class T>
void update(LogSumExp& row, const T* logits, int64_t count, float scale) {
  update_row<false>(row, logits, count, scale);
}

template <class T>
void update_with_entropy(LogSumExp& row, const T* logits, int64_t count, float scale) {
  update_row<true>(row, logits, count, scale);
}

template <class T>
void softmax_gradient(const SoftmaxGradient& row, T* logits, int64_t count) {
  if (row.grad_entropy != 0) {
    gradient_row<true>(row, logits, count);
  } else {
    gradient_row<false>(row, logits, count);
  }
}

}  // namespace
