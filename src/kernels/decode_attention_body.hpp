// Attention of neighbouring query positions, written once for every instruction set: included by
// decode_attention_{avx512_bf16,avx512,avx2,portable}.cpp. The order of additions is that of the
// training kernel (training_attention_body.hpp), described in decode_attention.hpp. Legend: a unit
// is 4 bytes of the cache: one fp32 or two bf16, neighbours in d (keys) or in the position
// (values); Ops say in how many steps it is multiplied (simd.hpp).
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

constexpr int64_t max_steps = max_head_dim;  // of a query head
constexpr int value_vectors =
    width == 16 ? 4 : 2;  // times 4 queries: accumulators of a pass over the values

// One chunk of the keys and values of a head.
template <class Ops>
struct Chunk {
  static constexpr int64_t per_unit = Ops::per_unit;
  const AttentionArguments& a;
  int64_t first, key_units,
      value_row;  // its first key; units of a key and of one position, or pair of positions

  Chunk(const AttentionArguments& arguments, int64_t chunk)
      : a(arguments),
        first(chunk * key_chunk),
        key_units((a.head_dim + per_unit - 1) / per_unit),
        value_row(padded_head(a.head_dim)) {}

  // Of the 16 positions from `position` of the chunk on.
  const uint32_t* keys_from(int64_t position) const {
    const int64_t tile = (first + position) / tile_tokens;
    const std::byte* page = a.pages[tile / a.tiles_per_page] + a.offset;
    return reinterpret_cast<const uint32_t*>(page) +
           tile % a.tiles_per_page * (tile_elements(a.head_dim) / per_unit);
  }
  const uint32_t* values_from(int64_t position) const {
    return keys_from(position) + padded_keys(a.head_dim) / per_unit * tile_tokens;
  }
  // Those of its keys that query q = row * G + head sees.
  Seen seen_by(int64_t query) const {
    return {std::max<int64_t>(a.first_seen(query / a.group) - first, 0),
            std::min(a.keys + query / a.group - first, key_chunk)};
  }
};

// The step s of unit u among units widened to fp32, or the unit itself.
template <class Ops>
constexpr int64_t step_of(int64_t unit, int64_t s) {
  return unit * Ops::steps + Ops::element(s);
}

// scores[g][j] = q[g] . k[j] for `vectors` times `width` positions from `from` on, added in order
// of d.
template <class Ops, int group, int vectors>
TRIREME_SIMD void score_keys(const Chunk<Ops>& chunk, const uint32_t (*q)[max_steps], int64_t from,
                             float* scores) {
  const uint32_t* keys[vectors];
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t position = from + v * width;
    keys[v] = chunk.keys_from(position) + position % tile_tokens;
  }
  Float sum[group][vectors] = {};
  for (int64_t u = 0; u < chunk.key_units; ++u) {
    for (int v = 0; v < vectors; ++v) {
      const Word unit = simd::load<Word>(keys[v] + u * tile_tokens);
      for (int64_t s = 0; s < Ops::steps; ++s) {
        const Word k = Ops::left(unit, s);
        for (int g = 0; g < group; ++g)
          sum[g][v] = Ops::add(sum[g][v], k, simd::broadcast(q[g] + step_of<Ops>(u, s)));
      }
    }
  }
  for (int g = 0; g < group; ++g) {
    for (int v = 0; v < vectors; ++v)
      simd::put(scores + g * key_chunk + from + v * width, sum[g][v]);
  }
}

