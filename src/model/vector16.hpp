// Sixteen floats at a time, by GCC's vector extension: loads and stores of fp32 and bf16, sums, exp. For the files that are
// compiled once per instruction set: everything has internal linkage and no standard template is instantiated, so no
// AVX-512 code can leak into functions that an older CPU runs.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int lanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

#define TRIREME_INLINE static inline __attribute__((always_inline))

TRIREME_INLINE Floats load(const float* from) {
  Floats out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
TRIREME_INLINE Floats load(const uint16_t* from) {
  Halves narrow;
  std::memcpy(&narrow, from, sizeof narrow);
  return (Floats)(__builtin_convertvector(narrow, Words) << 16);
}
TRIREME_INLINE void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }
// Round to nearest even; a NaN keeps its sign and becomes quiet.
TRIREME_INLINE void store(uint16_t* to, Floats value) {
  const Words bits = (Words)value;
  const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  const Words chosen = value != value ? quiet : rounded;
  const Halves narrow = __builtin_convertvector(chosen, Halves);
  std::memcpy(to, &narrow, sizeof narrow);
}

// The last n < 16 elements of a row, the other lanes 0.
template <class T>
TRIREME_INLINE Floats load_tail(const T* from, int64_t n) {
  T buffer[lanes] = {};
  std::memcpy(buffer, from, static_cast<size_t>(n) * sizeof(T));
  return load(buffer);
}
template <class T>
TRIREME_INLINE void store_tail(T* to, Floats value, int64_t n) {
  T buffer[lanes];
  store(buffer, value);
  std::memcpy(to, buffer, static_cast<size_t>(n) * sizeof(T));
}

// The value as it would come back from memory of type T.
TRIREME_INLINE Floats rounded(Floats value, const float*) { return value; }
TRIREME_INLINE Floats rounded(Floats value, const uint16_t*) {
  uint16_t buffer[lanes];
  store(buffer, value);
  return load(buffer);
}

TRIREME_INLINE float sum(Floats v) {
  float a[lanes];
  std::memcpy(a, &v, sizeof a);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}

// Calls body(i, n) for i = 0, 16, ... with n = 16, and once with the rest; body sees n as a constant 16 where it is one.
template <class Body>
TRIREME_INLINE void for_each_vector(int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, static_cast<int64_t>(lanes));
  if (i < count) body(i, count - i);
}
template <class T>
TRIREME_INLINE Floats load(const T* from, int64_t n) {
  return n == lanes ? load(from) : load_tail(from, n);
}
template <class T>
TRIREME_INLINE void store(T* to, Floats value, int64_t n) {
  if (n == lanes) {
    store(to, value);
  } else {
    store_tail(to, value, n);
  }
}

// exp(x) for x <= 88, within 2 units in the last place: 2^n times a degree-6 polynomial on [-ln2 / 2, ln2 / 2] (the
// minimax coefficients of Cephes' expf). Below -87 it goes to the smallest normal numbers, never to 0.
TRIREME_INLINE Floats exponential(Floats x) {
  x = x < -87.0f ? Floats{} - 87.0f : x;
  x = x > 88.0f ? Floats{} + 88.0f : x;
  const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Floats n = (x * 1.44269504088896341f + magic) - magic;
  const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
  return p * (Floats)exponent;
}
TRIREME_INLINE Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace
