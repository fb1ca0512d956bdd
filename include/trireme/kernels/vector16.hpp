// Sixteen fp32 lanes by the compiler's vector extension, for kernels that are written once and
// compiled once per instruction set: files with flags of their own, chosen at run time by
// base::active_isa(). The lanes and their order are the same in all of them, and contraction is off
// (cmake/TriremeToolchain.cmake), so the results are too. Everything is inlined or has internal
// linkage, so that no code for a newer CPU gets into functions that an older one runs
// (tests/style/check_isa_objects.py looks). For the kernels of this module and of model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define TRIREME_LANES_INLINE inline __attribute__((always_inline))

#pragma GCC diagnostic ignored \
    "-Wpsabi"  // always inlined: the ABI of wide vector arguments does not matter

namespace trireme::kernels::lanes {
namespace {

constexpr int64_t count = 16;

// One vector of sixteen lanes. On processors with narrower registers GCC keeps such vectors in
// memory and takes their comparisons and conversions apart lane by lane: kernels use Float below.
typedef float Vector __attribute__((vector_size(64)));
typedef uint32_t Word __attribute__((vector_size(64)));

// Registers of the instruction set that this file is compiled for.
#if defined(__AVX512F__)
constexpr size_t registers = 1;
#elif defined(__AVX2__)
constexpr size_t registers = 2;
#else
constexpr size_t registers = 4;
#endif
typedef float FloatRegister __attribute__((vector_size(64 / registers)));
typedef uint32_t WordRegister __attribute__((vector_size(64 / registers)));
typedef uint16_t HalfRegister __attribute__((vector_size(32 / registers)));

// The functions of one argument take vectors of any number of lanes (V).
template <class V>
TRIREME_LANES_INLINE V max(V a, V b) {
  return a > b ? a : b;
}
// A NaN stays one.
template <class V>
TRIREME_LANES_INLINE V clamp(V x, float low, float high) {
  x = x < low ? V{} + low : x;
  return x > high ? V{} + high : x;
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
  const V y = exp_in_range(clamp(x, -87.3f, 88.f));
  return x < -87.3f ? V{} : y;
}
// Below -87 that of -87, never 0, and above 88 that of 88.
template <class V>
TRIREME_LANES_INLINE V exp_above_zero(V x) {
  return exp_in_range(clamp(x, -87.f, 88.f));
}

// Sixteen lanes in as many registers as they take.
struct Float {
  FloatRegister part[registers];

  TRIREME_LANES_INLINE Float() : part{} {}
  TRIREME_LANES_INLINE Float(Vector all) { std::memcpy(part, &all, sizeof part); }
  TRIREME_LANES_INLINE operator Vector() const {
    Vector all;
    std::memcpy(&all, part, sizeof all);
    return all;
  }
  TRIREME_LANES_INLINE float operator[](int64_t lane) const {
    float all[count];
    std::memcpy(all, part, sizeof all);
    return all[lane];
  }
  TRIREME_LANES_INLINE void set(int64_t lane, float value) {
    float all[count];
    std::memcpy(all, part, sizeof all);
    all[lane] = value;
    std::memcpy(part, all, sizeof part);
  }
};

// op(register of a, register of b, ...) for each register.
template <class Op, class... Others>
TRIREME_LANES_INLINE Float each(Op&& op, const Float& a, const Others&... others) {
  Float out;
  for (size_t i = 0; i < registers; ++i) out.part[i] = op(a.part[i], others.part[i]...);
  return out;
}
TRIREME_LANES_INLINE Float broadcast(float value) {
  Float out;
  for (size_t i = 0; i < registers; ++i) out.part[i] = FloatRegister{} + value;
  return out;
}

#define TRIREME_LANES_LAMBDA(...) [&](__VA_ARGS__) __attribute__((always_inline))
TRIREME_LANES_INLINE Float operator+(const Float& a, const Float& b) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister x, FloatRegister y) { return x + y; }, a, b);
}
TRIREME_LANES_INLINE Float operator-(const Float& a, const Float& b) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister x, FloatRegister y) { return x - y; }, a, b);
}
TRIREME_LANES_INLINE Float operator*(const Float& a, const Float& b) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister x, FloatRegister y) { return x * y; }, a, b);
}
TRIREME_LANES_INLINE Float operator/(const Float& a, const Float& b) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister x, FloatRegister y) { return x / y; }, a, b);
}
TRIREME_LANES_INLINE Float operator-(const Float& a) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister x) { return -x; }, a);
}
TRIREME_LANES_INLINE Float operator+(const Float& a, float b) { return a + broadcast(b); }
TRIREME_LANES_INLINE Float operator-(const Float& a, float b) { return a - broadcast(b); }
TRIREME_LANES_INLINE Float operator*(const Float& a, float b) { return a * broadcast(b); }
TRIREME_LANES_INLINE Float operator+(float a, const Float& b) { return broadcast(a) + b; }
TRIREME_LANES_INLINE Float operator-(float a, const Float& b) { return broadcast(a) - b; }
TRIREME_LANES_INLINE Float operator*(float a, const Float& b) { return broadcast(a) * b; }
TRIREME_LANES_INLINE Float operator/(float a, const Float& b) { return broadcast(a) / b; }
TRIREME_LANES_INLINE Float& operator+=(Float& a, const Float& b) { return a = a + b; }

