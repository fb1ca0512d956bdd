// paged_attention.hpp, a functor for each of its two steps (exec.hpp). Memory sets the time: each key and each value is read once for up to eight heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/exp_of_lane.hpp"
#include "kernels/row_functors.hpp"
#include "trireme/base/kernel_function.hpp"
#include "trireme/kernels/paged_attention.hpp"

namespace trireme::kernels {

// Neighbours that are read at once.
template <class T, int count>
struct alignas(count * sizeof(T)) Neighbours {
  T at[count];
};
template <int count, class T>
TRIREME_KERNEL inline const Neighbours<T, count>& neighbours(const T* first) {
  return *reinterpret_cast<const Neighbours<T, count>*>(first);
}

// A chunk of a query and one KV head per team: sums of the values, weighted by exp(score - the chunk's largest).
template <class T>
struct AttendChunk {
  static constexpr int most_heads = 8;  // of a pass over the keys
  static constexpr int lanes = 16;      // of the sums over keys
  static constexpr int at_once = 8;     // values that are under way together

  // Of a pass; heads that it has not are zeros.
  struct Shared {
    alignas(16) float scores[attention_chunk][most_heads];  // then their exponentials
    alignas(16) float of_lane[lanes][most_heads];
    float largest[most_heads];
  };

  PagedAttention a;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    Shared& shared = team.template shared<Shared>();
    const int64_t kv_head = index % a.kv_heads, group = a.heads / a.kv_heads;
    const Part part(a, index / a.kv_heads, kv_head);
    for (int64_t head = 0; head < group; head += most_heads) {
      attend(team, shared, part, kv_head * group + head, static_cast<int>(group - head < most_heads ? group - head : most_heads));
    }
  }

 private:
  struct Part {
    int64_t chunk, kv_head, row, first;
    int keys;
    const int32_t* pages;  // from that of position `first` on
    TRIREME_KERNEL Part(const PagedAttention& a, int64_t its_chunk, int64_t its_head) : chunk(its_chunk), kv_head(its_head) {
      const PagedQuery& query = a.query[a.chunk[chunk].query];
      row = query.row;
      first = a.chunk[chunk].number * attention_chunk;
      keys = static_cast<int>(query.keys - first < attention_chunk ? query.keys - first : attention_chunk);
      pages = a.pages + query.first_page;
    }
  };

  // Element 0 of the head in `cache` at a position of the part.
  TRIREME_KERNEL const T* cached(const void* cache, const Part& part, int position) const {
    const auto at = static_cast<uint32_t>(part.first + position), size = static_cast<uint32_t>(a.page_size);
    return static_cast<const T*>(cache) + ((part.pages[at / size] * a.page_size + at % size) * a.kv_heads + part.kv_head) * a.head_dim;
  }

  template <class Team>
  TRIREME_KERNEL void attend(const Team& team, Shared& shared, const Part& part, int64_t first_head, int heads) const {
    constexpr int tasks = lanes * most_heads;
    team.barrier();  // what is shared may still be read
    team.each(part.keys, [&](int64_t key) { score(shared.scores[key], cached(a.keys, part, static_cast<int>(key)), part.row, first_head, heads); });
    team.barrier();
    team.each(tasks, [&](int64_t task) {
      const auto lane = static_cast<int>(task / most_heads), head = static_cast<int>(task % most_heads);
      float best = -__builtin_inff();
      for (int key = lane; key < part.keys; key += lanes) best = best > shared.scores[key][head] ? best : shared.scores[key][head];
      shared.of_lane[lane][head] = best;
    });
    team.barrier();
    team.each(most_heads, [&](int64_t head) {
      float best = shared.of_lane[0][head];
      for (int lane = 1; lane < lanes; ++lane) best = best > shared.of_lane[lane][head] ? best : shared.of_lane[lane][head];
      shared.largest[head] = best;
    });
    team.barrier();
    team.each(tasks, [&](int64_t task) {
      const auto lane = static_cast<int>(task / most_heads), head = static_cast<int>(task % most_heads);
      const float best = shared.largest[head], unit = best == -__builtin_inff() ? 0.f : best;  // other chunks may have more
      float sum = 0;
      for (int key = lane; key < part.keys; key += lanes) sum += shared.scores[key][head] = exp_of_lane(shared.scores[key][head] - unit);
      shared.of_lane[lane][head] = sum;
    });
    team.barrier();
    team.each(heads, [&](int64_t head) {
      float sum = 0;
      for (int lane = 0; lane < lanes; ++lane) sum += shared.of_lane[lane][head];
      float* weight = a.weights + (part.chunk * a.heads + first_head + head) * 2;
      weight[0] = shared.largest[head];
      weight[1] = sum;
    });
    team.each(a.head_dim / 2, [&](int64_t pair) { weigh_values(shared, part, 2 * pair, first_head, heads); });
  }

  TRIREME_KERNEL void score(float* scores, const T* key, int64_t row, int64_t first_head, int heads) const {
    constexpr int widest = 16 / sizeof(T);
    const T* q = static_cast<const T*>(a.q) + (row * a.heads + first_head) * a.head_dim;
    float sums[most_heads] = {};
    if (a.head_dim % widest == 0) {
      add_products<widest>(sums, key, q, heads);
    } else {
      add_products<2>(sums, key, q, heads);
    }
    for (int head = 0; head < most_heads; ++head) scores[head] = sums[head] * a.scale;
  }

  template <int count>
  TRIREME_KERNEL void add_products(float* sums, const T* key, const T* q, int heads) const {
    for (int64_t d = 0; d < a.head_dim; d += count) {
      const Neighbours<T, count> k = neighbours<count>(key + d);
      for (int head = 0; head < most_heads; ++head) {
        if (head >= heads) continue;
        const Neighbours<T, count> x = neighbours<count>(q + head * a.head_dim + d);
        for (int i = 0; i < count; ++i) sums[head] = std::fma(widen(k.at[i]), widen(x.at[i]), sums[head]);
      }
    }
  }

  // Elements d and d + 1 of each head's sum, in order of the positions.
  TRIREME_KERNEL void weigh_values(const Shared& shared, const Part& part, int64_t d, int64_t first_head, int heads) const {
    float sums[most_heads][2] = {};
    for (int tile = 0; tile < part.keys; tile += attention_tile) {
      const T* values = cached(a.values, part, tile) + d;
      const int last = part.keys - tile < attention_tile ? part.keys - tile : static_cast<int>(attention_tile);
      int key = 0;
      for (; key + at_once <= last; key += at_once) add_values<at_once>(sums, shared.scores + tile + key, values + key * a.kv_heads * a.head_dim);
      for (; key < last; ++key) add_values<1>(sums, shared.scores + tile + key, values + key * a.kv_heads * a.head_dim);
    }
    float* to = a.sums + (part.chunk * a.heads + first_head) * a.head_dim + d;
    for (int head = 0; head < most_heads; ++head) {
      if (head >= heads) continue;
      to[head * a.head_dim] = sums[head][0];
      to[head * a.head_dim + 1] = sums[head][1];
    }
  }

  template <int count>
  TRIREME_KERNEL void add_values(float (*sums)[2], const float (*weights)[most_heads], const T* values) const {
    Neighbours<T, 2> v[count];
    for (int key = 0; key < count; ++key) v[key] = neighbours<2>(values + key * a.kv_heads * a.head_dim);
    for (int key = 0; key < count; ++key) {
      for (int head = 0; head < most_heads; ++head) {
        for (int i = 0; i < 2; ++i) sums[head][i] = std::fma(weights[key][head], widen(v[key].at[i]), sums[head][i]);
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
