// paged_attention.hpp, a functor for each of its two steps (exec.hpp). Memory sets the time: each
// key and each value is read once for up to eight heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/exp_of_lane.hpp"
#include "kernels/paged_attention_join.hpp"
#include "kernels/row_functors.hpp"
#include "trireme/base/kernel_function.hpp"
#include "trireme/kernels/paged_attention.hpp"

namespace trireme::kernels {

// A chunk of a query and one KV head per team, `most_heads` of its heads in a pass: sums of the
// values, weighted by exp(score - the chunk's largest). Heads that a pass has not are zeros.
// Neighbouring threads read neighbouring bytes, each as much as it can before it needs any: on a
// GPU the time of a team is that of waiting for memory a few times, and of its instructions:
// numbers of 32 bits, heads of usual sizes known when it is compiled.
template <class T, int most_heads>
struct AttendChunk {
  static constexpr int chunk = static_cast<int>(attention_chunk),
                       tile_keys = static_cast<int>(attention_tile);
  static constexpr int lanes = most_heads > 4 ? 16 : 32;  // of the sums over keys
  static constexpr int parts = 4;  // of a product, each of which takes every fourth piece
  static constexpr int keys_of_task = 8 / sizeof(T);  // whose products are made together
  static constexpr int slab = 128;  // elements of a head that are at work together
  static constexpr int values_at_once = most_heads > 4 ? 8 : 16;  // that are under way together
  static constexpr int tiles = chunk / tile_keys;

  struct Shared {
    alignas(32) float q[most_heads][slab];
    alignas(32) float scores[chunk][most_heads];  // then their exponentials
    alignas(16) float best_of_lane[most_heads][lanes + 4],
        sum_of_lane[most_heads][lanes + 4];  // heads in other banks
    int64_t tile[tiles];  // element 0 of the KV head at the tile's first position, in keys and in
                          // values
    union {
      alignas(32) float products[chunk][parts * most_heads +
                                        (most_heads < 4 ? most_heads
                                                        : 4)];  // neighbouring keys in other banks
      alignas(32) float sums[tiles][most_heads][slab];
    };
  };

  PagedAttention a;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    Shared& shared = team.template shared<Shared>();
    const auto i = static_cast<uint32_t>(index),
               kv_heads = static_cast<uint32_t>(a.kv_heads);  // fewer than 2^32 teams
    const Part part(a, static_cast<int>(i / kv_heads), static_cast<int>(i % kv_heads));
    if (part.keys <= 0) return;
    const int group = static_cast<int>(a.heads) / static_cast<int>(a.kv_heads);
    for (int head = 0; head < group; head += most_heads) {
      const int heads = group - head < most_heads ? group - head : most_heads;
      if (a.head_dim == slab) {
        attend<slab>(team, shared, part, part.kv_head * group + head, heads);
      } else if (a.head_dim == slab / 2) {
        attend<slab / 2>(team, shared, part, part.kv_head * group + head, heads);
      } else {
        attend<0>(team, shared, part, part.kv_head * group + head, heads);
      }
    }
  }

 private:
  struct Part {
    int chunk, kv_head, first;
    int keys;   // none: a chunk of nobody
    int apart;  // elements between positions
    int64_t row;
    const int32_t* pages;  // of the query
    TRIREME_KERNEL Part(const PagedAttention& a, int its_chunk, int its_head)
        : chunk(its_chunk),
          kv_head(its_head),
          apart(static_cast<int>(a.kv_heads) * static_cast<int>(a.head_dim)) {
      const PagedChunk which = a.chunk[chunk];
      const PagedQuery& query = a.query[which.query];
      row = query.row;
      first = which.number * AttendChunk::chunk;
      const int64_t left = query.keys - first;
      keys = static_cast<int>(left < AttendChunk::chunk ? left : AttendChunk::chunk);
      pages = a.pages + query.first_page;
    }
  };

