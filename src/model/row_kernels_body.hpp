// The row kernels, written once with GCC's vector extension and compiled once per instruction set:
// included by row_kernels_{portable,avx2,avx512}.cpp, each with its own compiler flags (see
// vector16.hpp).
#pragma once

#include "row_kernels_table.hpp"
#include "trireme/kernels/vector_math.hpp"

namespace {

using namespace trireme::kernels::lanes;

using trireme::model::GatedElements;
using trireme::model::GateKind;
using trireme::model::HeadRows;
using trireme::model::NormKind;
using trireme::model::NormRows;
using trireme::model::RotaryAngles;
using trireme::model::Xielu;

template <class T>
float mean_of(const T* x, int64_t columns) {
  Float sum{};
  for_each_vector(
      columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) { sum += load(x + i, n); });
  return tree_sum(sum) / static_cast<float>(columns);
}

template <NormKind kind, class T>
void norm_rows(const NormRows<T>& a, float epsilon, T* y, float* inverse_rms) {
  const T* weight = a.weight;
  const int64_t rows = a.rows, columns = a.columns;
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = a.x + row * columns;
    T* out = y + row * columns;
    const float mean = kind == NormKind::centred ? mean_of(in, columns) : 0;
    Float squares{};
    for_each_vector(
        columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          Float v = load(in + i, n, mean);
          if constexpr (kind == NormKind::centred) v = v - mean;
          squares += v * v;
        });
    const float r =
        1.0f / __builtin_sqrtf(tree_sum(squares) / static_cast<float>(columns) + epsilon);
    if (inverse_rms) inverse_rms[row] = r;
    for_each_vector(
        columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          const Float v = load(in + i, n), w = load(weight + i, n);
          if constexpr (kind == NormKind::rms) {
            store(out + i, w * rounded(v * r, in), n);
          } else if constexpr (kind == NormKind::rms_offset) {
            store(out + i, v * r * (1.f + w), n);
          } else {
            store(out + i, w * ((v - mean) * r), n);
          }
        });
  }
}

template <class T>
void rms_norm_rows(const NormRows<T>& in, float epsilon, T* y, float* inverse_rms) {
  switch (in.kind) {
    case NormKind::rms: return norm_rows<NormKind::rms>(in, epsilon, y, inverse_rms);
    case NormKind::rms_offset: return norm_rows<NormKind::rms_offset>(in, epsilon, y, inverse_rms);
    case NormKind::centred: return norm_rows<NormKind::centred>(in, epsilon, y, inverse_rms);
  }
}

// With g = w * dy: dx = r * (g - x * r^2 * mean(g * x)), dw += dy * round(x * r); the weight is 1 +
// w, or x is centred and so is g, with the other kinds.
template <NormKind kind, class T>
void norm_backward_rows(const NormRows<T>& a, const float* inverse_rms, const T* dy, T* dx,
                        float* dweight) {
  const T* weight = a.weight;
  const int64_t rows = a.rows, columns = a.columns;
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = a.x + row * columns;
    const T* slope = dy + row * columns;
    T* out = dx + row * columns;
    const float r = inverse_rms[row];
    const float mean = kind == NormKind::centred ? mean_of(in, columns) : 0;
    const auto weight_at = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      const Float w = load(weight + i, n);
      if constexpr (kind == NormKind::rms_offset) return 1.f + w;
      return w;
    };
    const auto input_at = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      const Float v = load(in + i, n);
      if constexpr (kind == NormKind::centred) return v - mean;
      return v;
    };
    Float dot{}, sum{};
    for_each_vector(
        columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          const Float v = input_at(i, n);
          const Float d = load(slope + i, n);
          const Float g = weight_at(i, n) * d;
          dot += g * v;
          if constexpr (kind == NormKind::centred) sum += g;
          const Float normed = kind == NormKind::rms ? rounded(v * r, in) : v * r;
          store(dweight + i, load(dweight + i, n) + d * normed, n);
        });
    const float scale = tree_sum(dot) / static_cast<float>(columns) * r * r;
    const float mean_slope =
        kind == NormKind::centred ? tree_sum(sum) / static_cast<float>(columns) : 0;
    for_each_vector(
        columns, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          Float g = weight_at(i, n) * load(slope + i, n);
          if constexpr (kind == NormKind::centred) g = g - mean_slope;
          store(out + i, r * (g - input_at(i, n) * scale), n);
        });
  }
}

template <class T>
void rms_norm_backward_rows(const NormRows<T>& in, const float* inverse_rms, const T* dy, T* dx,
                            float* dweight) {
  switch (in.kind) {
    case NormKind::rms: return norm_backward_rows<NormKind::rms>(in, inverse_rms, dy, dx, dweight);
    case NormKind::rms_offset:
      return norm_backward_rows<NormKind::rms_offset>(in, inverse_rms, dy, dx, dweight);
    case NormKind::centred:
      return norm_backward_rows<NormKind::centred>(in, inverse_rms, dy, dx, dweight);
  }
}

// tanh of gelu_tanh's inner polynomial.
TRIREME_LANES_INLINE Float inner_tanh(const Float& g) {
  return tanh(0.7978845608f * (g + 0.044715f * g * g * g));
}

