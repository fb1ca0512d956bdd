// The softmax of one row of scores of a chunk of keys, the same in training and decode: exp(scale *
// score - max), summed in fp32 by lane j mod 16, lanes then as 8 + 8, 4 + 4, ..., whatever the
// width of the registers; and how chunks are put together.
#pragma once

#include "kernels/simd.hpp"
#include "trireme/kernels/vector_math.hpp"

namespace trireme::kernels {
namespace {

constexpr int64_t sum_lanes = 16;
constexpr int64_t sum_vectors = sum_lanes / simd::width;

// Lane i of the sums adds elements i, i + 16, ...
struct LaneSums {
  simd::Float parts[sum_vectors] = {};

  TRIREME_SIMD float total() const {
    float a[sum_lanes];
    for (int64_t i = 0; i < sum_vectors; ++i) simd::put(a + i * simd::width, parts[i]);
    for (int64_t half = sum_lanes / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) a[i] += a[i + half];
    }
    return a[0];
  }
};

TRIREME_SIMD float largest(const float* values, int64_t count) {
  simd::Float best = simd::splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + simd::width <= count; i += simd::width)
    best = lanes::max(best, simd::load(values + i));
  float out = -__builtin_inff();
  for (int64_t lane = 0; lane < simd::width; ++lane) out = out > best[lane] ? out : best[lane];
  for (; i < count; ++i) out = out > values[i] ? out : values[i];
  return out;
}

// Products of queries and keys to scores.
struct Scoring {
  float scale = 1;
  float cap = 0;  // above 0: cap * tanh(scale * product / cap)

  TRIREME_SIMD simd::Float operator()(simd::Float products) const {
    const simd::Float scaled = products * scale;
    return cap > 0 ? lanes::tanh(scaled / cap) * cap : scaled;
  }
};

// Keys [from, to) of a row that a query sees.
struct Seen {
  int64_t from = 0, to = 0;
};

// Lanes i with first + i < begin become zero.
TRIREME_SIMD simd::Float not_before(simd::Float value, int64_t first, int64_t begin) {
  if (first >= begin) return value;
  simd::Int lane;
  for (int64_t i = 0; i < simd::width; ++i) lane[i] = static_cast<int32_t>(i);
  return lane < simd::Int{} + static_cast<int32_t>(begin - first) ? simd::Float{} : value;
}

struct Softmax {
  float top = 0;    // the largest score
  float total = 0;  // of the exponentials
};
// Products of the keys that are seen to exponentials, zeros beside them from `start` to `padded`
// (multiples of 16): write(j, value) stores `width` of them, rounded to the element type for the
// product with the values. Where no key is seen the largest is minus infinity.
template <class Write>
TRIREME_SIMD Softmax soften(const float* products, Seen seen, int64_t start, int64_t padded,
                            const Scoring& score, Write&& write) {
  const bool any = seen.from < seen.to;
  const float top = any ? score(simd::splat(largest(products + seen.from, seen.to - seen.from)))[0]
                        : -__builtin_inff();
  LaneSums sums;
  for (int64_t j = start; j < padded; j += sum_lanes) {
    for (int64_t i = 0; i < sum_vectors; ++i) {
      const int64_t at = j + i * simd::width;
      const simd::Float p =
          not_before(simd::below(lanes::exp_above_zero(score(simd::load(products + at)) - top), at,
                                 any ? seen.to : at),
                     at, seen.from);
      sums.parts[i] += p;
      write(at, p);
    }
  }
  return {top, sums.total()};
}

// Adds what another chunk of a query's keys gives to what those before it gave: `sums` [count] are
// of exponentials times values. Chunks come in order of the keys. Products are rounded before they
// are added, on every instruction set. A chunk of which the query sees nothing (a window's first)
// leaves the next one's bits.
TRIREME_SIMD void merge(Softmax& into, float* sums, const Softmax& other, const float* other_sums,
                        int64_t count) {
  const float top = into.top > other.top ? into.top : other.top;
  const simd::Float kept = lanes::exp_above_zero(simd::splat(into.top - top)),
                    added = lanes::exp_above_zero(simd::splat(other.top - top));
  for (int64_t d = 0; d < count; d += simd::width) {
    simd::put(sums + d, simd::load(sums + d) * kept + simd::load(other_sums + d) * added);
  }
  into = {top, into.total * kept[0] + other.total * added[0]};
}

// a . b in the same lanes; either may end anywhere.
template <class T>
TRIREME_SIMD float lane_dot(const T* a, const T* b, int64_t count) {
  LaneSums sums;
  for (int64_t j = 0; j < count; j += sum_lanes) {
    for (int64_t i = 0; i < sum_vectors; ++i) {
      const int64_t at = j + i * simd::width, left = count - at;
      if (left > 0) sums.parts[i] += simd::widen(a + at, left) * simd::widen(b + at, left);
    }
  }
  return sums.total();
}

}  // namespace
}  // namespace trireme::kernels
