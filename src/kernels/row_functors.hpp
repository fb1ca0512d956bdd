// The memory-bound operators of a layer and of the optimizer, a functor each (exec.hpp). Arithmetic
// in fp32, elements float or bf16 as its bits; roundings as in model/elementwise.hpp and
// kernels/adamw.hpp.
#pragma once

#include <cmath>
#include <cstdint>

#include "trireme/base/bf16.hpp"
#include "trireme/base/kernel_function.hpp"
#include "trireme/kernels/cache_rows.hpp"

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

// Neighbours that are read or written at once.
template <class T, int count>
struct alignas(count * sizeof(T)) Neighbours {
  T at[count];
};
template <int count, class T>
TRIREME_KERNEL inline const Neighbours<T, count>& neighbours(const T* first) {
  return *reinterpret_cast<const Neighbours<T, count>*>(first);
}
template <int count, class T>
TRIREME_KERNEL inline Neighbours<T, count>& neighbours(T* first) {
  return *reinterpret_cast<Neighbours<T, count>*>(first);
}

// Most that a GPU's thread reads and writes at a time, in bytes and in elements.
inline constexpr int widest_bytes = 16;
template <class T>
inline constexpr int widest = widest_bytes / sizeof(T);

template <int count>
struct Together {};

// f(Together<width>, i) for elements i, i + 1, ... of `count`, width of them at a time where memory
// is aligned for that, the rest one by one.
template <int width, class Team, class F>
TRIREME_KERNEL inline void each_together(const Team& team, int64_t count, bool aligned,
                                         const F& f) {
  const int64_t whole = aligned ? count / width * width : 0;
  team.each(whole / width, [&](int64_t at) { f(Together<width>{}, at * width); });
  team.each(count - whole, [&](int64_t at) { f(Together<1>{}, whole + at); });
}

// A row per team: y = weight * round(x / rms(x)). With `added`, x is first the sum of both,
// rounded, which goes to `sum`.
template <class T>
struct RmsNormRow {
  const T* x;
  const T* weight;
  T* y;
  float* inverse_rms;  // null: nobody wants it
  int64_t columns;
  float epsilon;
  bool aligned;  // rows and weight, for widest<T> elements
  const T* added = nullptr;
  T* sum = nullptr;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t row) const {
    const T* in = x + row * columns;
    T* out = y + row * columns;
    float squares = 0;
    each_together<widest<T>>(team, columns, aligned, [&]<int n>(Together<n>, int64_t i) {
      Neighbours<T, n> values = neighbours<n>(in + i);
      if (added != nullptr) {
        const Neighbours<T, n> others = neighbours<n>(added + row * columns + i);
        for (int j = 0; j < n; ++j)
          values.at[j] = narrow<T>(widen(values.at[j]) + widen(others.at[j]));
        neighbours<n>(sum + row * columns + i) = values;
      }
      for (int j = 0; j < n; ++j) squares += widen(values.at[j]) * widen(values.at[j]);
    });
    const float r = 1.0f / std::sqrt(team.sum(squares) / static_cast<float>(columns) + epsilon);
    if (inverse_rms != nullptr && team.rank() == 0) inverse_rms[row] = r;
    if (added != nullptr) in = sum + row * columns;  // each thread reads what it wrote
    each_together<widest<T>>(team, columns, aligned, [&]<int n>(Together<n>, int64_t i) {
      const Neighbours<T, n> values = neighbours<n>(in + i), its_weight = neighbours<n>(weight + i);
      Neighbours<T, n> result;
      for (int j = 0; j < n; ++j)
        result.at[j] =
            narrow<T>(widen(its_weight.at[j]) * widen(narrow<T>(widen(values.at[j]) * r)));
      neighbours<n>(out + i) = result;
    });
  }
};

// A chunk of rows per team, one row of `dweight` each: with g = w * dy, dx = r (g - x r^2 mean(g
// x)), dw = sum of dy round(x r) in the order of the rows.
template <class T>
struct RmsNormBackwardRows {
  const T* x;
  const T* weight;
  const T* dy;
  const float* inverse_rms;
  T* dx;
  float* dweight;  // [chunks, columns], zeroed
  int64_t rows, columns, chunk_rows;
  bool aligned;  // rows, weight and its slopes, for widest<T> elements

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
      each_together<widest<T>>(team, columns, aligned, [&]<int n>(Together<n>, int64_t i) {
        const Neighbours<T, n> slopes = neighbours<n>(slope + i), values = neighbours<n>(in + i),
                               its_weight = neighbours<n>(weight + i);
        Neighbours<float, n> sums = neighbours<n>(slope_of_weight + i);
        for (int j = 0; j < n; ++j) {
          const float d = widen(slopes.at[j]);
          dot += widen(its_weight.at[j]) * d * widen(values.at[j]);
          sums.at[j] += d * widen(narrow<T>(widen(values.at[j]) * r));
        }
        neighbours<n>(slope_of_weight + i) = sums;
      });
      const float scale = team.sum(dot) / static_cast<float>(columns) * r * r;
      each_together<widest<T>>(team, columns, aligned, [&]<int n>(Together<n>, int64_t i) {
        const Neighbours<T, n> slopes = neighbours<n>(slope + i), values = neighbours<n>(in + i),
                               its_weight = neighbours<n>(weight + i);
        Neighbours<T, n> result;
        for (int j = 0; j < n; ++j)
          result.at[j] = narrow<T>(
              r * (widen(its_weight.at[j]) * widen(slopes.at[j]) - widen(values.at[j]) * scale));
        neighbours<n>(out + i) = result;
      });
    }
  }
};

