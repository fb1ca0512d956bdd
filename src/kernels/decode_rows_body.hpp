// The row sums of decode_rows.hpp; see lane_kernels_body.hpp.
#pragma once

#include "trireme/kernels/vector16.hpp"

namespace {

template <class T>
void add_row(T* x, const T* y, int64_t count) {
  namespace lanes = trireme::kernels::lanes;
  lanes::for_each_vector(
      count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        lanes::store(x + i, lanes::load(x + i, n) + lanes::load(y + i, n), n);
      });
}

template <class T>
void reduce_row(const float* partials, int64_t parts, int64_t stride, T* y, int64_t count) {
  namespace lanes = trireme::kernels::lanes;
  lanes::for_each_vector(
      count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        lanes::Float sum = lanes::load(partials + i, n);
        for (int64_t r = 1; r < parts; ++r) sum += lanes::load(partials + r * stride + i, n);
        lanes::store(y + i, sum, n);
      });
}

}  // namespace
