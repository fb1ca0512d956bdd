// paged_attention.hpp, a functor for each of its two steps (exec.hpp). Memory sets the time: each key and each value is read once for up to eight heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/exp_of_lane.hpp"
#include "kernels/row_functors.hpp"
#include "trireme/base/kernel_function.hpp"
#include "trireme/kernels/paged_attention.hpp"

namespace trireme::kernels {

// A chunk of a query and one KV head per team, `most_heads` of its heads in a pass: sums of the values, weighted by exp(score - the chunk's largest).
// Heads that a pass has not are zeros. Neighbouring threads read neighbouring bytes, each as much as it can before it needs any: on a GPU the time of
// a team is that of waiting for memory a few times.
template <class T, int most_heads>
struct AttendChunk {
  static constexpr int lanes = 16;                         // of the sums over keys
  static constexpr int parts = 4;                          // of a product, each of which takes every fourth piece
  static constexpr int keys_of_task = 8 / sizeof(T);       // whose products are made together
  static constexpr int slab = 128;                         // elements of a head that are at work together
  static constexpr int pieces = slab / (widest<T> * parts);   // of a part of a whole slab
  static constexpr int values_at_once = 8;                 // that are under way together
  static constexpr int tiles = attention_chunk / attention_tile;

  struct Shared {
    alignas(32) float q[most_heads][slab];
    alignas(32) float scores[attention_chunk][most_heads];  // then their exponentials
    float best_of_lane[lanes][most_heads], sum_of_lane[lanes][most_heads];
    int64_t tile[tiles];                                     // element 0 of the KV head at the tile's first position, in keys and in values
    union {
      alignas(32) float products[attention_chunk][parts][most_heads];
      alignas(32) float sums[tiles][most_heads][slab];
    };
  };

  PagedAttention a;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    Shared& shared = team.template shared<Shared>();
    const int64_t kv_head = index % a.kv_heads, group = a.heads / a.kv_heads;
    const Part part(a, index / a.kv_heads, kv_head);
    if (part.keys <= 0) return;
    for (int64_t head = 0; head < group; head += most_heads) {
      attend(team, shared, part, kv_head * group + head, static_cast<int>(group - head < most_heads ? group - head : most_heads));
    }
  }

 private:
  struct Part {
    int64_t chunk, kv_head, row, first;
    int keys;              // none: a chunk of nobody
    const int32_t* pages;  // of the query
    TRIREME_KERNEL Part(const PagedAttention& a, int64_t its_chunk, int64_t its_head) : chunk(its_chunk), kv_head(its_head) {
      const PagedQuery& query = a.query[a.chunk[chunk].query];
      row = query.row;
      first = a.chunk[chunk].number * attention_chunk;
      keys = static_cast<int>(query.keys - first < attention_chunk ? query.keys - first : attention_chunk);
      pages = a.pages + query.first_page;
    }
  };

  template <class Team>
  TRIREME_KERNEL void attend(const Team& team, Shared& shared, const Part& part, int64_t first_head, int heads) const {
    // Of the pass before, and of the team before, no more than `sums` may still be read.
    team.each(tiles, [&](int64_t tile) {
      if (tile * attention_tile >= part.keys) return;
      const auto at = static_cast<uint32_t>(part.first + tile * attention_tile), size = static_cast<uint32_t>(a.page_size);
      shared.tile[tile] = ((part.pages[at / size] * a.page_size + at % size) * a.kv_heads + part.kv_head) * a.head_dim;
    });
    for (int64_t from = 0; from < a.head_dim; from += slab) {
      const int count = count_of_slab(from);
      if (from > 0) team.barrier();
      team.each(most_heads * count, [&](int64_t i) {
        const int64_t head = i / count, d = i % count;
        shared.q[head][d] = head < heads ? widen(static_cast<const T*>(a.q)[(part.row * a.heads + first_head + head) * a.head_dim + from + d]) : 0.f;
      });
      team.barrier();
      if (a.head_dim % widest<T> != 0) {
        multiply<2, 0>(team, shared, part, from, count);
      } else if (count == slab) {
        multiply<widest<T>, pieces>(team, shared, part, from, count);
      } else if (count == slab / 2) {
        multiply<widest<T>, pieces / 2>(team, shared, part, from, count);
      } else {
        multiply<widest<T>, 0>(team, shared, part, from, count);
      }
    }
    team.barrier();
    weigh(team, shared, part, first_head, heads);
    for (int64_t from = 0; from < a.head_dim; from += slab) {
      const int count = count_of_slab(from);
      if (from > 0) team.barrier();
      if (a.head_dim % 8 == 0 && a.head_dim >= slab && sizeof(T) == 2) {
        add_values<8>(team, shared, part, from, count);
      } else if (a.head_dim % 4 == 0) {
        add_values<4>(team, shared, part, from, count);
      } else {
        add_values<2>(team, shared, part, from, count);
      }
      team.barrier();
      const int its_tiles = (part.keys + static_cast<int>(attention_tile) - 1) / static_cast<int>(attention_tile);
      team.each(heads * count, [&](int64_t i) {
        const int64_t head = i / count, d = i % count;
        float sum = shared.sums[0][head][d];
        for (int tile = 1; tile < its_tiles; ++tile) sum += shared.sums[tile][head][d];
        a.sums[(part.chunk * a.heads + first_head + head) * a.head_dim + from + d] = sum;
      });
    }
  }