  // `head_dim`: elements of a head, where it is one of the sizes that are compiled for; else 0.
  template <int head_dim, class Team>
  TRIREME_KERNEL void attend(const Team& team, Shared& shared, const Part& part, int first_head,
                             int heads) const {
    const int its_dim = head_dim > 0 ? head_dim : static_cast<int>(a.head_dim);
    // Of the pass before, and of the team before, no more than `sums` may still be read.
    team.each(tiles, [&](int64_t i) {
      const auto tile = static_cast<int>(i);
      if (tile * tile_keys >= part.keys) return;
      const auto at = static_cast<uint32_t>(part.first + tile * tile_keys),
                 size = static_cast<uint32_t>(a.page_size);
      shared.tile[tile] =
          (part.pages[at / size] * a.page_size + at % size) * part.apart + part.kv_head * its_dim;
    });
    for (int from = 0; from < its_dim; from += slab) {
      const int count = head_dim > 0 ? head_dim : count_of_slab(from);
      if (from > 0) team.barrier();
      load_queries<head_dim>(team, shared, part, first_head, heads, from, count);
      team.barrier();
      if (from == 0) prefetch_values<head_dim>(team, shared, part);
      if (head_dim == 0 && its_dim % widest<T> != 0) {
        multiply<2, 0>(team, shared, part, from, count);
      } else {
        multiply<widest<T>, head_dim / (widest<T> * parts)>(team, shared, part, from, count);
      }
    }
    team.barrier();
    weigh(team, shared, part, first_head, heads);
    for (int from = 0; from < its_dim; from += slab) {
      const int count = head_dim > 0 ? head_dim : count_of_slab(from);
      if (from > 0) team.barrier();
      if constexpr (head_dim > 0) {
        add_values<sizeof(T) == 2 && head_dim == slab ? 8 : 4>(team, shared, part, from, count);
      } else if (its_dim % 4 == 0) {
        add_values<4>(team, shared, part, from, count);
      } else {
        add_values<2>(team, shared, part, from, count);
      }
      team.barrier();
      if (head_dim > 0 || its_dim % 4 == 0) {
        store_sums<4>(team, shared, part, first_head, heads, from, count);
      } else {
        store_sums<2>(team, shared, part, first_head, heads, from, count);
      }
    }
  }

  TRIREME_KERNEL int count_of_slab(int from) const {
    const int left = static_cast<int>(a.head_dim) - from;
    return left < slab ? left : slab;
  }

  template <int head_dim, class Team>
  TRIREME_KERNEL void load_queries(const Team& team, Shared& shared, const Part& part,
                                   int first_head, int heads, int from, int count) const {
    constexpr int width = head_dim > 0 ? widest<T> : 2;
    const int pieces = count / width,
              its_dim = head_dim > 0 ? head_dim : static_cast<int>(a.head_dim);
    const T* q = static_cast<const T*>(a.q) + (part.row * a.heads + first_head) * a.head_dim + from;
    team.each(most_heads * pieces, [&](int64_t i) {
      const int head = static_cast<int>(i) / pieces % most_heads,
                d = static_cast<int>(i) % pieces * width;
      Neighbours<T, width> values{};
      if (head < heads) values = neighbours<width>(q + head * its_dim + d);
      TRIREME_UNROLL
      for (int j = 0; j < width; ++j)
        shared.q[head][d + j] = head < heads ? widen(values.at[j]) : 0.f;
    });
  }

  // They are on their way to a nearer cache while keys are multiplied.
  template <int head_dim, class Team>
  TRIREME_KERNEL void prefetch_values(const Team& team, const Shared& shared,
                                      const Part& part) const {
    constexpr int lines = head_dim * static_cast<int>(sizeof(T)) / base::cache_line;
    if constexpr (lines > 0) {
      team.each(part.keys * lines, [&](int64_t i) {
        const int position = static_cast<int>(i) / lines, line = static_cast<int>(i) % lines;
        const T* row = static_cast<const T*>(a.values) + shared.tile[position / tile_keys] +
                       position % tile_keys * part.apart;
        base::prefetch(row + line * (base::cache_line / static_cast<int>(sizeof(T))));
      });
    }
  }

