// The row kernels, written once with GCC's vector extension and compiled once per instruction set: included by
// row_kernels_{generic,avx2,avx512}.cpp, each with its own compiler flags. Everything has internal linkage and no standard
// template is instantiated, so no AVX-512 code can leak into functions that an older CPU runs.
#pragma once

#include <cstdint>
#include <cstring>

#include "row_kernels_table.hpp"

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

template <class T>
void rms_norm_rows(const T* x, const T* weight, T* y, float* inverse_rms, int64_t rows, int64_t columns, float epsilon) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = x + row * columns;
    T* out = y + row * columns;
    Floats squares{};
    for_each_vector(columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      const Floats v = load(in + i, n);
      squares += v * v;
    });
    const float r = 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(columns) + epsilon);
    if (inverse_rms) inverse_rms[row] = r;
    for_each_vector(columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      store(out + i, load(weight + i, n) * rounded(load(in + i, n) * r, in), n);
    });
  }
}

// With g = w * dy: dx = r * (g - x * r^2 * mean(g * x)), dw += dy * round(x * r).
template <class T>
void rms_norm_backward_rows(const T* x, const T* weight, const T* dy, const float* inverse_rms, T* dx, float* dweight, int64_t rows,
                            int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = x + row * columns;
    const T* slope = dy + row * columns;
    T* out = dx + row * columns;
    const float r = inverse_rms[row];
    Floats dot{};
    for_each_vector(columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      const Floats v = load(in + i, n);
      const Floats d = load(slope + i, n);
      dot += load(weight + i, n) * d * v;
      store(dweight + i, load(dweight + i, n) + d * rounded(v * r, in), n);
    });
    const float scale = sum(dot) / static_cast<float>(columns) * r * r;
    for_each_vector(columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      store(out + i, r * (load(weight + i, n) * load(slope + i, n) - load(in + i, n) * scale), n);
    });
  }
}

template <class T>
void swiglu(const T* gate, const T* up, T* y, int64_t count) {
  for_each_vector(count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    const Floats g = load(gate + i, n);
    store(y + i, g * sigmoid(g) * load(up + i, n), n);
  });
}

template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t count) {
  for_each_vector(count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    const Floats g = load(gate + i, n);
    const Floats d = load(dy + i, n);
    const Floats u = load(up + i, n);
    const Floats s = sigmoid(g);
    store(dgate + i, d * u * s * (1.0f + g * (1.0f - s)), n);
    store(dup + i, d * g * s, n);
  });
}

template <class T>
void rope_rows(const T* x, const int64_t* positions, const float* cos, const float* sin, T* y, int64_t tokens, int64_t heads,
               int64_t head_dim, float direction) {
  const int64_t half = head_dim / 2;
  for (int64_t token = 0; token < tokens; ++token) {
    const float* c = cos + positions[token] * half;
    const float* s = sin + positions[token] * half;
    for (int64_t head = 0; head < heads; ++head) {
      const T* in = x + (token * heads + head) * head_dim;
      T* out = y + (token * heads + head) * head_dim;
      for_each_vector(half, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        const Floats a = load(in + i, n);
        const Floats b = load(in + half + i, n);
        const Floats cosine = load(c + i, n);
        const Floats sine = load(s + i, n) * direction;
        store(out + i, a * cosine - b * sine, n);
        store(out + half + i, b * cosine + a * sine, n);
      });
    }
  }
}

template <class T>
constexpr trireme::model::RowKernels<T> row_kernels{rms_norm_rows<T>, rms_norm_backward_rows<T>, swiglu<T>, swiglu_backward<T>, rope_rows<T>};

}  // namespace
