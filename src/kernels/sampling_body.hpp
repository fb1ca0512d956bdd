// Passes over a row of logits for sampling.cpp; see lane_kernels_body.hpp.
#pragma once

#include "trireme/kernels/vector16.hpp"

namespace {

// Up to sixteen logits; lanes beyond `left` are the lowest number.
template <class T>
TRIREME_LANES_INLINE trireme::kernels::lanes::Float take(const T* from, int64_t left) {
  namespace lanes = trireme::kernels::lanes;
  return lanes::load(from, left < lanes::count ? left : lanes::count, -__FLT_MAX__);
}

template <class T>
int64_t argmax(const T* logits, int64_t count) {
  namespace lanes = trireme::kernels::lanes;
  lanes::Float best = lanes::broadcast(-__FLT_MAX__);
  for (int64_t i = 0; i < count; i += lanes::count)
    best = lanes::max(best, take(logits + i, count - i));
  const float wanted = lanes::horizontal_max(best);
  for (int64_t i = 0; i < count; i += lanes::count) {
    const lanes::Float v = take(logits + i, count - i);
    for (int64_t j = 0; j < lanes::count && i + j < count; ++j) {
      if (v[j] == wanted) return i + j;
    }
  }
  return 0;  // only NaN: any id will do
}

template <class T>
int64_t pass(const T* logits, int64_t begin, int64_t end, float scale, float max, double target) {
  namespace lanes = trireme::kernels::lanes;
  double sum = 0;
  int64_t last = begin;
  for (int64_t i = begin; i < end; i += lanes::count) {
    const lanes::Float p =
        lanes::exp(lanes::max(take(logits + i, end - i) * scale - max, lanes::broadcast(-1e30f)));
    for (int64_t j = 0; j < lanes::count && i + j < end; ++j) {
      sum += static_cast<double>(p[j]);
      if (p[j] > 0) last = i + j;
      if (sum > target) return i + j;
    }
  }
  return last;
}

template <class T>
int64_t at_least(const T* logits, int64_t count, float scale, float threshold, int32_t* index,
                 float* z) {
  namespace lanes = trireme::kernels::lanes;
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += lanes::count) {
    const lanes::Float v = take(logits + i, count - i) * scale;
    if (!(lanes::horizontal_max(v) >= threshold)) continue;
    for (int64_t j = 0; j < lanes::count && i + j < count; ++j) {
      if (!(v[j] >= threshold)) continue;
      index[found] = static_cast<int32_t>(i + j);
      z[found++] = v[j];
    }
  }
  return found;
}

}  // namespace