  TRIREME_KERNEL int count_of_slab(int64_t from) const { return static_cast<int>(a.head_dim - from < slab ? a.head_dim - from : slab); }

  // Products of keys with the slab, added to those of the slabs before. `its_pieces`: of each part, read before any is used; 0: as many as there are.
  template <int width, int its_pieces, class Team>
  TRIREME_KERNEL void multiply(const Team& team, Shared& shared, const Part& part, int64_t from, int count) const {
    constexpr int apart = attention_chunk / keys_of_task;
    team.each(apart * parts, [&](int64_t task) {
      const int its_part = static_cast<int>(task % parts), first = static_cast<int>(task / parts);
      const T* key[keys_of_task];
      float sums[keys_of_task][most_heads];
      TRIREME_UNROLL
      for (int j = 0; j < keys_of_task; ++j) {
        const int position = first + j * apart, seen = position < part.keys ? position : 0;  // of the others nobody reads the products
        key[j] = static_cast<const T*>(a.keys) + shared.tile[seen / attention_tile] + seen % attention_tile * a.kv_heads * a.head_dim + from;
        TRIREME_UNROLL
        for (int head = 0; head < most_heads; ++head) sums[j][head] = from > 0 ? shared.products[position][its_part][head] : 0.f;
      }
      if constexpr (its_pieces > 0) {
        Neighbours<T, width> k[its_pieces][keys_of_task];
        TRIREME_UNROLL
        for (int piece = 0; piece < its_pieces; ++piece) {
          for (int j = 0; j < keys_of_task; ++j) k[piece][j] = neighbours<width>(key[j] + (piece * parts + its_part) * width);
        }
        TRIREME_UNROLL
        for (int piece = 0; piece < its_pieces; ++piece) add_products<width>(sums, k[piece], shared, (piece * parts + its_part) * width);
      } else {
        for (int d = its_part * width; d < count; d += parts * width) {
          Neighbours<T, width> k[keys_of_task];
          for (int j = 0; j < keys_of_task; ++j) k[j] = neighbours<width>(key[j] + d);
          add_products<width>(sums, k, shared, d);
        }
      }
      TRIREME_UNROLL
      for (int j = 0; j < keys_of_task; ++j) {
        TRIREME_UNROLL
        for (int head = 0; head < most_heads; ++head) shared.products[first + j * apart][its_part][head] = sums[j][head];
      }
    });
  }

  template <int width>
  TRIREME_KERNEL static void add_products(float (&sums)[keys_of_task][most_heads], const Neighbours<T, width> (&k)[keys_of_task], const Shared& shared, int d) {
    TRIREME_UNROLL
    for (int head = 0; head < most_heads; ++head) {
      const Neighbours<float, width> q = neighbours<width>(shared.q[head] + d);
      TRIREME_UNROLL
      for (int j = 0; j < keys_of_task; ++j) {
        TRIREME_UNROLL
        for (int i = 0; i < width; ++i) sums[j][head] = std::fma(widen(k[j].at[i]), q.at[i], sums[j][head]);
      }
    }
  }