template <class T>
void swiglu(const GatedElements<T>& in, T* y) {
  const T *gate = in.gate, *up = in.up;
  if (in.kind == GateKind::gelu_tanh) {
    for_each_vector(
        in.count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          const Float g = load(gate + i, n);
          store(y + i, 0.5f * g * (1.f + inner_tanh(g)) * load(up + i, n), n);
        });
    return;
  }
  for_each_vector(
      in.count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        const Float g = load(gate + i, n);
        store(y + i, g * sigmoid(g) * load(up + i, n), n);
      });
}

template <class T>
void swiglu_backward(const GatedElements<T>& in, const T* dy, T* dgate, T* dup) {
  const T *gate = in.gate, *up = in.up;
  if (in.kind == GateKind::gelu_tanh) {
    for_each_vector(
        in.count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
          const Float g = load(gate + i, n), d = load(dy + i, n), u = load(up + i, n);
          const Float t = inner_tanh(g);
          const Float inner = 0.7978845608f * (1.f + 0.134145f * g * g);
          store(dgate + i, d * u * (0.5f * (1.f + t) + 0.5f * g * (1.f - t * t) * inner), n);
          store(dup + i, d * (0.5f * g * (1.f + t)), n);
        });
    return;
  }
  for_each_vector(
      in.count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        const Float g = load(gate + i, n);
        const Float d = load(dy + i, n);
        const Float u = load(up + i, n);
        const Float s = sigmoid(g);
        store(dgate + i, d * u * s * (1.0f + g * (1.0f - s)), n);
        store(dup + i, d * g * s, n);
      });
}

template <class T>
void xielu(const T* x, T* y, int64_t count, const Xielu& a) {
  for_each_vector(
      count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        const auto value = TRIREME_LANES_LAMBDA(FloatRegister v) {
          const FloatRegister least = v < a.eps ? v : FloatRegister{} + a.eps;
          const FloatRegister low = (expm1_below_zero(least) - v) * a.alpha_n;
          return (v > 0.f ? v * v * a.alpha_p : low) + v * a.beta;
        };
        store(y + i, each(value, load(x + i, n)), n);
      });
}

template <class T>
void xielu_backward(const T* x, const T* dy, T* dx, float* slopes, int64_t count, const Xielu& a) {
  Float above{}, below{};
  for_each_vector(
      count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        const Float v = load(x + i, n), d = load(dy + i, n);
        const auto square = TRIREME_LANES_LAMBDA(FloatRegister z) {
          return z > 0.f ? z * z : FloatRegister{};
        };
        const auto curve = TRIREME_LANES_LAMBDA(FloatRegister z) {
          const FloatRegister least = z < a.eps ? z : FloatRegister{} + a.eps;
          return z > 0.f ? FloatRegister{} : expm1_below_zero(least) - z;
        };
        const auto slope = TRIREME_LANES_LAMBDA(FloatRegister z) {
          const FloatRegister low = z < a.eps ? expm1_below_zero(z) : FloatRegister{} - 1.f;
          return (z > 0.f ? z * (2.f * a.alpha_p) : low * a.alpha_n) + a.beta;
        };
        above += d * each(square, v);
        below += d * each(curve, v);
        store(dx + i, d * each(slope, v), n);
      });
  slopes[0] += tree_sum(above);
  slopes[1] += tree_sum(below);
}

// `half` pairs of neighbours.
template <class T>
void rotate_neighbours(const T* in, T* out, const float* c, const float* s, int64_t half,
                       float direction) {
  for (int64_t i = 0; i < half; i += count) {
    const int64_t n = half - i < count ? half - i : count;
    const int64_t first = 2 * n < count ? 2 * n : count, rest = 2 * n - first;
    float both[2 * count], a[count] = {}, b[count] = {};
    store(both, load(in + 2 * i, first));
    if (rest > 0) store(both + count, load(in + 2 * i + count, rest));
    for (int64_t j = 0; j < n; ++j) {
      a[j] = both[2 * j];
      b[j] = both[2 * j + 1];
    }
    const Float cosine = load(c + i, n), sine = load(s + i, n) * direction;
    float low[count], high[count];
    store(low, load(a) * cosine - load(b) * sine);
    store(high, load(b) * cosine + load(a) * sine);
    for (int64_t j = 0; j < n; ++j) {
      both[2 * j] = low[j];
      both[2 * j + 1] = high[j];
    }
    store(out + 2 * i, load(both, first), first);
    if (rest > 0) store(out + 2 * i + count, load(both + count, rest), rest);
  }
}

template <class T>
void rope_rows(const T* x, T* y, const HeadRows& shape, const RotaryAngles& angles,
               float direction) {
  const auto [tokens, heads, head_dim] = shape;
  const bool interleaved = angles.pairs.interleaved;
  const int64_t dims = angles.pairs.dims > 0 ? angles.pairs.dims : head_dim, half = dims / 2;
  for (int64_t token = 0; token < tokens; ++token) {
    const float* c = angles.cos + angles.positions[token] * half;
    const float* s = angles.sin + angles.positions[token] * half;
    for (int64_t head = 0; head < heads; ++head) {
      const T* in = x + (token * heads + head) * head_dim;
      T* out = y + (token * heads + head) * head_dim;
      if (in != out) {
        for (int64_t d = dims; d < head_dim; ++d) out[d] = in[d];
      }
      if (interleaved) {
        rotate_neighbours(in, out, c, s, half, direction);
        continue;
      }
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
constexpr trireme::model::RowKernels<T> row_kernels{
    rms_norm_rows<T>, rms_norm_backward_rows<T>, swiglu<T>, swiglu_backward<T>, rope_rows<T>,
    xielu<T>,         xielu_backward<T>};

}  // namespace