inline constexpr int64_t range_per_team =
    1024;  // values of one team of the functors over a flat range

TRIREME_KERNEL inline int64_t count_of_range(int64_t count, int64_t part) {
  const int64_t left = count - part * range_per_team;
  return left < range_per_team ? left : range_per_team;
}

// A range of a row per team. Rows of the arguments lie `stride` elements apart, those of the result
// one behind the other.
template <class T>
struct SwiGluRange {
  const T* gate;
  const T* up;
  T* y;
  int64_t columns, stride;
  bool aligned;  // for widest<T> elements, all rows

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    const auto i = static_cast<uint32_t>(index),
               parts = static_cast<uint32_t>((columns + range_per_team - 1) /
                                             range_per_team);  // fewer than 2^32 teams
    const int64_t row = i / parts, part = i % parts;
    const int64_t from = row * stride + part * range_per_team,
                  to = row * columns + part * range_per_team;
    each_together<widest<T>>(
        team, count_of_range(columns, part), aligned, [&]<int n>(Together<n>, int64_t at) {
          const Neighbours<T, n> gates = neighbours<n>(gate + from + at),
                                 ups = neighbours<n>(up + from + at);
          Neighbours<T, n> result;
          for (int j = 0; j < n; ++j) {
            const float g = widen(gates.at[j]);
            result.at[j] = narrow<T>(g / (1.0f + std::exp(-g)) * widen(ups.at[j]));
          }
          neighbours<n>(y + to + at) = result;
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
  bool aligned;  // for widest<T> elements

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t part) const {
    const int64_t first = part * range_per_team;
    each_together<widest<T>>(
        team, count_of_range(count, part), aligned, [&]<int n>(Together<n>, int64_t at) {
          const int64_t i = first + at;
          const Neighbours<T, n> gates = neighbours<n>(gate + i), slopes = neighbours<n>(dy + i),
                                 ups = neighbours<n>(up + i);
          Neighbours<T, n> of_gate, of_up;
          for (int j = 0; j < n; ++j) {
            const float g = widen(gates.at[j]), d = widen(slopes.at[j]), u = widen(ups.at[j]);
            const float s = 1.0f / (1.0f + std::exp(-g));
            of_gate.at[j] = narrow<T>(d * u * s * (1.0f + g * (1.0f - s)));
            of_up.at[j] = narrow<T>(d * g * s);
          }
          neighbours<n>(dgate + i) = of_gate;
          neighbours<n>(dup + i) = of_up;
        });
  }
};

// Elements `at`, `at + 1`, ... and `at + half`, ... of a head.
template <int count, class T>
TRIREME_KERNEL inline void rotate_pairs(const T* x, T* y, int64_t at, int64_t half,
                                        const float* cosines, const float* sines, float direction) {
  const Neighbours<T, count> a = neighbours<count>(x + at), b = neighbours<count>(x + at + half);
  const Neighbours<float, count> c = neighbours<count>(cosines + at),
                                 s = neighbours<count>(sines + at);
  Neighbours<T, count> low, high;
  TRIREME_UNROLL
  for (int i = 0; i < count; ++i) {
    const float sine = s.at[i] * direction;
    low.at[i] = narrow<T>(widen(a.at[i]) * c.at[i] - widen(b.at[i]) * sine);
    high.at[i] = narrow<T>(widen(b.at[i]) * c.at[i] + widen(a.at[i]) * sine);
  }
  neighbours<count>(y + at) = low;
  neighbours<count>(y + at + half) = high;
}

// A token per team: the halves of each head rotated by the token's position; direction -1 turns
// back, which is the derivative.
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
      const int64_t i = pair % half, head = (token * heads + pair / half) * head_dim;
      rotate_pairs<1>(x + head, y + head, i, half, c, s, direction);
    });
  }
};

// Some heads of a token per team, of those of q, k and v in this order (cache_rows.hpp).
template <class T>
struct KeepRows {
  static constexpr int at_once = 4;  // pairs of a thread

  CacheRows<T> r;
  int heads_of_team;
  bool aligned;  // all rows and halves of heads, for at_once elements

