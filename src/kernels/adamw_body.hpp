// The optimizer's passes as loops for the compiler to vectorise: the same operations in the same
// order on every instruction set, without fused multiply-add. They are bound by memory (30 bytes
// per value), not by arithmetic.
#pragma once

#include <cstring>

#include "kernels/lane_kernels.hpp"
#include "trireme/base/bf16.hpp"
#include "trireme/kernels/vector16.hpp"

namespace {

using trireme::kernels::adamw_word;
using trireme::kernels::AdamWFactors;
using trireme::kernels::AdamWShard;

// `count` values; the new ones also go to `updated`.
TRIREME_LANES_INLINE void update_values(float* __restrict master, float* __restrict moment1,
                                        float* __restrict moment2, const float* __restrict gradient,
                                        const AdamWFactors& factors, int64_t count,
                                        float* __restrict updated) {
  const AdamWFactors f = factors;
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * f.clip;
    const float m = moment1[i] + (g - moment1[i]) * f.rate1;
    const float v = moment2[i] * f.beta2 + g * g * f.rate2;
    const float p =
        master[i] * f.decay - f.step_size * (m / (__builtin_sqrtf(v) * f.root_scale + f.eps));
    moment1[i] = m;
    moment2[i] = v;
    master[i] = p;
    updated[i] = p;
  }
}

// Bytes 0 or 1 to bits, the first to the lowest.
TRIREME_LANES_INLINE uint64_t pack_bits(const uint8_t* bytes) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < adamw_word / 8; ++i) {
    uint64_t eight = 0;
    for (int64_t j = 0; j < 8; ++j) eight |= static_cast<uint64_t>(bytes[8 * i + j]) << (8 * j);
    bits |= (eight * 0x0102040810204080u >> 56) << (8 * i);
  }
  return bits;
}

// Stores the compute values; bit i of the result: the bits of value i changed.
TRIREME_LANES_INLINE uint64_t store_compute(uint16_t* __restrict to, const float* __restrict values,
                                            int64_t count) {
  uint8_t differs[adamw_word] = {};
  uint16_t rounded[adamw_word];
  for (int64_t i = 0; i < count; ++i) rounded[i] = trireme::base::float_to_bf16(values[i]);
  for (int64_t i = 0; i < count; ++i) differs[i] = rounded[i] != to[i];
  for (int64_t i = 0; i < count; ++i) to[i] = rounded[i];
  return pack_bits(differs);
}
TRIREME_LANES_INLINE uint64_t store_compute(float* __restrict to, const float* __restrict values,
                                            int64_t count) {
  uint8_t differs[adamw_word] = {};
  uint32_t before[adamw_word], after[adamw_word];
  std::memcpy(before, to, static_cast<size_t>(count) * sizeof(float));
  std::memcpy(after, values, static_cast<size_t>(count) * sizeof(float));
  for (int64_t i = 0; i < count; ++i) differs[i] = before[i] != after[i];
  std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float));
  return pack_bits(differs);
}

TRIREME_LANES_INLINE uint64_t update_word(const AdamWShard& s, const AdamWFactors& factors,
                                          int64_t begin, int64_t count) {
  float updated[adamw_word];
  update_values(s.master + begin, s.moment1 + begin, s.moment2 + begin, s.gradient + begin, factors,
                count, updated);
  if (s.compute_bf16) return store_compute(s.compute_bf16 + begin, updated, count);
  if (s.compute_fp32) return store_compute(s.compute_fp32 + begin, updated, count);
  return 0;
}

int64_t adamw_words(const AdamWShard& s, const AdamWFactors& factors, int64_t first, int64_t last) {
  int64_t changed = 0;
  for (int64_t word = first; word < last; ++word) {
    const int64_t begin = word * adamw_word, left = s.elements - begin;
    const uint64_t bits = left >= adamw_word ? update_word(s, factors, begin, adamw_word)
                                             : update_word(s, factors, begin, left);
    if (s.changed) s.changed[word] = bits;
    changed += __builtin_popcountll(bits);
  }
  return changed;
}

// Sixteen running sums keep the additions independent of each other; they are added in a fixed
// order.
double sum_of_squares(const float* values, int64_t count) {
  double sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int j = 0; j < 16; ++j) {
      const double x = values[i + j];
      sums[j] += x * x;
    }
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < count; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

void cast_range(const float* __restrict values, uint16_t* __restrict out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = trireme::base::float_to_bf16(values[i]);
}

void add_range(float* __restrict sums, const uint16_t* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += trireme::base::bf16_to_float(values[i]);
}

void average_range(float* __restrict average, const float* __restrict values, float keep,
                   float rate, int64_t count) {
  for (int64_t i = 0; i < count; ++i) average[i] = average[i] * keep + values[i] * rate;
}

}  // namespace