  // Products of keys with the slab, added to those of the slabs before. `its_pieces`: of each part,
  // read before any is used; 0: as many as there are.
  template <int width, int its_pieces, class Team>
  TRIREME_KERNEL void multiply(const Team& team, Shared& shared, const Part& part, int from,
                               int count) const {
    constexpr int tasks_of_part = chunk / keys_of_task;
    team.each(tasks_of_part * parts, [&](int64_t i) {
      const int its_part = static_cast<int>(i) % parts, first = static_cast<int>(i) / parts;
      const T* key[keys_of_task];
      float sums[keys_of_task][most_heads];
      TRIREME_UNROLL
      for (int j = 0; j < keys_of_task; ++j) {
        const int position = first + j * tasks_of_part,
                  seen = position < part.keys ? position
                                              : 0;  // of the others nobody reads the products
        key[j] = static_cast<const T*>(a.keys) + shared.tile[seen / tile_keys] +
                 (seen % tile_keys * part.apart + from + its_part * width);
        TRIREME_UNROLL
        for (int head = 0; head < most_heads; ++head)
          sums[j][head] = from > 0 ? shared.products[position][its_part * most_heads + head] : 0.f;
      }
      if constexpr (its_pieces > 0) {
        Neighbours<T, width> k[its_pieces][keys_of_task];
        TRIREME_UNROLL
        for (int piece = 0; piece < its_pieces; ++piece) {
          TRIREME_UNROLL
          for (int j = 0; j < keys_of_task; ++j)
            k[piece][j] = neighbours<width>(key[j] + piece * parts * width);
        }
        TRIREME_UNROLL
        for (int piece = 0; piece < its_pieces; ++piece)
          add_products<width>(sums, k[piece], shared, (piece * parts + its_part) * width);
      } else {
        for (int d = its_part * width, at = 0; d < count; d += parts * width, at += parts * width) {
          Neighbours<T, width> k[keys_of_task];
          TRIREME_UNROLL
          for (int j = 0; j < keys_of_task; ++j) k[j] = neighbours<width>(key[j] + at);
          add_products<width>(sums, k, shared, d);
        }
      }
      TRIREME_UNROLL
      for (int j = 0; j < keys_of_task; ++j) {
        TRIREME_UNROLL
        for (int head = 0; head < most_heads; ++head)
          shared.products[first + j * tasks_of_part][its_part * most_heads + head] = sums[j][head];
      }
    });
  }

  template <int width>
  TRIREME_KERNEL static void add_products(float (&sums)[keys_of_task][most_heads],
                                          const Neighbours<T, width> (&k)[keys_of_task],
                                          const Shared& shared, int d) {
    TRIREME_UNROLL
    for (int head = 0; head < most_heads; ++head) {
      const Neighbours<float, width> q = neighbours<width>(shared.q[head] + d);
      TRIREME_UNROLL
      for (int j = 0; j < keys_of_task; ++j) {
        TRIREME_UNROLL
        for (int i = 0; i < width; ++i)
          sums[j][head] = std::fma(widen(k[j].at[i]), q.at[i], sums[j][head]);
      }
    }
  }

  // Scores, the largest, exponentials and their sum.
  template <class Team>
  TRIREME_KERNEL void weigh(const Team& team, Shared& shared, const Part& part, int first_head,
                            int heads) const {
    constexpr int tasks = lanes * most_heads;
    team.each(tasks, [&](int64_t task) {
      const int lane = static_cast<int>(task) / most_heads,
                head = static_cast<int>(task) % most_heads;
      float best = -__builtin_inff();
      TRIREME_UNROLL
      for (int i = 0; i < chunk / lanes; ++i) {
        const int key = lane + i * lanes;
        if (key >= part.keys) break;
        float score = shared.products[key][head];
        TRIREME_UNROLL
        for (int its_part = 1; its_part < parts; ++its_part)
          score += shared.products[key][its_part * most_heads + head];
        score *= a.scale;
        shared.scores[key][head] = score;
        best = best > score ? best : score;
      }
      shared.best_of_lane[head][lane] = best;
    });
    team.barrier();
    team.each(tasks, [&](int64_t task) {
      const int lane = static_cast<int>(task) / most_heads,
                head = static_cast<int>(task) % most_heads;
      float best = shared.best_of_lane[head][0];
      TRIREME_UNROLL
      for (int other = 0; other < lanes; other += 4) {
        const Neighbours<float, 4> others = neighbours<4>(shared.best_of_lane[head] + other);
        TRIREME_UNROLL
        for (int i = 0; i < 4; ++i) best = best > others.at[i] ? best : others.at[i];
      }
      const float unit = best == -__builtin_inff() ? 0.f : best;  // other chunks may have more
      float sum = 0;
      TRIREME_UNROLL
      for (int i = 0; i < chunk / lanes; ++i) {
        const int key = lane + i * lanes;
        if (key >= part.keys) break;
        sum += shared.scores[key][head] = exp_of_lane(shared.scores[key][head] - unit);
      }
      shared.sum_of_lane[head][lane] = sum;
      if (lane == 0 && head < heads)
        a.weights[(part.chunk * a.heads + first_head + head) * 2] = best;
    });
    team.barrier();
    team.each(heads, [&](int64_t head) {
      float sum = 0;
      TRIREME_UNROLL
      for (int lane = 0; lane < lanes; ++lane) sum += shared.sum_of_lane[head][lane];
      a.weights[(part.chunk * a.heads + first_head + head) * 2 + 1] = sum;
    });
  }

