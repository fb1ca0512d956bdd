// paged_attention.hpp, its second step: the chunks' sums of a query are joined.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/exp_of_lane.hpp"
#include "kernels/row_functors.hpp"
#include "trireme/base/kernel_function.hpp"
#include "trireme/kernels/paged_attention.hpp"

namespace trireme::kernels {

// A query and a head per team.
template <class T>
struct JoinChunks {
  PagedAttention a;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    const auto i = static_cast<uint32_t>(index),
               heads = static_cast<uint32_t>(a.heads);  // fewer than 2^32 teams
    const uint32_t head = i % heads;
    const PagedQuery query = a.query[i / heads];
    const auto chunks = static_cast<int>(attention_chunks(query.keys));
    const float* weights =
        a.weights + (query.first_chunk * a.heads + head) * 2;  // of the first chunk
    const float* sums = a.sums + (query.first_chunk * a.heads + head) * a.head_dim;
    float best = -__builtin_inff();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const float other = weights[chunk * 2 * a.heads];
      best = best > other ? best : other;
    }
    T* out = static_cast<T*>(a.out) + (query.row * a.heads + head) * a.head_dim;
    team.each(a.head_dim, [&](int64_t d) {
      float total = 0, sum = 0;
      constexpr int together = 4;  // chunks that are read before any is used
      int chunk = 0;
      for (; chunk + together <= chunks; chunk += together)
        add<together>(weights, sums + d, chunk, best, total, sum);
      for (; chunk < chunks; ++chunk) add<1>(weights, sums + d, chunk, best, total, sum);
      out[d] = narrow<T>(sum / total);
    });
  }

 private:
  template <int some>
  TRIREME_KERNEL void add(const float* weights, const float* sums, int first, float best,
                          float& total, float& sum) const {
    Neighbours<float, 2> weight[some];
    float values[some];
    TRIREME_UNROLL
    for (int i = 0; i < some; ++i) {
      weight[i] = neighbours<2>(weights + (first + i) * 2 * a.heads);
      values[i] = sums[(first + i) * a.heads * a.head_dim];
    }
    TRIREME_UNROLL
    for (int i = 0; i < some; ++i) {
      const float share = exp_of_lane(weight[i].at[0] - best);
      total = std::fma(share, weight[i].at[1], total);
      sum = std::fma(share, values[i], sum);
    }
  }
};

}  // namespace trireme::kernels