// sums[g][d ..] = sum of p[g][j] * v[j][d ..] over keys [start, keys) in order of j, `vectors`
// times `width` dimensions; start a multiple of 16.
template <class Ops, int group, int vectors>
TRIREME_SIMD void weigh_values(const Chunk<Ops>& chunk, int64_t start, int64_t keys,
                               const uint32_t* p, int64_t d, float* sums, int64_t stride) {
  constexpr int64_t tile_units = tile_tokens / Ops::per_unit;
  const int64_t whole = keys / Ops::per_unit;
  Float out[group][vectors] = {};
  const auto add_unit = [&](int64_t unit, Word values, int v) __attribute__((always_inline)) {
    for (int64_t s = 0; s < Ops::steps; ++s) {
      const Word value = Ops::left(values, s);
      for (int g = 0; g < group; ++g)
        out[g][v] =
            Ops::add(out[g][v], value, simd::broadcast(p + g * key_chunk + step_of<Ops>(unit, s)));
    }
  };
  for (int64_t first = start / Ops::per_unit; first < whole; first += tile_units) {
    const uint32_t* values = chunk.values_from(first * Ops::per_unit) + d;
    const int64_t count = std::min(tile_units, whole - first);
    for (int64_t u = 0; u < count; ++u) {
      for (int v = 0; v < vectors; ++v)
        add_unit(first + u, simd::load<Word>(values + u * chunk.value_row + v * width), v);
    }
  }
  if (whole * Ops::per_unit < keys) {
    // The last key is alone in its pair: what lies beside it is not of this text yet and may be
    // anything.
    const uint32_t* values =
        chunk.values_from(whole * Ops::per_unit) + whole % tile_units * chunk.value_row + d;
    for (int v = 0; v < vectors; ++v)
      add_unit(whole, simd::load<Word>(values + v * width) & 0xffffu, v);
  }
  for (int g = 0; g < group; ++g) {
    for (int v = 0; v < vectors; ++v) simd::put(sums + g * stride + d + v * width, out[g][v]);
  }
}

// A query as steps, with a zero where an odd head size leaves half a unit.
template <class Ops>
TRIREME_SIMD void load_query(const typename Ops::Element* from, int64_t head_dim, uint32_t* q) {
  if constexpr (Ops::steps == 1) {
    q[(head_dim + Ops::per_unit - 1) / Ops::per_unit - 1] = 0;
    std::memcpy(q, from, static_cast<size_t>(head_dim) * sizeof(typename Ops::Element));
  } else {
    for (int64_t d = 0; d < head_dim; d += width)
      simd::put(reinterpret_cast<float*>(q) + d, simd::widen(from + d, head_dim - d));
  }
}

template <class Ops>
TRIREME_SIMD Softmax soften_row(const float* scores, uint32_t* probabilities, Seen seen,
                                int64_t start, int64_t padded, const Scoring& score) {
  using Element = typename Ops::Element;
  const auto write = [&](int64_t j, Float p) __attribute__((always_inline)) {
    if constexpr (Ops::steps == 1) {
      simd::put(reinterpret_cast<Element*>(probabilities) + j, p);
    } else {
      simd::put(reinterpret_cast<float*>(probabilities) + j,
                simd::rounded(p, static_cast<const Element*>(nullptr)));
    }
  };
  return soften(scores, seen, start, padded, score, write);
}

// The sums of query q in a part, and their softmax behind them.
struct Sums {
  float* part;
  int64_t count, stride;
  Sums(const AttentionArguments& a, float* its_part)
      : part(its_part), count(padded_head(a.head_dim)), stride(part_floats(1, 1, a.head_dim)) {}
  float* of(int64_t query) const { return part + query * stride; }
  Softmax softmax(int64_t query) const { return {of(query)[count], of(query)[count + 1]}; }
  void set_softmax(int64_t query, Softmax s) const {
    of(query)[count] = s.top;
    of(query)[count + 1] = s.total;
  }
};

// Its first element in q and out.
TRIREME_SIMD int64_t place_of(const AttentionArguments& a, int64_t query) {
  return query / a.group * a.row_stride + query % a.group * a.head_dim;
}

// Queries [first, first + group): of them the first sees the earliest key, the last the latest.
template <class Ops, int group>
void attend_group(const Chunk<Ops>& chunk, int64_t first, const Sums& sums,
                  const DecodeScratch& scratch) {
  const AttentionArguments& a = chunk.a;
  alignas(64) uint32_t q[group][max_steps];
  const auto* const from = static_cast<const typename Ops::Element*>(a.q);
  for (int g = 0; g < group; ++g) load_query<Ops>(from + place_of(a, first + g), a.head_dim, q[g]);
  const int64_t most = chunk.seen_by(first + group - 1).to,
                positions = (most + tile_tokens - 1) / tile_tokens * tile_tokens,
                start = std::min(chunk.seen_by(first).from, positions) / tile_tokens * tile_tokens;
  int64_t position = start;
  for (; position + 2 * width <= positions; position += 2 * width)
    score_keys<Ops, group, 2>(chunk, q, position, scratch.scores);
  for (; position < positions; position += width)
    score_keys<Ops, group, 1>(chunk, q, position, scratch.scores);
  for (int g = 0; g < group; ++g) {
    sums.set_softmax(
        first + g,
        soften_row<Ops>(scratch.scores + g * key_chunk, scratch.probabilities + g * key_chunk,
                        chunk.seen_by(first + g), start, positions, Scoring{a.scale, a.cap}));
  }
  float* const to = sums.of(first);
  int64_t d = 0;
  constexpr int64_t columns = value_vectors * width;
  for (; d + columns <= chunk.value_row; d += columns) {
    weigh_values<Ops, group, value_vectors>(chunk, start, most, scratch.probabilities, d, to,
                                            sums.stride);
  }
  for (; d < chunk.value_row; d += width)
    weigh_values<Ops, group, 1>(chunk, start, most, scratch.probabilities, d, to, sums.stride);
}

