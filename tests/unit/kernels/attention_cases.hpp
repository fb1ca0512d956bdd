// Steps of decoding for paged_attention_functors.hpp, and their results in double. Memory is of the
// exact size; what no query may see is NaN.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/paged_attention_functors.hpp"

namespace trireme::kernels {

struct AttentionShape {
  int64_t heads = 1, kv_heads = 1, head_dim = 2, page_size = 16;
};

template <class T>
struct AttentionStep {
  // A query for each number of keys. Contents of a sequence follow from its number of keys alone;
  // its pages and rows are drawn by `places`.
  AttentionStep(const AttentionShape& its_shape, const std::vector<int64_t>& lengths,
                unsigned places = 1)
      : shape(its_shape), keys_of(lengths) {
    std::mt19937 random(places);
    int64_t used = 0;
    for (const int64_t length : lengths) used += (length + shape.page_size - 1) / shape.page_size;
    std::vector<int32_t> free(static_cast<size_t>(used + 3));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);
    rows = static_cast<int64_t>(lengths.size()) + 2;
    std::vector<int64_t> row(static_cast<size_t>(rows));
    std::iota(row.begin(), row.end(), int64_t{0});
    std::shuffle(row.begin(), row.end(), random);
    const T nothing = narrow<T>(std::numeric_limits<float>::quiet_NaN());
    keys.assign(
        free.size() * static_cast<size_t>(shape.page_size * shape.kv_heads * shape.head_dim),
        nothing);
    values = keys;
    q.assign(static_cast<size_t>(rows * shape.heads * shape.head_dim), nothing);
    out.assign(q.size(), narrow<T>(untouched));
    for (size_t i = 0; i < lengths.size(); ++i) {
      query.push_back({lengths[i], row[i], static_cast<int64_t>(pages.size()),
                       static_cast<int64_t>(chunk.size())});
      for (int64_t c = 0; c < attention_chunks(lengths[i]); ++c)
        chunk.push_back({static_cast<int32_t>(i), static_cast<int32_t>(c)});
      for (int64_t position = 0; position < lengths[i]; position += shape.page_size) {
        pages.push_back(free.back());
        free.pop_back();
      }
      fill(static_cast<int64_t>(i));
    }
    if (!query.empty()) chunk.insert(chunk.end(), 2, chunk_of_nobody);
    sums.assign(chunk.size() * static_cast<size_t>(shape.heads * shape.head_dim),
                std::numeric_limits<float>::quiet_NaN());
    weights.assign(chunk.size() * static_cast<size_t>(shape.heads * 2),
                   std::numeric_limits<float>::quiet_NaN());
  }

  PagedAttention arguments() {
    return {.q = q.data(),
            .keys = keys.data(),
            .values = values.data(),
            .out = out.data(),
            .bf16 = sizeof(T) != sizeof(float),
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .page_size = shape.page_size,
            .scale = scale(),
            .queries = static_cast<int64_t>(query.size()),
            .chunks = static_cast<int64_t>(chunk.size()),
            .query = query.data(),
            .chunk = chunk.data(),
            .pages = pages.data(),
            .sums = sums.data(),
            .weights = weights.data()};
  }

  // Where element 0 of a KV head lies in the cache.
  int64_t place(int64_t i, int64_t position, int64_t kv_head) const {
    const int64_t page = pages[static_cast<size_t>(query[static_cast<size_t>(i)].first_page +
                                                   position / shape.page_size)];
    return ((page * shape.page_size + position % shape.page_size) * shape.kv_heads + kv_head) *
           shape.head_dim;
  }
  T* key(int64_t i, int64_t position, int64_t kv_head) {
    return keys.data() + place(i, position, kv_head);
  }
  T* value(int64_t i, int64_t position, int64_t kv_head) {
    return values.data() + place(i, position, kv_head);
  }
  const T* result(int64_t i, int64_t head) const {
    return out.data() + (query[static_cast<size_t>(i)].row * shape.heads + head) * shape.head_dim;
  }

