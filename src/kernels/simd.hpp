// Vectors of one register, as wide as the flags of the including file allow: 16, 8 or 4 lanes of 4
// bytes. For the heavy kernels (decode GEMM, attention), whose *_body.hpp is compiled once per
// instruction set. Everything is inlined or has internal linkage, so that no code for a newer CPU
// gets into functions that an older one runs. Legend: a unit is 4 bytes of a row: one fp32 or a
// pair of bf16.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "trireme/kernels/vector16.hpp"

#define TRIREME_SIMD inline __attribute__((always_inline))

namespace trireme::kernels::simd {
namespace {

#if defined(__AVX512F__)
constexpr int64_t width = 16;
#elif defined(__AVX2__)
constexpr int64_t width = 8;
#else
constexpr int64_t width = 4;
#endif
typedef float Float __attribute__((vector_size(4 * width)));
typedef int32_t Int __attribute__((vector_size(4 * width)));
typedef uint32_t Word __attribute__((vector_size(4 * width)));
typedef uint16_t Half __attribute__((vector_size(2 * width)));

template <class V = Float, class T>
TRIREME_SIMD V load(const T* from) {
  V out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
TRIREME_SIMD Word broadcast(const void* from) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return Word{} + bits;
}
TRIREME_SIMD Float splat(float value) { return (Float)broadcast(&value); }

// fp32 from fp32 or bf16 in memory, and back: bf16 to nearest even, a NaN becomes quiet.
// VCVTNEPS2BF16 takes subnormal numbers for zeros, as VDPBF16PS does.
TRIREME_SIMD Float widen(const float* from) { return load(from); }
TRIREME_SIMD Float widen(const uint16_t* from) {
  return (Float)(__builtin_convertvector(load<Half>(from), Word) << 16);
}
TRIREME_SIMD void put(float* to, Float value) { std::memcpy(to, &value, sizeof value); }
TRIREME_SIMD Half to_bf16(Float value) {
#if defined(__AVX512BF16__)
  return (Half)_mm512_cvtneps_pbh((__m512)value);
#else
  const Word bits = (Word)value;
  const Word nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return __builtin_convertvector(value != value ? (bits >> 16) | 0x40u : nearest, Half);
#endif
}
TRIREME_SIMD void put(uint16_t* to, Float value) {
  const Half out = to_bf16(value);
  std::memcpy(to, &out, sizeof out);
}
// The first n <= width elements.
template <class T>
TRIREME_SIMD Float widen(const T* from, int64_t n) {
  if (n >= width) return widen(from);
  T part[width] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = from[i];
  return widen(part);
}
template <class T>
TRIREME_SIMD void put(T* to, Float value, int64_t n) {
  if (n >= width) return put(to, value);
  T part[width];
  put(part, value);
  for (int64_t i = 0; i < n; ++i) to[i] = part[i];
}
// The value as it would come back from memory of type T.
TRIREME_SIMD Float rounded(Float value, const float*) { return value; }
TRIREME_SIMD Float rounded(Float value, const uint16_t*) {
  return (Float)(__builtin_convertvector(to_bf16(value), Word) << 16);
}

// Lanes i with first + i < end keep their value, the others become zero.
TRIREME_SIMD Float below(Float value, int64_t first, int64_t end) {
  if (end - first >= width) return value;
  Int lane;
  for (int64_t i = 0; i < width; ++i) lane[i] = static_cast<int32_t>(i);
  const Int limit = Int{} + static_cast<int32_t>(end - first < 0 ? 0 : end - first);
  return lane < limit ? value : Float{};
}

// fp32 products are added with one rounding wherever the instruction set has fused multiply-add.
// x86-64 without AVX2 has not, and the C library's fmaf is a hundred times slower: there a product
// is rounded before it is added. Products of two bf16 are exact in fp32, so that bf16 gives the
// same bits either way.
#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMAF)
constexpr bool fused = true;
#else
constexpr bool fused = false;
#endif
TRIREME_SIMD Float multiply_add(Float a, Float b, Float sum) {
#if defined(__AVX512F__)
  return (Float)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Float)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
  return (Float)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#elif defined(__FP_FAST_FMAF)
  for (int64_t i = 0; i < width; ++i) sum[i] = __builtin_fmaf(a[i], b[i], sum[i]);
  return sum;
#else
  return a * b + sum;
#endif
}

// How the products of one unit are added to fp32 sums: in `steps`, one after another. left(unit, s)
// gives the operand of step s from a unit as in memory; the other operand is a unit too or, where
// there are two steps, widened to fp32: element(s) of the pair.
struct Fp32 {
  using Element = float;
  static constexpr int64_t per_unit = 1, steps = 1;
  static constexpr int64_t element(int64_t) { return 0; }
  static TRIREME_SIMD Word left(Word unit, int64_t) { return unit; }
  static TRIREME_SIMD Float add(Float sum, Word a, Word b) {
    return multiply_add((Float)a, (Float)b, sum);
  }
};
template <bool odd_first>
struct Bf16Widened {
  using Element = uint16_t;
  static constexpr int64_t per_unit = 2, steps = 2;
  static constexpr int64_t element(int64_t step) { return odd_first ? 1 - step : step; }
  static TRIREME_SIMD Word left(Word unit, int64_t step) {
    return element(step) == 1 ? unit & 0xffff0000u : unit << 16;
  }
  static TRIREME_SIMD Float add(Float sum, Word a, Word b) {
    return multiply_add((Float)a, (Float)b, sum);
  }
};
using Bf16Wide = Bf16Widened<true>;        // the order of VDPBF16PS
using Bf16Ascending = Bf16Widened<false>;  // the order of an fp32 product of widened values
#if defined(__AVX512BF16__)
struct Bf16Dot {
  using Element = uint16_t;
  static constexpr int64_t per_unit = 2, steps = 1;
  static constexpr int64_t element(int64_t) { return 0; }
  static TRIREME_SIMD Word left(Word unit, int64_t) { return unit; }
  static TRIREME_SIMD Float add(Float sum, Word a, Word b) {
    return (Float)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

// At the end of what other files call: the compiler leaves it out behind calls that pass vectors,
// and code for older instruction sets runs two to three times slower while the upper halves of the
// registers are in use.
TRIREME_SIMD void leave() {
#if defined(__AVX__)
  _mm256_zeroupper();
#endif
}

}  // namespace
}  // namespace trireme::kernels::simd
