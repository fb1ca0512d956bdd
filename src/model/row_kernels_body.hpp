// The row kernels, written once with GCC's vector extension and compiled once per instruction set:
// included by row_kernels_{portable,avx2,avx512}.cpp, each with its own compiler flags (see
// vector16.hpp).
#pragma once

#include "row_kernels_table.hpp"
#include "trireme/kernels/vector16.hpp"

namespace {

using namespace trireme::kernels::lanes;

template <class T>
void rms_norm_rows(const T* x, const T* weight, T* y, float* inverse_rms, int64_t rows,
                   int64_t columns, float epsilon) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = x + row * columns;
    T* out = y + row * columns;
    Float squares{};
    for_each_vector(
        columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          const Float v = load(in + i, n);
          squares += v * v;
        });
    const float r =
        1.0f / __builtin_sqrtf(tree_sum(squares) / static_cast<float>(columns) + epsilon);
    if (inverse_rms) inverse_rms[row] = r;
    for_each_vector(
        columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          store(out + i, load(weight + i, n) * rounded(load(in + i, n) * r, in), n);
        });
  }
}

// With g = w * dy: dx = r * (g - x * r^2 * mean(g * x)), dw += dy * round(x * r).
template <class T>
void rms_norm_backward_rows(const T* x, const T* weight, const T* dy, const float* inverse_rms,
                            T* dx, float* dweight, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = x + row * columns;
    const T* slope = dy + row * columns;
    T* out = dx + row * columns;
    const float r = inverse_rms[row];
    Float dot{};
    for_each_vector(
        columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          const Float v = load(in + i, n);
          const Float d = load(slope + i, n);
          dot += load(weight + i, n) * d * v;
          store(dweight + i, load(dweight + i, n) + d * rounded(v * r, in), n);
        });
    const float scale = tree_sum(dot) / static_cast<float>(columns) * r * r;
    for_each_vector(
        columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          store(out + i, r * (load(weight + i, n) * load(slope + i, n) - load(in + i, n) * scale),
                n);
        });
  }
}

template <class T>
void swiglu(const T* gate, const T* up, T* y, int64_t count) {
  for_each_vector(
      count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        const Float g = load(gate + i, n);
        store(y + i, g * sigmoid(g) * load(up + i, n), n);
      });
}

template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t count) {
  for_each_vector(
      count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        const Float g = load(gate + i, n);
        const Float d = load(dy + i, n);
        const Float u = load(up + i, n);
        const Float s = sigmoid(g);
        store(dgate + i, d * u * s * (1.0f + g * (1.0f - s)), n);
        store(dup + i, d * g * s, n);
      });
}

template <class T>
void rope_rows(const T* x, const int64_t* positions, const float* cos, const float* sin, T* y,
               int64_t tokens, int64_t heads, int64_t head_dim, float direction) {
  const int64_t half = head_dim / 2;
  for (int64_t token = 0; token < tokens; ++token) {
    const float* c = cos + positions[token] * half;
    const float* s = sin + positions[token] * half;
    for (int64_t head = 0; head < heads; ++head) {
      const T* in = x + (token * heads + head) * head_dim;
      T* out = y + (token * heads + head) * head_dim;
      for_each_vector(
          half, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
            const Float a = load(in + i, n);
            const Float b = load(in + half + i, n);
            const Float cosine = load(c + i, n);
            const Float sine = load(s + i, n) * direction;
            store(out + i, a * cosine - b * sine, n);
            store(out + half + i, b * cosine + a * sine, n);
          });
    }
  }
}

template <class T>
constexpr trireme::model::RowKernels<T> row_kernels{rms_norm_rows<T>, rms_norm_backward_rows<T>,
                                                    swiglu<T>, swiglu_backward<T>, rope_rows<T>};

}  // namespace
