// Sixteen fp32 lanes by the compiler's vector extension, for kernels that are written once and compiled once per instruction
// set: files with flags of their own, chosen at run time by base::active_isa(). The lanes and their order are the same in all
// of them, and contraction is off (cmake/TriremeToolchain.cmake), so the results are too. Everything is inlined or has internal
// linkage, so that no code for a newer CPU gets into functions that an older one runs (tests/style/check_isa_objects.py looks).
// For the kernels of this module and of model.
#pragma once

#include <cstdint>
#include <cstring>

#define TRIREME_LANES_INLINE inline __attribute__((always_inline))

#pragma GCC diagnostic ignored "-Wpsabi"  // always inlined: the ABI of wide vector arguments does not matter

namespace trireme::kernels::lanes {
namespace {

constexpr int64_t count = 16;
typedef float Float __attribute__((vector_size(64)));
typedef int32_t Int __attribute__((vector_size(64)));
typedef uint32_t Word __attribute__((vector_size(64)));
typedef uint16_t Half __attribute__((vector_size(32)));

// The sixteen lanes as registers of the instruction set that this file is compiled for. GCC splits sums and products of wider
// vectors by itself, but takes their comparisons and conversions apart into single lanes.
#if defined(__AVX512F__)
constexpr int registers = 1;
#elif defined(__AVX2__)
constexpr int registers = 2;
#else
constexpr int registers = 4;
#endif
typedef float FloatRegister __attribute__((vector_size(64 / registers)));
typedef uint32_t WordRegister __attribute__((vector_size(64 / registers)));
typedef uint16_t HalfRegister __attribute__((vector_size(32 / registers)));

// op(a, b), a register at a time. V: vectors of one register or of several.
template <class V, class Op>
TRIREME_LANES_INLINE V by_register(V a, V b, Op&& op) {
  constexpr auto parts = sizeof(V) / sizeof(FloatRegister);
  FloatRegister x[parts], y[parts];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
  for (size_t i = 0; i < parts; ++i) x[i] = op(x[i], y[i]);
  std::memcpy(&a, x, sizeof a);
  return a;
}

TRIREME_LANES_INLINE Float load(const float* from) {
  Float out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
TRIREME_LANES_INLINE Float load(const uint16_t* from) {  // bf16
  HalfRegister bits[registers];
  WordRegister wide[registers];
  std::memcpy(bits, from, sizeof bits);
  for (int i = 0; i < registers; ++i) wide[i] = __builtin_convertvector(bits[i], WordRegister) << 16;
  Float out;
  std::memcpy(&out, wide, sizeof out);
  return out;
}
TRIREME_LANES_INLINE void store(float* to, Float value) { std::memcpy(to, &value, sizeof value); }
// bf16: round to nearest even; a NaN keeps its sign and becomes quiet (base/bf16.hpp).
TRIREME_LANES_INLINE void store(uint16_t* to, Float value) {
  const Word bits = (Word)value;
  const Word rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Word quiet = (bits >> 16) | 0x40u;
  const Word is_nan = (Word)((0x7f800000 - (Int)(bits & 0x7fffffffu)) >> 31);  // all ones or none
  const Word chosen = (quiet & is_nan) | (rounded & ~is_nan);
  WordRegister wide[registers];
  HalfRegister out[registers];
  std::memcpy(wide, &chosen, sizeof wide);
  for (int i = 0; i < registers; ++i) out[i] = __builtin_convertvector(wide[i], HalfRegister);
  std::memcpy(to, out, sizeof out);
}
// The first n <= 16 elements, the other lanes `fill`.
template <class T>
TRIREME_LANES_INLINE Float load(const T* from, int64_t n, float fill = 0) {
  if (n == count) return load(from);
  T part[count] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = from[i];
  Float out = load(part);
  for (int64_t i = n; i < count; ++i) out[i] = fill;
  return out;
}
template <class T>
TRIREME_LANES_INLINE void store(T* to, Float value, int64_t n) {
  if (n == count) return store(to, value);
  T part[count];
  store(part, value);
  for (int64_t i = 0; i < n; ++i) to[i] = part[i];
}
// The value as it would come back from memory of type T.
TRIREME_LANES_INLINE Float rounded(Float value, const float*) { return value; }
TRIREME_LANES_INLINE Float rounded(Float value, const uint16_t*) {
  uint16_t buffer[count];
  store(buffer, value);
  return load(buffer);
}

// Calls body(i, n) for i = 0, 16, ... with n = 16, and once with the rest; body sees n as a constant 16 where it is one.
template <class Body>
TRIREME_LANES_INLINE void for_each_vector(int64_t elements, Body&& body) {
  int64_t i = 0;
  for (; i + count <= elements; i += count) body(i, count);
  if (i < elements) body(i, elements - i);
}

// The functions of one argument take vectors of any number of lanes (V).
template <class V>
TRIREME_LANES_INLINE V max(V a, V b) {
  return by_register(a, b, [](FloatRegister x, FloatRegister y) __attribute__((always_inline)) { return x > y ? x : y; });
}
// A NaN stays one.
template <class V>
TRIREME_LANES_INLINE V clamp(V x, float low, float high) {
  return by_register(x, x, [low, high](FloatRegister y, FloatRegister) __attribute__((always_inline)) {
    y = y < low ? FloatRegister{} + low : y;
    return y > high ? FloatRegister{} + high : y;
  });
}
// `y` where x >= low or x is NaN, else 0.
template <class V>
TRIREME_LANES_INLINE V zero_below(V x, float low, V y) {
  return by_register(x, y, [low](FloatRegister a, FloatRegister b) __attribute__((always_inline)) {
    return a < low ? FloatRegister{} : b;
  });
}

// exp(x) within 2 ulp for -87.3 <= x <= 88: 2^n times a polynomial of degree 6 (Cephes expf).
template <class V>
TRIREME_LANES_INLINE V exp_in_range(V x) {
  using Whole = decltype(x < x);     // as many lanes of int32_t
  const V magic = V{} + 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
  const V shifted = x * 1.44269504f + magic;
  const V n = shifted - magic;
  const V r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  V p = V{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  return p * (V)(((Whole)shifted - (Whole)magic + 127) << 23);
}
// 0 below -87.3; x <= 88.
template <class V>
TRIREME_LANES_INLINE V exp(V x) {
  return zero_below(x, -87.3f, exp_in_range(clamp(x, -87.3f, 88.f)));
}
// Below -87 that of -87, never 0, and above 88 that of 88.
template <class V>
TRIREME_LANES_INLINE V exp_above_zero(V x) {
  return exp_in_range(clamp(x, -87.f, 88.f));
}
TRIREME_LANES_INLINE Float sigmoid(Float x) { return 1.f / (1.f + exp_above_zero(-x)); }

TRIREME_LANES_INLINE float horizontal_max(Float v) {
  float out = v[0];
  for (int i = 1; i < count; ++i) out = out > v[i] ? out : v[i];
  return out;
}
// In order of the lanes.
TRIREME_LANES_INLINE double horizontal_sum(Float v) {
  double out = 0;
  for (int i = 0; i < count; ++i) out += static_cast<double>(v[i]);
  return out;
}
// Halves onto halves, in fp32.
TRIREME_LANES_INLINE float tree_sum(Float v) {
  float a[count];
  std::memcpy(a, &v, sizeof a);
  for (int64_t width = count / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}

}  // namespace
}  // namespace trireme::kernels::lanes