// The first query that sees keys of a chunk.
TRIREME_SIMD int64_t first_query(const AttentionArguments& a, int64_t chunk) {
  return std::max<int64_t>(0, chunk * key_chunk + 1 - a.keys) * a.group;
}

template <class Ops>
void attend_queries(const AttentionArguments& a, int64_t chunk_number, float* part,
                    const DecodeScratch& scratch) {
  const Chunk<Ops> chunk(a, chunk_number);
  const Sums sums(a, part);
  const int64_t queries = a.rows * a.group;
  int64_t query = first_query(a, chunk_number);
  for (; query + 4 <= queries; query += 4) attend_group<Ops, 4>(chunk, query, sums, scratch);
  switch (queries - query) {
    case 3: attend_group<Ops, 3>(chunk, query, sums, scratch); break;
    case 2: attend_group<Ops, 2>(chunk, query, sums, scratch); break;
    case 1: attend_group<Ops, 1>(chunk, query, sums, scratch); break;
    default: break;
  }
}

TRIREME_SIMD void merge_chunk(const AttentionArguments& a, int64_t chunk, const Sums& into,
                              const Sums& other) {
  for (int64_t query = first_query(a, chunk); query < a.rows * a.group; ++query) {
    Softmax softmax = into.softmax(query);
    merge(softmax, into.of(query), other.softmax(query), other.of(query), into.count);
    into.set_softmax(query, softmax);
  }
}

template <class Ops>
TRIREME_SIMD void store_results(const AttentionArguments& a, const Sums& sums) {
  for (int64_t query = 0; query < a.rows * a.group; ++query) {
    const Float inverse = simd::splat(1.0f / sums.softmax(query).total);
    auto* const to = static_cast<typename Ops::Element*>(a.out) + place_of(a, query);
    for (int64_t d = 0; d < a.head_dim; d += width)
      simd::put(to + d, simd::load(sums.of(query) + d) * inverse, a.head_dim - d);
  }
}

template <class Ops>
void attend_all(const AttentionArguments& a, const DecodeScratch& scratch) {
  const Sums sums(a, scratch.sums), other(a, scratch.chunk);
  attend_queries<Ops>(a, a.first_chunk(), scratch.sums, scratch);
  for (int64_t chunk = a.first_chunk() + 1; chunk < a.chunks(); ++chunk) {
    attend_queries<Ops>(a, chunk, scratch.chunk, scratch);
    merge_chunk(a, chunk, sums, other);
  }
  store_results<Ops>(a, sums);
  simd::leave();
}

template <class Ops>
void attend_part(const AttentionArguments& a, int64_t chunk, float* parts,
                 const DecodeScratch& scratch) {
  if (chunk < a.first_chunk()) return;
  attend_queries<Ops>(a, chunk, parts + chunk * part_floats(a.rows, a.group, a.head_dim), scratch);
  simd::leave();
}

template <class Ops>
void merge_parts(const AttentionArguments& a, float* parts) {
  const int64_t part = part_floats(a.rows, a.group, a.head_dim);
  const Sums sums(a, parts + a.first_chunk() * part);
  for (int64_t chunk = a.first_chunk() + 1; chunk < a.chunks(); ++chunk) {
    merge_chunk(a, chunk, sums, Sums(a, parts + chunk * part));
  }
  store_results<Ops>(a, sums);
  simd::leave();
}

template <class Ops>
constexpr DecodeAttention decode_attention{attend_all<Ops>, attend_part<Ops>, merge_parts<Ops>};

}  // namespace
}  // namespace trireme::kernels