  // Of each tile, in order of the positions.
  template <int width, class Team>
  TRIREME_KERNEL void add_values(const Team& team, Shared& shared, const Part& part, int from,
                                 int count) const {
    const int its_pieces = count / width;
    team.each(tiles * its_pieces, [&](int64_t task) {
      const int tile = static_cast<int>(task) / its_pieces,
                d = static_cast<int>(task) % its_pieces * width, first = tile * tile_keys;
      if (first >= part.keys) return;
      const int keys = part.keys - first < tile_keys ? part.keys - first : tile_keys;
      const T* values = static_cast<const T*>(a.values) + shared.tile[tile] + (from + d);
      float sums[most_heads][width] = {};
      int key = 0;
      for (; key + values_at_once <= keys; key += values_at_once) {
        add_some<values_at_once, width>(sums, shared.scores + first + key,
                                        values + key * part.apart, part.apart);
      }
      for (; key < keys; ++key)
        add_some<1, width>(sums, shared.scores + first + key, values + key * part.apart,
                           part.apart);
      TRIREME_UNROLL
      for (int head = 0; head < most_heads; ++head) {
        Neighbours<float, width> out;
        TRIREME_UNROLL
        for (int i = 0; i < width; ++i) out.at[i] = sums[head][i];
        neighbours<width>(shared.sums[tile][head] + d) = out;
      }
    });
  }

  template <int some, int width>
  TRIREME_KERNEL static void add_some(float (*sums)[width], const float (*weights)[most_heads],
                                      const T* values, int apart) {
    Neighbours<T, width> v[some];
    TRIREME_UNROLL
    for (int key = 0; key < some; ++key) v[key] = neighbours<width>(values + key * apart);
    TRIREME_UNROLL
    for (int key = 0; key < some; ++key) {
      const Neighbours<float, most_heads> weight = neighbours<most_heads>(weights[key]);
      TRIREME_UNROLL
      for (int head = 0; head < most_heads; ++head) {
        TRIREME_UNROLL
        for (int i = 0; i < width; ++i)
          sums[head][i] = std::fma(weight.at[head], widen(v[key].at[i]), sums[head][i]);
      }
    }
  }

  // Of the tiles, in their order.
  template <int width, class Team>
  TRIREME_KERNEL void store_sums(const Team& team, const Shared& shared, const Part& part,
                                 int first_head, int heads, int from, int count) const {
    const int its_tiles = (part.keys + tile_keys - 1) / tile_keys, its_pieces = count / width;
    float* out = a.sums + (part.chunk * a.heads + first_head) * a.head_dim + from;
    team.each(heads * its_pieces, [&](int64_t i) {
      const int head = static_cast<int>(i) / its_pieces,
                d = static_cast<int>(i) % its_pieces * width;
      Neighbours<float, width> sum = neighbours<width>(shared.sums[0][head] + d);
      TRIREME_UNROLL
      for (int tile = 1; tile < tiles; ++tile) {
        if (tile >= its_tiles) break;
        const Neighbours<float, width> next = neighbours<width>(shared.sums[tile][head] + d);
        TRIREME_UNROLL
        for (int j = 0; j < width; ++j) sum.at[j] += next.at[j];
      }
      neighbours<width>(out + head * static_cast<int>(a.head_dim) + d) = sum;
    });
  }
};

}  // namespace trireme::kernels
