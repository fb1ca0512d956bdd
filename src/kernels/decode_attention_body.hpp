// Attention of one query position, written once for every instruction set: included by decode_attention_{avx512,portable}.cpp,
// each with operations of its own (Ops). The order of additions is that of the training kernel (model/attention_avx512.cpp),
// described in decode_attention.hpp.
// Legend: a word is 4 bytes: one fp32 or two bf16, neighbours in d (keys) or in the position (values).
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/decode_attention_kernels.hpp"
#include "trireme/kernels/vector16.hpp"

namespace trireme::kernels {
namespace {

using Float = lanes::Vector;
using lanes::Word;

constexpr int64_t max_words = max_head_dim;  // of a query head

TRIREME_LANES_INLINE Word load_words(const uint32_t* from) {
  Word out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

template <class Ops>
struct Head {
  static constexpr int64_t per_word = Ops::per_word;
  const AttentionArguments& a;
  int64_t key_words, value_row;  // of a head and of one position, or pair of positions, in words

  explicit Head(const AttentionArguments& arguments)
      : a(arguments), key_words((a.head_dim + per_word - 1) / per_word), value_row(padded_head(a.head_dim)) {}

  const uint32_t* keys_of(int64_t tile) const {
    const std::byte* page = a.pages[tile / a.tiles_per_page] + a.offset;
    return reinterpret_cast<const uint32_t*>(page) + tile % a.tiles_per_page * (tile_elements(a.head_dim) / per_word);
  }
  const uint32_t* values_of(int64_t tile) const { return keys_of(tile) + padded_keys(a.head_dim) / per_word * tile_tokens; }
};

// scores[g][j] = q[g] . k[j] for the keys of `tiles` tiles, added in order of d.
template <class Ops, int group, int tiles>
TRIREME_LANES_INLINE void score_tiles(const Head<Ops>& head, const uint32_t (*q)[max_words], int64_t tile, const AttentionRows& rows) {
  const uint32_t* keys[tiles];
  for (int t = 0; t < tiles; ++t) keys[t] = head.keys_of(tile + t);
  Float sum[group][tiles] = {};
  for (int64_t w = 0; w < head.key_words; ++w) {
    for (int t = 0; t < tiles; ++t) {
      const Word k = load_words(keys[t] + w * tile_tokens);
      for (int g = 0; g < group; ++g) sum[g][t] = Ops::add_product(sum[g][t], k, q[g][w]);
    }
  }
  for (int g = 0; g < group; ++g) {
    for (int t = 0; t < tiles; ++t) lanes::store(rows.scores + g * rows.stride + (tile + t) * tile_tokens, sum[g][t]);
  }
}

// Lane j + i of `value` where j + i < count, else `fill`.
TRIREME_LANES_INLINE Float below(Float value, int64_t j, int64_t count, float fill) {
  if (count - j >= lanes::count) return value;
  for (int64_t i = std::max<int64_t>(count - j, 0); i < lanes::count; ++i) value[i] = fill;
  return value;
}

// Scores of one head to exp(scale * score - max), rounded to the element type for the product with the values; their sum.
template <class Ops>
TRIREME_LANES_INLINE float soften(const float* scores, int64_t keys, float scale, uint32_t* probabilities) {
  auto* out = reinterpret_cast<typename Ops::Element*>(probabilities);
  Float best = Float{} - __builtin_inff();
  for (int64_t j = 0; j < keys; j += lanes::count) best = lanes::max(best, below(lanes::load(scores + j), j, keys, -__builtin_inff()));
  const float top = lanes::horizontal_max(best) * scale;
  Float sum{};
  for (int64_t j = 0; j < keys; j += lanes::count) {
    const Float shifted = lanes::load(scores + j) * scale - top;
    const Float p = below(lanes::exp_above_zero(shifted), j, keys, 0.f);
    sum += p;
    lanes::store(out + j, p);
  }
  return lanes::tree_sum(sum);
}

// out[g][d ..] = sum of p[g][j] * v[j][d ..] in order of j, 16 * vectors dimensions at a time.
template <class Ops, int group, int vectors>
TRIREME_LANES_INLINE void add_values(const Head<Ops>& head, const AttentionRows& rows, int64_t d, Float (*out)[vectors]) {
  constexpr int64_t tile_words = tile_tokens / Ops::per_word;
  const uint32_t* p = rows.probabilities;
  const int64_t stride = rows.stride / Ops::per_word, whole = head.a.keys / Ops::per_word;
  for (int g = 0; g < group; ++g) {
    for (int i = 0; i < vectors; ++i) out[g][i] = Float{};
  }
  for (int64_t first = 0; first < whole; first += tile_words) {
    const uint32_t* values = head.values_of(first / tile_words) + d;
    const int64_t count = std::min(tile_words, whole - first);
    for (int64_t w = 0; w < count; ++w) {
      for (int i = 0; i < vectors; ++i) {
        const Word v = load_words(values + w * head.value_row + i * lanes::count);
        for (int g = 0; g < group; ++g) out[g][i] = Ops::add_product(out[g][i], v, p[g * stride + first + w]);
      }
    }
  }
  if (whole * Ops::per_word == head.a.keys) return;
  // The last key is alone in its pair: what lies beside it is not of this text yet and may be anything.
  const uint32_t* values = head.values_of(whole / tile_words) + whole % tile_words * head.value_row + d;
  for (int i = 0; i < vectors; ++i) {
    const Word v = load_words(values + i * lanes::count) & 0xffffu;
    for (int g = 0; g < group; ++g) out[g][i] = Ops::add_product(out[g][i], v, p[g * stride + whole]);
  }
}

template <class Ops, int group, int vectors>
TRIREME_LANES_INLINE void weigh_values(const Head<Ops>& head, const AttentionRows& rows, const float* totals, int64_t d,
                                       typename Ops::Element* to) {
  Float sums[group][vectors];
  add_values<Ops, group, vectors>(head, rows, d, sums);
  for (int g = 0; g < group; ++g) {
    const Float inverse = Float{} + 1.0f / totals[g];
    for (int i = 0; i < vectors; ++i) {
      const int64_t at = d + i * lanes::count, left = head.a.head_dim - at;
      if (left > 0) lanes::store(to + g * head.a.head_dim + at, sums[g][i] * inverse, std::min(left, lanes::count));
    }
  }
}

template <class Ops, int group>
TRIREME_LANES_INLINE void attend_group(const Head<Ops>& head, int64_t first_head, const AttentionRows& rows) {
  using Element = typename Ops::Element;
  const AttentionArguments& a = head.a;
  alignas(64) uint32_t q[group][max_words];
  const Element* from = static_cast<const Element*>(a.q) + first_head * a.head_dim;
  for (int g = 0; g < group; ++g) {
    q[g][head.key_words - 1] = 0;  // an odd head size leaves half a word
    std::memcpy(q[g], from + g * a.head_dim, static_cast<size_t>(a.head_dim) * sizeof(Element));
  }
  const int64_t tiles = (a.keys + tile_tokens - 1) / tile_tokens;
  int64_t tile = 0;
  for (; tile + 2 <= tiles; tile += 2) score_tiles<Ops, group, 2>(head, q, tile, rows);
  if (tile < tiles) score_tiles<Ops, group, 1>(head, q, tile, rows);
  float totals[group];
  for (int g = 0; g < group; ++g) {
    totals[g] = soften<Ops>(rows.scores + g * rows.stride, a.keys, a.scale,
                            rows.probabilities + g * rows.stride / Ops::per_word);
  }
  Element* to = static_cast<Element*>(a.out) + first_head * a.head_dim;
  int64_t d = 0;
  for (; d + 4 * lanes::count <= head.value_row; d += 4 * lanes::count) weigh_values<Ops, group, 4>(head, rows, totals, d, to);
  for (; d < head.value_row; d += lanes::count) weigh_values<Ops, group, 1>(head, rows, totals, d, to);
}

template <class Ops>
TRIREME_LANES_INLINE void attend_all(const AttentionArguments& a, const AttentionRows& rows) {
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
