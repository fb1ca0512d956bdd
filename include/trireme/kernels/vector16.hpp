// Sixteen fp32 lanes by the compiler's vector extension, for kernels that are compiled for several instruction sets: whole files
// with flags of their own, or functions marked TRIREME_CLONES, chosen at load time. The lanes and their order are the same in
// all of them, and contraction is off (cmake/TriremeToolchain.cmake), so the results are too. Everything is inlined or has
// internal linkage, so that no code for a newer CPU gets into functions that an older one runs. For the kernels of this module and of model.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define TRIREME_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TRIREME_CLONES
#endif
#define TRIREME_LANES_INLINE inline __attribute__((always_inline))

#pragma GCC diagnostic ignored "-Wpsabi"  // always inlined: the ABI of wide vector arguments does not matter

namespace trireme::kernels::lanes {
namespace {

constexpr int64_t count = 16;
typedef float Float __attribute__((vector_size(64)));
typedef int32_t Int __attribute__((vector_size(64)));
typedef uint32_t Word __attribute__((vector_size(64)));
typedef uint16_t Half __attribute__((vector_size(32)));

TRIREME_LANES_INLINE Float load(const float* from) {
  Float out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
TRIREME_LANES_INLINE Float load(const uint16_t* from) {  // bf16
  Half bits;
  std::memcpy(&bits, from, sizeof bits);
  return (Float)(__builtin_convertvector(bits, Word) << 16);
}
TRIREME_LANES_INLINE void store(float* to, Float value) { std::memcpy(to, &value, sizeof value); }
// bf16: round to nearest even; a NaN keeps its sign and becomes quiet.
TRIREME_LANES_INLINE void store(uint16_t* to, Float value) {
  const Word bits = (Word)value;
  const Word rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Word quiet = (bits >> 16) | 0x40u;
  const Word chosen = value != value ? quiet : rounded;
  const Half out = __builtin_convertvector(chosen, Half);
  std::memcpy(to, &out, sizeof out);
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

TRIREME_LANES_INLINE Float max(Float a, Float b) { return a > b ? a : b; }
// A NaN stays one.
TRIREME_LANES_INLINE Float clamp(Float x, float low, float high) {
  x = x < low ? Float{} + low : x;
  return x > high ? Float{} + high : x;
}

// exp(x) within 2 ulp for -87.3 <= x <= 88: 2^n times a polynomial of degree 6 (Cephes expf).
TRIREME_LANES_INLINE Float exp_in_range(Float x) {
  const Float magic = Float{} + 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
  const Float shifted = x * 1.44269504f + magic;
  const Float n = shifted - magic;
  const Float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Float p = Float{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  return p * (Float)(((Int)shifted - (Int)magic + 127) << 23);
}
// 0 below -87.3; x <= 88.
TRIREME_LANES_INLINE Float exp(Float x) {
  const Float y = exp_in_range(clamp(x, -87.3f, 88.f));
  return x < -87.3f ? Float{} : y;
}
// Below -87 that of -87, never 0, and above 88 that of 88.
TRIREME_LANES_INLINE Float exp_above_zero(Float x) { return exp_in_range(clamp(x, -87.f, 88.f)); }
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
