// Sixteen fp32 lanes by the compiler's vector extension. A function marked TRIREME_CLONES is compiled for several
// instruction sets and chosen at load time; the lanes and their order are the same in all of them, and contraction is
// off (cmake/TriremeToolchain.cmake), so the results are too.
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
TRIREME_LANES_INLINE void store(uint16_t* to, Float value) {  // bf16, round to nearest even; no NaN comes here
  const Word bits = (Word)value;
  const Half out = __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, Half);
  std::memcpy(to, &out, sizeof out);
}
// The first n < 16 elements, the rest `fill`.
TRIREME_LANES_INLINE Float load_part(const float* from, int64_t n, float fill) {
  float values[count];
  for (int64_t i = 0; i < count; ++i) values[i] = i < n ? from[i] : fill;
  return load(values);
}
TRIREME_LANES_INLINE Float load_part(const uint16_t* from, int64_t n, float fill) {
  float values[count];
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = i < n ? static_cast<uint32_t>(from[i]) << 16 : 0;
    std::memcpy(&values[i], &bits, sizeof bits);
    if (i >= n) values[i] = fill;
  }
  return load(values);
}
template <class T>
TRIREME_LANES_INLINE void store_part(T* to, int64_t n, Float value) {
  T values[count];
  store(values, value);
  for (int64_t i = 0; i < n; ++i) to[i] = values[i];
}

TRIREME_LANES_INLINE Float max(Float a, Float b) { return a > b ? a : b; }
TRIREME_LANES_INLINE Float min(Float a, Float b) { return a < b ? a : b; }

// exp(x) within 2 ulp: 2^n times a polynomial of degree 6 (Cephes expf). 0 below -87.3; x <= 88.
TRIREME_LANES_INLINE Float exp(Float x) {
  const Float magic = Float{} + 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
  const Float clamped = min(max(x, Float{} - 87.3f), Float{} + 88.f);
  const Float shifted = clamped * 1.44269504f + magic;
  const Float n = shifted - magic;
  const Float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Float p = Float{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const Float power = (Float)(((Int)shifted - (Int)magic + 127) << 23);
  const Float y = p * power;
  return x < -87.3f ? Float{} : y;
}

TRIREME_LANES_INLINE float horizontal_max(Float v) {
  float out = v[0];
  for (int i = 1; i < count; ++i) out = out > v[i] ? out : v[i];
  return out;
}
TRIREME_LANES_INLINE double horizontal_sum(Float v) {
  double out = 0;
  for (int i = 0; i < count; ++i) out += static_cast<double>(v[i]);
  return out;
}

}  // namespace trireme::kernels::lanes