  // Scores, the largest, exponentials and their sum.
  template <class Team>
  TRIREME_KERNEL void weigh(const Team& team, Shared& shared, const Part& part, int64_t first_head, int heads) const {
    constexpr int tasks = lanes * most_heads;
    team.each(tasks, [&](int64_t task) {
      const auto lane = static_cast<int>(task / most_heads), head = static_cast<int>(task % most_heads);
      float best = -__builtin_inff();
      for (int key = lane; key < part.keys; key += lanes) {
        float score = shared.products[key][0][head];
        for (int its_part = 1; its_part < parts; ++its_part) score += shared.products[key][its_part][head];
        score *= a.scale;
        shared.scores[key][head] = score;
        best = best > score ? best : score;
      }
      shared.best_of_lane[lane][head] = best;
    });
    team.barrier();
    team.each(tasks, [&](int64_t task) {
      const auto lane = static_cast<int>(task / most_heads), head = static_cast<int>(task % most_heads);
      float best = shared.best_of_lane[0][head];
      for (int other = 1; other < lanes; ++other) best = best > shared.best_of_lane[other][head] ? best : shared.best_of_lane[other][head];
      const float unit = best == -__builtin_inff() ? 0.f : best;  // other chunks may have more
      float sum = 0;
      for (int key = lane; key < part.keys; key += lanes) sum += shared.scores[key][head] = exp_of_lane(shared.scores[key][head] - unit);
      shared.sum_of_lane[lane][head] = sum;
      if (lane == 0 && head < heads) a.weights[(part.chunk * a.heads + first_head + head) * 2] = best;
    });
    team.barrier();
    team.each(heads, [&](int64_t head) {
      float sum = 0;
      for (int lane = 0; lane < lanes; ++lane) sum += shared.sum_of_lane[lane][head];
      a.weights[(part.chunk * a.heads + first_head + head) * 2 + 1] = sum;
    });
  }

  // Of each tile, in order of the positions.
  template <int width, class Team>
  TRIREME_KERNEL void add_values(const Team& team, Shared& shared, const Part& part, int64_t from, int count) const {
    const int its_pieces = count / width;
    team.each(tiles * its_pieces, [&](int64_t task) {
      const int tile = static_cast<int>(task) / its_pieces, d = static_cast<int>(task) % its_pieces * width, first = tile * static_cast<int>(attention_tile);
      if (first >= part.keys) return;
      const int keys = part.keys - first < attention_tile ? part.keys - first : static_cast<int>(attention_tile);
      const T* values = static_cast<const T*>(a.values) + shared.tile[tile] + from + d;
      float sums[most_heads][width] = {};
      int key = 0;
      for (; key + values_at_once <= keys; key += values_at_once) {
        add_some<values_at_once, width>(sums, shared.scores + first + key, values + key * a.kv_heads * a.head_dim);
      }
      for (; key < keys; ++key) add_some<1, width>(sums, shared.scores + first + key, values + key * a.kv_heads * a.head_dim);
      TRIREME_UNROLL
      for (int head = 0; head < most_heads; ++head) {
        TRIREME_UNROLL
        for (int i = 0; i < width; ++i) shared.sums[tile][head][d + i] = sums[head][i];
      }
    });
  }

  template <int some, int width>
  TRIREME_KERNEL void add_some(float (*sums)[width], const float (*weights)[most_heads], const T* values) const {
    Neighbours<T, width> v[some];
    for (int key = 0; key < some; ++key) v[key] = neighbours<width>(values + key * a.kv_heads * a.head_dim);
    TRIREME_UNROLL
    for (int key = 0; key < some; ++key) {
      const Neighbours<float, most_heads> weight = neighbours<most_heads>(weights[key]);
      TRIREME_UNROLL
      for (int head = 0; head < most_heads; ++head) {
        TRIREME_UNROLL
        for (int i = 0; i < width; ++i) sums[head][i] = std::fma(weight.at[head], widen(v[key].at[i]), sums[head][i]);
      }
    }
  }
};

// A query and a head per team.
template <class T>
struct JoinChunks {
  PagedAttention a;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    const int64_t head = index % a.heads;
    const PagedQuery& query = a.query[index / a.heads];
    const int64_t first = query.first_chunk, last = first + attention_chunks(query.keys);
    float best = -__builtin_inff();
    for (int64_t chunk = first; chunk < last; ++chunk) best = best > weight(chunk, head)[0] ? best : weight(chunk, head)[0];
    T* out = static_cast<T*>(a.out) + (query.row * a.heads + head) * a.head_dim;
    team.each(a.head_dim, [&](int64_t d) {
      float total = 0, sum = 0;
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const float share = exp_of_lane(weight(chunk, head)[0] - best);
        total = std::fma(share, weight(chunk, head)[1], total);
        sum = std::fma(share, a.sums[(chunk * a.heads + head) * a.head_dim + d], sum);
      }
      out[d] = narrow<T>(sum / total);
    });
  }

 private:
  TRIREME_KERNEL const float* weight(int64_t chunk, int64_t head) const { return a.weights + (chunk * a.heads + head) * 2; }
};

}  // namespace trireme::kernels