  TRIREME_KERNEL int teams_of_token() const {
    return (all_heads() + heads_of_team - 1) / heads_of_team;
  }

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    const auto i = static_cast<uint32_t>(index),
               teams = static_cast<uint32_t>(teams_of_token());  // fewer than 2^32 teams
    const int first = static_cast<int>(i % teams) * heads_of_team, left = all_heads() - first;
    if (aligned) {
      keep<at_once>(team, i / teams, first, left < heads_of_team ? left : heads_of_team);
    } else {
      keep<1>(team, i / teams, first, left < heads_of_team ? left : heads_of_team);
    }
  }

 private:
  TRIREME_KERNEL int all_heads() const { return static_cast<int>(r.heads + 2 * r.kv_heads); }

  template <int count, class Team>
  TRIREME_KERNEL void keep(const Team& team, int64_t token, int first, int heads) const {
    const int half = static_cast<int>(r.head_dim) / 2, pieces = half / count;
    const float* c = r.cos + r.positions[token] * half;
    const float* s = r.sin + r.positions[token] * half;
    const int64_t kept = r.slots[token] * r.kv_heads;  // its first head in the cache
    team.each(heads * pieces, [&](int64_t task) {
      const int head = first + static_cast<int>(task) / pieces,
                at = static_cast<int>(task) % pieces * count;
      const int kv_head = head - static_cast<int>(r.heads),
                value_head = kv_head - static_cast<int>(r.kv_heads);
      if (kv_head < 0) {
        rotate_pairs<count>(r.q + token * r.q_stride + head * r.head_dim,
                            r.rotated + (token * r.heads + head) * r.head_dim, at, half, c, s, 1.f);
      } else if (value_head < 0) {
        rotate_pairs<count>(r.k + token * r.k_stride + kv_head * r.head_dim,
                            r.keys + (kept + kv_head) * r.head_dim, at, half, c, s, 1.f);
      } else {
        const T* from = r.v + token * r.v_stride + value_head * r.head_dim + at;
        T* to = r.values + (kept + value_head) * r.head_dim + at;
        const Neighbours<T, count> low = neighbours<count>(from),
                                   high = neighbours<count>(from + half);
        neighbours<count>(to) = low;
        neighbours<count>(to + half) = high;
      }
    });
  }
};

// One pass of the optimizer over part of a shard: clip, AdamW, cast; how many compute values
// changed their bits. The same operations in the same order as on the host (adamw_body.hpp), so
// that without fused multiply-add the bits are the host's.
template <class T>
struct AdamWRange {
  static constexpr int at_once = 4;

  float* master;
  float* moment1;
  float* moment2;
  const float* gradient;
  T* compute;
  int32_t* changed;  // of each team
  int64_t count;
  float clip, decay, rate1, beta2, rate2, step_size, root_scale, eps;
  bool aligned;  // all pointers, for at_once elements

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t part) const {
    const int64_t first = part * range_per_team;
    int32_t differs = 0;
    each_together<at_once>(
        team, count_of_range(count, part), aligned,
        [&]<int n>(Together<n>, int64_t at) { differs += update<n>(first + at); });
    differs = team.sum(differs);
    if (team.rank() == 0) changed[part] = differs;
  }

 private:
  // Elements i, i + 1, ...: how many of them have other bits now. All is read before anything is
  // written.
  template <int elements>
  TRIREME_KERNEL int32_t update(int64_t i) const {
    const auto slope = neighbours<elements>(gradient + i);
    auto m = neighbours<elements>(moment1 + i), v = neighbours<elements>(moment2 + i),
         p = neighbours<elements>(master + i);
    auto value = neighbours<elements>(compute + i);
    int32_t differs = 0;
    for (int j = 0; j < elements; ++j) {
      const float g = slope.at[j] * clip;
      m.at[j] = m.at[j] + (g - m.at[j]) * rate1;
      v.at[j] = v.at[j] * beta2 + g * g * rate2;
      p.at[j] = p.at[j] * decay - step_size * (m.at[j] / (std::sqrt(v.at[j]) * root_scale + eps));
      const T rounded = narrow<T>(p.at[j]);
      differs += !same_bits(rounded, value.at[j]);
      value.at[j] = rounded;
    }
    neighbours<elements>(moment1 + i) = m;
    neighbours<elements>(moment2 + i) = v;
    neighbours<elements>(master + i) = p;
    neighbours<elements>(compute + i) = value;
    return differs;
  }
  TRIREME_KERNEL static bool same_bits(uint16_t a, uint16_t b) { return a == b; }
  TRIREME_KERNEL static bool same_bits(float a, float b) {
    return __builtin_bit_cast(uint32_t, a) == __builtin_bit_cast(uint32_t, b);
  }
};

}  // namespace trireme::kernels