TRIREME_LANES_INLINE Float max(const Float& a, const Float& b) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister x, FloatRegister y) { return max(x, y); }, a, b);
}
TRIREME_LANES_INLINE Float clamp(const Float& x, float low, float high) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister y) { return clamp(y, low, high); }, x);
}
TRIREME_LANES_INLINE Float exp(const Float& x) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister y) { return exp(y); }, x);
}
TRIREME_LANES_INLINE Float exp_above_zero(const Float& x) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister y) { return exp_above_zero(y); }, x);
}
TRIREME_LANES_INLINE Float sigmoid(const Float& x) { return 1.f / (1.f + exp_above_zero(-x)); }

TRIREME_LANES_INLINE Float load(const float* from) {
  Float out;
  for (size_t i = 0; i < registers; ++i)
    std::memcpy(&out.part[i], from + i * (count / registers), sizeof out.part[i]);
  return out;
}
// Between 16-bit and 32-bit lanes. GCC 12 takes wide conversions of halves apart, where one
// instruction does them; and warns of its own header's forms without a mask.
TRIREME_LANES_INLINE WordRegister widened(HalfRegister bits) {
#if defined(__AVX512F__)
  return (WordRegister)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)bits);
#else
  return __builtin_convertvector(bits, WordRegister);
#endif
}
TRIREME_LANES_INLINE HalfRegister narrowed(WordRegister bits) {
#if defined(__AVX512F__)
  return (HalfRegister)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)bits);
#else
  return __builtin_convertvector(bits, HalfRegister);
#endif
}
// The bits of the nearest bf16, ties to even; a NaN keeps its sign and becomes quiet
// (base/bf16.hpp).
TRIREME_LANES_INLINE WordRegister bf16_bits(FloatRegister part) {
  const WordRegister bits = (WordRegister)part;
  const WordRegister rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const WordRegister quiet = (bits >> 16) | 0x40u;
  return part != part ? quiet : rounded;
}
TRIREME_LANES_INLINE Float load(const uint16_t* from) {  // bf16
  Float out;
  for (size_t i = 0; i < registers; ++i) {
    HalfRegister bits;
    std::memcpy(&bits, from + i * (count / registers), sizeof bits);
    out.part[i] = (FloatRegister)(widened(bits) << 16);
  }
  return out;
}
TRIREME_LANES_INLINE void store(float* to, const Float& value) {
  for (size_t i = 0; i < registers; ++i)
    std::memcpy(to + i * (count / registers), &value.part[i], sizeof value.part[i]);
}
TRIREME_LANES_INLINE void store(uint16_t* to, const Float& value) {  // bf16
  for (size_t i = 0; i < registers; ++i) {
    const HalfRegister out = narrowed(bf16_bits(value.part[i]));
    std::memcpy(to + i * (count / registers), &out, sizeof out);
  }
}
// The first n <= 16 elements, the other lanes `fill`.
template <class T>
TRIREME_LANES_INLINE Float load(const T* from, int64_t n, float fill = 0) {
  if (n == count) return load(from);
  T part[count] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = from[i];
  float all[count];
  store(all, load(part));
  for (int64_t i = n; i < count; ++i) all[i] = fill;
  return load(all);
}
template <class T>
TRIREME_LANES_INLINE void store(T* to, const Float& value, int64_t n) {
  if (n == count) return store(to, value);
  T part[count];
  store(part, value);
  for (int64_t i = 0; i < n; ++i) to[i] = part[i];
}
// The value as it would come back from memory of type T.
TRIREME_LANES_INLINE Float rounded(const Float& value, const float*) { return value; }
TRIREME_LANES_INLINE Float rounded(const Float& value, const uint16_t*) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister x) { return (FloatRegister)(bf16_bits(x) << 16); }, value);
}

// Calls body(i, n) for i = 0, 16, ... with n = 16, and once with the rest; body sees n as a
// constant 16 where it is one.
template <class Body>
TRIREME_LANES_INLINE void for_each_vector(int64_t elements, Body&& body) {
  int64_t i = 0;
  for (; i + count <= elements; i += count) body(i, count);
  if (i < elements) body(i, elements - i);
}

TRIREME_LANES_INLINE float horizontal_max(const Float& v) {
  float all[count];
  store(all, v);
  float out = all[0];
  for (int64_t i = 1; i < count; ++i) out = out > all[i] ? out : all[i];
  return out;
}
// In order of the lanes.
TRIREME_LANES_INLINE double horizontal_sum(const Float& v) {
  float all[count];
  store(all, v);
  double out = 0;
  for (int64_t i = 0; i < count; ++i) out += static_cast<double>(all[i]);
  return out;
}
// Halves onto halves, in fp32.
TRIREME_LANES_INLINE float tree_sum(const Float& v) {
  float a[count];
  store(a, v);
  for (int64_t width = count / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}

}  // namespace
}  // namespace trireme::kernels::lanes
