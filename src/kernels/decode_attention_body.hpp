// Attention of one query position, written once for every instruction set: included by
// decode_attention_{avx512_bf16,avx512,avx2,portable}.cpp. The order of additions is that of the training kernel
// (training_attention_body.hpp), described in decode_attention.hpp.
// Legend: a unit is 4 bytes of the cache: one fp32 or two bf16, neighbours in d (keys) or in the position (values); Ops say in how
// many steps it is multiplied (simd.hpp).
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/attention_softmax.hpp"
#include "kernels/decode_attention_kernels.hpp"

namespace trireme::kernels {
namespace {

using simd::Float;
using simd::width;
using simd::Word;

constexpr int64_t max_steps = max_head_dim;           // of a query head
constexpr int value_vectors = width == 16 ? 4 : 2;    // times 4 heads: accumulators of a pass over the values

template <class Ops>
struct Head {
  static constexpr int64_t per_unit = Ops::per_unit;
  const AttentionArguments& a;
  int64_t key_units, value_row;  // of a head and of one position, or pair of positions

  explicit Head(const AttentionArguments& arguments)
      : a(arguments), key_units((a.head_dim + per_unit - 1) / per_unit), value_row(padded_head(a.head_dim)) {}

  const uint32_t* keys_of(int64_t tile) const {
    const std::byte* page = a.pages[tile / a.tiles_per_page] + a.offset;
    return reinterpret_cast<const uint32_t*>(page) + tile % a.tiles_per_page * (tile_elements(a.head_dim) / per_unit);
  }
  const uint32_t* values_of(int64_t tile) const { return keys_of(tile) + padded_keys(a.head_dim) / per_unit * tile_tokens; }
};

// The step s of unit u among units widened to fp32, or the unit itself.
template <class Ops>
constexpr int64_t step_of(int64_t unit, int64_t s) {
  return unit * Ops::steps + Ops::element(s);
}

// scores[g][j] = q[g] . k[j] for `vectors` times `width` positions from `first` on, added in order of d.
template <class Ops, int group, int vectors>
TRIREME_SIMD void score_keys(const Head<Ops>& head, const uint32_t (*q)[max_steps], int64_t first, const AttentionRows& rows) {
  const uint32_t* keys[vectors];
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t position = first + v * width;
    keys[v] = head.keys_of(position / tile_tokens) + position % tile_tokens;
  }
  Float sum[group][vectors] = {};
  for (int64_t u = 0; u < head.key_units; ++u) {
    for (int v = 0; v < vectors; ++v) {
      const Word unit = simd::load<Word>(keys[v] + u * tile_tokens);
      for (int64_t s = 0; s < Ops::steps; ++s) {
        const Word k = Ops::left(unit, s);
        for (int g = 0; g < group; ++g) sum[g][v] = Ops::add(sum[g][v], k, simd::broadcast(q[g] + step_of<Ops>(u, s)));
      }
    }
  }
  for (int g = 0; g < group; ++g) {
    for (int v = 0; v < vectors; ++v) simd::put(rows.scores + g * rows.stride + first + v * width, sum[g][v]);
  }
}

// out[g][v] = sum of p[g][j] * v[j][d ..] in order of j, `width` dimensions in each.
template <class Ops, int group, int vectors>
TRIREME_SIMD void add_values(const Head<Ops>& head, const AttentionRows& rows, int64_t d, Float (*out)[vectors]) {
  constexpr int64_t tile_units = tile_tokens / Ops::per_unit;
  const uint32_t* p = rows.probabilities;
  const int64_t whole = head.a.keys / Ops::per_unit;
  const auto add_unit = [&](int64_t unit, Word values, int v) __attribute__((always_inline)) {
    for (int64_t s = 0; s < Ops::steps; ++s) {
      const Word value = Ops::left(values, s);
      for (int g = 0; g < group; ++g) {
        out[g][v] = Ops::add(out[g][v], value, simd::broadcast(p + g * rows.stride + step_of<Ops>(unit, s)));
      }
    }
  };
  for (int64_t first = 0; first < whole; first += tile_units) {
    const uint32_t* values = head.values_of(first / tile_units) + d;
    const int64_t count = std::min(tile_units, whole - first);
    for (int64_t u = 0; u < count; ++u) {
      for (int v = 0; v < vectors; ++v) add_unit(first + u, simd::load<Word>(values + u * head.value_row + v * width), v);
    }
  }
  if (whole * Ops::per_unit == head.a.keys) return;
  // The last key is alone in its pair: what lies beside it is not of this text yet and may be anything.
  const uint32_t* values = head.values_of(whole / tile_units) + whole % tile_units * head.value_row + d;
  for (int v = 0; v < vectors; ++v) add_unit(whole, simd::load<Word>(values + v * width) & 0xffffu, v);
}

template <class Ops, int group, int vectors>
TRIREME_SIMD void weigh_values(const Head<Ops>& head, const AttentionRows& rows, const float* totals, int64_t d,
                               typename Ops::Element* to) {
  Float sums[group][vectors] = {};
  add_values<Ops, group, vectors>(head, rows, d, sums);
  for (int g = 0; g < group; ++g) {
    const Float inverse = simd::splat(1.0f / totals[g]);
    for (int v = 0; v < vectors; ++v) {
      const int64_t at = d + v * width, left = head.a.head_dim - at;
      if (left > 0) simd::put(to + g * head.a.head_dim + at, sums[g][v] * inverse, left);
    }
  }
}

// A query head as steps, with a zero where an odd head size leaves half a unit.
template <class Ops>
TRIREME_SIMD void load_query(const typename Ops::Element* from, int64_t head_dim, uint32_t* q) {
  if constexpr (Ops::steps == 1) {
    q[(head_dim + Ops::per_unit - 1) / Ops::per_unit - 1] = 0;
    std::memcpy(q, from, static_cast<size_t>(head_dim) * sizeof(typename Ops::Element));
  } else {
    for (int64_t d = 0; d < head_dim; d += width) simd::put(reinterpret_cast<float*>(q) + d, simd::widen(from + d, head_dim - d));
  }
}

template <class Ops>
TRIREME_SIMD float soften_row(const AttentionRows& rows, int64_t row, int64_t keys, float scale) {
  using Element = typename Ops::Element;
  const int64_t padded = (keys + tile_tokens - 1) / tile_tokens * tile_tokens;
  uint32_t* const probabilities = rows.probabilities + row * rows.stride;
  const auto write = [&](int64_t j, Float p) __attribute__((always_inline)) {
    if constexpr (Ops::steps == 1) {
      simd::put(reinterpret_cast<Element*>(probabilities) + j, p);
    } else {
      simd::put(reinterpret_cast<float*>(probabilities) + j, simd::rounded(p, static_cast<const Element*>(nullptr)));
    }
  };
  return soften(rows.scores + row * rows.stride, keys, padded, scale, write).total;
}

template <class Ops, int group>
void attend_group(const Head<Ops>& head, int64_t first_head, const AttentionRows& rows) {
  using Element = typename Ops::Element;
  const AttentionArguments& a = head.a;
  alignas(64) uint32_t q[group][max_steps];
  const Element* from = static_cast<const Element*>(a.q) + first_head * a.head_dim;
  for (int g = 0; g < group; ++g) load_query<Ops>(from + g * a.head_dim, a.head_dim, q[g]);
  const int64_t positions = (a.keys + tile_tokens - 1) / tile_tokens * tile_tokens;
  int64_t position = 0;
  for (; position + 2 * width <= positions; position += 2 * width) score_keys<Ops, group, 2>(head, q, position, rows);
  if (position < positions) score_keys<Ops, group, 1>(head, q, position, rows);
  float totals[group];
  for (int g = 0; g < group; ++g) totals[g] = soften_row<Ops>(rows, g, a.keys, a.scale);
  Element* to = static_cast<Element*>(a.out) + first_head * a.head_dim;
  int64_t d = 0;
  constexpr int64_t columns = value_vectors * width;
  for (; d + columns <= head.value_row; d += columns) weigh_values<Ops, group, value_vectors>(head, rows, totals, d, to);
  for (; d < head.value_row; d += width) weigh_values<Ops, group, 1>(head, rows, totals, d, to);
}

template <class Ops>
TRIREME_SIMD void attend_all(const AttentionArguments& a, const AttentionRows& rows) {
  const Head<Ops> head(a);
  int64_t first = 0;
  for (; first + 4 <= a.group; first += 4) attend_group<Ops, 4>(head, first, rows);
  switch (a.group - first) {
    case 3: attend_group<Ops, 3>(head, first, rows); break;
    case 2: attend_group<Ops, 2>(head, first, rows); break;
    case 1: attend_group<Ops, 1>(head, first, rows); break;
    default: break;
  }
}

}  // namespace
}  // namespace trireme::kernels
