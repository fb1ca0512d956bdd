#include "trireme/kernels/decode_attention.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/vector16.hpp"

namespace trireme::kernels {
namespace {

using lanes::Float;

constexpr int64_t max_head_dim = 512;
constexpr int max_group = 4;  // query heads that share one pass over the keys
constexpr float lowest = -1e30f;

// What is kept of a group of query heads between chunks of keys.
struct State {
  alignas(64) float q[max_group][max_head_dim];
  alignas(64) float out[max_group][max_head_dim];
  alignas(64) float scores[max_group][attention_chunk];
  float max[max_group];
  double sum[max_group];
};

template <class T>
const T* tile_of(const AttentionArguments& a, int64_t tile) {
  const std::byte* page = a.pages[tile / a.tiles_per_page] + a.offset;
  return reinterpret_cast<const T*>(page) + tile % a.tiles_per_page * tile_elements(a.head_dim);
}

// scores[g][j] = scale * q[g] . k[j] for the keys of one tile; even and odd dimensions add up apart.
template <class T, int group>
TRIREME_LANES_INLINE void score_tile(const State& s, const T* keys, int64_t head_dim, float scale, float* scores) {
  Float even[group] = {}, odd[group] = {};
  int64_t d = 0;
  for (; d + 2 <= head_dim; d += 2) {
    const Float k0 = lanes::load(keys + d * lanes::count), k1 = lanes::load(keys + (d + 1) * lanes::count);
    for (int g = 0; g < group; ++g) {
      even[g] += k0 * s.q[g][d];
      odd[g] += k1 * s.q[g][d + 1];
    }
  }
  if (d < head_dim) {
    for (int g = 0; g < group; ++g) even[g] += lanes::load(keys + d * lanes::count) * s.q[g][d];
  }
  for (int g = 0; g < group; ++g) lanes::store(scores + g * attention_chunk, (even[g] + odd[g]) * scale);
}

// Scores -> exp(score - new maximum); rescales what was summed before.
template <int group>
TRIREME_LANES_INLINE void soften(State& s, int64_t keys, int64_t head_padded) {
  const int64_t width = (keys + lanes::count - 1) / lanes::count * lanes::count;
  for (int g = 0; g < group; ++g) {
    for (int64_t j = keys; j < width; ++j) s.scores[g][j] = lowest;
    Float best = Float{} + lowest;
    for (int64_t j = 0; j < width; j += lanes::count) best = lanes::max(best, lanes::load(s.scores[g] + j));
    const float new_max = std::max(s.max[g], lanes::horizontal_max(best));
    const float factor = lanes::exp(Float{} + (s.max[g] - new_max))[0];
    Float sum{};
    for (int64_t j = 0; j < width; j += lanes::count) {
      const Float p = lanes::exp(lanes::load(s.scores[g] + j) - new_max);
      sum += p;
      lanes::store(s.scores[g] + j, p);
    }
    s.sum[g] = s.sum[g] * static_cast<double>(factor) + lanes::horizontal_sum(sum);
    s.max[g] = new_max;
    for (int64_t d = 0; d < head_padded; d += lanes::count) lanes::store(s.out[g] + d, lanes::load(s.out[g] + d) * factor);
  }
}

// out[g][d ..] += p[g][j] * v[j][d ..] for all keys of the chunk in order; `vectors` times 16 dimensions at a time.
template <class T, int group, int vectors>
TRIREME_LANES_INLINE void add_values(const AttentionArguments& a, State& s, int64_t first, int64_t keys, int64_t d) {
  const int64_t row = padded_head(a.head_dim);
  Float sum[group][vectors];
  for (int g = 0; g < group; ++g) {
    for (int i = 0; i < vectors; ++i) sum[g][i] = lanes::load(s.out[g] + d + i * lanes::count);
  }
  for (int64_t begin = 0; begin < keys; begin += tile_tokens) {
    const T* values = tile_of<T>(a, (first + begin) / tile_tokens) + a.head_dim * tile_tokens + d;
    const int64_t count = std::min(tile_tokens, keys - begin);
    for (int64_t j = 0; j < count; ++j) {
      for (int i = 0; i < vectors; ++i) {
        const Float v = lanes::load(values + j * row + i * lanes::count);
        for (int g = 0; g < group; ++g) sum[g][i] += v * s.scores[g][begin + j];
      }
    }
  }
  for (int g = 0; g < group; ++g) {
    for (int i = 0; i < vectors; ++i) lanes::store(s.out[g] + d + i * lanes::count, sum[g][i]);
  }
}

template <class T, int group>
TRIREME_LANES_INLINE void attend_group(const AttentionArguments& a, int64_t head) {
  State s;
  const int64_t padded = padded_head(a.head_dim);
  const T* q = static_cast<const T*>(a.q) + head * a.head_dim;
  for (int g = 0; g < group; ++g) {
    for (int64_t d = 0; d < a.head_dim; d += lanes::count) {
      lanes::store(s.q[g] + d, a.head_dim - d >= lanes::count ? lanes::load(q + g * a.head_dim + d)
                                                              : lanes::load_part(q + g * a.head_dim + d, a.head_dim - d, 0.f));
    }
    std::memset(s.out[g], 0, static_cast<size_t>(padded) * sizeof(float));
    s.max[g] = lowest;
    s.sum[g] = 0;
  }
  for (int64_t first = 0; first < a.keys; first += attention_chunk) {
    const int64_t keys = std::min(attention_chunk, a.keys - first);
    for (int64_t j = 0; j < keys; j += tile_tokens) {
      score_tile<T, group>(s, tile_of<T>(a, (first + j) / tile_tokens), a.head_dim, a.scale, s.scores[0] + j);
    }
    soften<group>(s, keys, padded);
    int64_t d = 0;
    for (; d + 4 * lanes::count <= padded; d += 4 * lanes::count) add_values<T, group, 4>(a, s, first, keys, d);
    for (; d < padded; d += lanes::count) add_values<T, group, 1>(a, s, first, keys, d);
  }
  T* out = static_cast<T*>(a.out) + head * a.head_dim;
  for (int g = 0; g < group; ++g) {
    const float sum = static_cast<float>(s.sum[g]);
    for (int64_t d = 0; d < a.head_dim; d += lanes::count) {
      const Float value = lanes::load(s.out[g] + d) / sum;
      if (a.head_dim - d >= lanes::count) {
        lanes::store(out + g * a.head_dim + d, value);
      } else {
        lanes::store_part(out + g * a.head_dim + d, a.head_dim - d, value);
      }
    }
  }
}

template <class T>
TRIREME_LANES_INLINE void attend_all(const AttentionArguments& a) {
  int64_t head = 0;
  for (; head + 4 <= a.group; head += 4) attend_group<T, 4>(a, head);
  switch (a.group - head) {
    case 3: attend_group<T, 3>(a, head); break;
    case 2: attend_group<T, 2>(a, head); break;
    case 1: attend_group<T, 1>(a, head); break;
    default: break;
  }
}

template <class T>
void store(T* tile, int64_t slot, const T* k, const T* v, int64_t head_dim) {
  for (int64_t d = 0; d < head_dim; ++d) tile[d * tile_tokens + slot] = k[d];
  std::memcpy(tile + head_dim * tile_tokens + slot * padded_head(head_dim), v, static_cast<size_t>(head_dim) * sizeof(T));
}

}  // namespace

int64_t largest_head_dim() { return max_head_dim; }

void store_kv(ElementType type, void* tile, int64_t position, const void* k, const void* v, int64_t head_dim) {
  const int64_t slot = position % tile_tokens;
  if (type == ElementType::f32) {
    store(static_cast<float*>(tile), slot, static_cast<const float*>(k), static_cast<const float*>(v), head_dim);
  } else {
    store(static_cast<uint16_t*>(tile), slot, static_cast<const uint16_t*>(k), static_cast<const uint16_t*>(v), head_dim);
  }
}

TRIREME_CLONES void attend(const AttentionArguments& a) {
  if (a.type == ElementType::f32) {
    attend_all<float>(a);
  } else {
    attend_all<uint16_t>(a);
  }
}

}  // namespace trireme::kernels
