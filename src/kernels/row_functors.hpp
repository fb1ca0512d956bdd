// The memory-bound operators of a layer and of the optimizer, a functor each (exec.hpp). Arithmetic in fp32, elements float or bf16 as its
// bits; roundings as in model/elementwise.hpp and kernels/adamw.hpp.
#pragma once

#include <cmath>
#include <cstdint>

#include "trireme/base/bf16.hpp"
#include "trireme/base/kernel_function.hpp"

namespace trireme::kernels {

TRIREME_KERNEL inline float widen(float value) { return value; }
TRIREME_KERNEL inline float widen(uint16_t bits) { return base::bf16_to_float(bits); }
template <class T>
TRIREME_KERNEL inline T narrow(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else {
    return base::float_to_bf16(value);
  }
}

// A row per team: y = weight * round(x / rms(x)).
template <class T>
struct RmsNormRow {
  const T* x;
  const T* weight;
  T* y;
  float* inverse_rms;
  int64_t columns;
  float epsilon;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t row) const {
    const T* in = x + row * columns;
    T* out = y + row * columns;
    float squares = 0;
    team.each(columns, [&](int64_t i) { squares += widen(in[i]) * widen(in[i]); });
    const float r = 1.0f / std::sqrt(team.sum(squares) / static_cast<float>(columns) + epsilon);
    if (team.rank() == 0) inverse_rms[row] = r;
    team.each(columns, [&](int64_t i) { out[i] = narrow<T>(widen(weight[i]) * widen(narrow<T>(widen(in[i]) * r))); });
  }
};

// A chunk of rows per team, one row of `dweight` each: with g = w * dy, dx = r (g - x r^2 mean(g x)), dw = sum of dy round(x r) in the order
// of the rows.
template <class T>
struct RmsNormBackwardRows {
  const T* x;
  const T* weight;
  const T* dy;
  const float* inverse_rms;
  T* dx;
  float* dweight;  // [chunks, columns], zeroed
  int64_t rows, columns, chunk_rows;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t chunk) const {
    const int64_t last = (chunk + 1) * chunk_rows < rows ? (chunk + 1) * chunk_rows : rows;
    float* slope_of_weight = dweight + chunk * columns;
    for (int64_t row = chunk * chunk_rows; row < last; ++row) {
      const T* in = x + row * columns;
      const T* slope = dy + row * columns;
      T* out = dx + row * columns;
      const float r = inverse_rms[row];
      float dot = 0;
      team.each(columns, [&](int64_t i) {
        const float d = widen(slope[i]);
        dot += widen(weight[i]) * d * widen(in[i]);
        slope_of_weight[i] += d * widen(narrow<T>(widen(in[i]) * r));
      });
      const float scale = team.sum(dot) / static_cast<float>(columns) * r * r;
      team.each(columns, [&](int64_t i) { out[i] = narrow<T>(r * (widen(weight[i]) * widen(slope[i]) - widen(in[i]) * scale)); });
    }
  }
};

inline constexpr int64_t range_per_team = 1024;  // values of one team of the functors over a flat range

TRIREME_KERNEL inline int64_t count_of_range(int64_t count, int64_t part) {
  const int64_t left = count - part * range_per_team;
  return left < range_per_team ? left : range_per_team;
}

template <class T>
struct SwiGluRange {
  const T* gate;
  const T* up;
  T* y;
  int64_t count;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t part) const {
    const int64_t first = part * range_per_team;
    team.each(count_of_range(count, part), [&](int64_t at) {
      const int64_t i = first + at;
      const float g = widen(gate[i]);
      y[i] = narrow<T>(g / (1.0f + std::exp(-g)) * widen(up[i]));
    });
  }
};

template <class T>
struct SwiGluBackwardRange {
  const T* gate;
  const T* up;
  const T* dy;
  T* dgate;
  T* dup;
  int64_t count;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t part) const {
    const int64_t first = part * range_per_team;
    team.each(count_of_range(count, part), [&](int64_t at) {
      const int64_t i = first + at;
      const float g = widen(gate[i]), d = widen(dy[i]), u = widen(up[i]);
      const float s = 1.0f / (1.0f + std::exp(-g));
      dgate[i] = narrow<T>(d * u * s * (1.0f + g * (1.0f - s)));
      dup[i] = narrow<T>(d * g * s);
    });
  }
};

// A token per team: the halves of each head rotated by the token's position; direction -1 turns back, which is the derivative.
template <class T>
struct RotateToken {
  const T* x;
  const int64_t* positions;
  const float* cos;
  const float* sin;
  T* y;
  int64_t heads, head_dim;
  float direction;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t token) const {
    const int64_t half = head_dim / 2;
    const float* c = cos + positions[token] * half;
    const float* s = sin + positions[token] * half;
    team.each(heads * half, [&](int64_t pair) {
      const int64_t i = pair % half, low = (token * heads + pair / half) * head_dim + i, high = low + half;
      const float a = widen(x[low]), b = widen(x[high]), sine = s[i] * direction;
      y[low] = narrow<T>(a * c[i] - b * sine);
      y[high] = narrow<T>(b * c[i] + a * sine);
    });
  }
};

// One pass of the optimizer over part of a shard: clip, AdamW, cast; how many compute values changed their bits. The same operations in the
// same order as on the host (adamw_body.hpp), so that without fused multiply-add the bits are the host's.
template <class T>
struct AdamWRange {
  float* master;
  float* moment1;
  float* moment2;
  const float* gradient;
  T* compute;
  int32_t* changed;  // of each team
  int64_t count;
  float clip, decay, rate1, beta2, rate2, step_size, root_scale, eps;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t part) const {
    const int64_t first = part * range_per_team;
    int32_t differs = 0;
    team.each(count_of_range(count, part), [&](int64_t at) {
      const int64_t i = first + at;
      const float g = gradient[i] * clip;
      const float m = moment1[i] + (g - moment1[i]) * rate1;
      const float v = moment2[i] * beta2 + g * g * rate2;
      const float p = master[i] * decay - step_size * (m / (std::sqrt(v) * root_scale + eps));
      moment1[i] = m;
      moment2[i] = v;
      master[i] = p;
      const T rounded = narrow<T>(p);
      differs += !same_bits(rounded, compute[i]);
      compute[i] = rounded;
    });
    differs = team.sum(differs);
    if (team.rank() == 0) changed[part] = differs;
  }

 private:
  TRIREME_KERNEL static bool same_bits(uint16_t a, uint16_t b) { return a == b; }
  TRIREME_KERNEL static bool same_bits(float a, float b) { return __builtin_bit_cast(uint32_t, a) == __builtin_bit_cast(uint32_t, b); }
};

}  // namespace trireme::kernels