  // How many elements are not what they should be; `rounding` in units of what is usual.
  int64_t wrong(double rounding = 1) {
    int64_t count = 0;
    for (int64_t i = 0; i < std::ssize(keys_of); ++i) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        const std::vector<double> want = expected(i, head);
        for (int64_t d = 0; d < shape.head_dim; ++d)
          count += !near(result(i, head)[d], want[static_cast<size_t>(d)], rounding);
      }
    }
    std::vector<bool> asked(static_cast<size_t>(rows));
    for (const PagedQuery& one : query) asked[static_cast<size_t>(one.row)] = true;
    for (size_t e = 0; e < out.size(); ++e)
      count += !asked[e / static_cast<size_t>(shape.heads * shape.head_dim)] &&
               widen(out[e]) != untouched;
    return count;
  }
  bool same_bits(int64_t i, const AttentionStep& other, int64_t j) const {
    const auto bytes = static_cast<size_t>(shape.heads * shape.head_dim) * sizeof(T);
    return std::memcmp(result(i, 0), other.result(j, 0), bytes) == 0;
  }

  AttentionShape shape;
  std::vector<int64_t> keys_of;
  int64_t rows = 0;
  std::vector<T> q, keys, values, out;
  std::vector<PagedQuery> query;
  std::vector<PagedChunk> chunk;
  std::vector<int32_t> pages;
  std::vector<float> sums, weights;

 private:
  static constexpr float untouched = 77;
  float scale() const { return 2 / std::sqrt(static_cast<float>(shape.head_dim)); }

  void fill(int64_t i) {
    std::mt19937 random(static_cast<unsigned>(keys_of[static_cast<size_t>(i)]));
    std::normal_distribution<float> normal;
    T* own = q.data() + query[static_cast<size_t>(i)].row * shape.heads * shape.head_dim;
    for (int64_t e = 0; e < shape.heads * shape.head_dim; ++e) own[e] = narrow<T>(normal(random));
    for (int64_t position = 0; position < keys_of[static_cast<size_t>(i)]; ++position) {
      for (int64_t e = 0; e < shape.kv_heads * shape.head_dim; ++e) {
        key(i, position, 0)[e] = narrow<T>(normal(random));
        value(i, position, 0)[e] = narrow<T>(normal(random));
      }
    }
  }

  // The formula.
  std::vector<double> expected(int64_t i, int64_t head) {
    const int64_t kv_head = head / (shape.heads / shape.kv_heads),
                  count = keys_of[static_cast<size_t>(i)];
    const T* own =
        q.data() + (query[static_cast<size_t>(i)].row * shape.heads + head) * shape.head_dim;
    std::vector<double> scores;
    for (int64_t position = 0; position < count; ++position) {
      double dot = 0;
      for (int64_t d = 0; d < shape.head_dim; ++d)
        dot += static_cast<double>(widen(own[d])) *
               static_cast<double>(widen(key(i, position, kv_head)[d]));
      scores.push_back(dot * static_cast<double>(scale()));
    }
    const double best = *std::ranges::max_element(scores);
    double total = 0;
    std::vector<double> sum(static_cast<size_t>(shape.head_dim), 0.0);
    for (int64_t position = 0; position < count; ++position) {
      const double p = std::exp(scores[static_cast<size_t>(position)] - best);
      total += p;
      for (int64_t d = 0; d < shape.head_dim; ++d)
        sum[static_cast<size_t>(d)] +=
            p * static_cast<double>(widen(value(i, position, kv_head)[d]));
    }
    for (double& element : sum) element /= total;
    return sum;
  }

  static bool near(T got, double want, double rounding) {
    const auto value = static_cast<double>(widen(got));
    if (std::isnan(want) || std::isinf(want))
      return std::isnan(want) ? std::isnan(value) : value == want;
    return std::abs(value - want) <=
           (sizeof(T) == sizeof(float) ? 1e-5 : 1e-2) * rounding * std::max(1.0, std::abs(want));
  }
};

// Pages, chunks and tiles that end in all ways; odd numbers of heads, more than a pass has, and
// head sizes that are read in pairs.
inline std::vector<AttentionShape> attention_shapes() {
  return {{1, 1, 2, 16},  {6, 3, 16, 16}, {2, 2, 20, 32},  {7, 1, 64, 256},
          {9, 1, 24, 16}, {32, 2, 8, 64}, {3, 1, 130, 16}, {8, 2, 128, 128}};
}
inline std::vector<int64_t> attention_lengths() {
  return {1, 2, 15, 16, 17, 127, 128, 129, 200, 256, 257, 401};
}

}  // namespace trireme::kernels
