// head_rows.hpp, a functor for each pass (exec.hpp): the operations of log_sum_exp_body.hpp in
// their order.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/exp_of_lane.hpp"
#include "kernels/row_functors.hpp"
#include "trireme/base/kernel_function.hpp"
#include "trireme/kernels/head_rows.hpp"

namespace trireme::kernels {

inline constexpr int64_t head_lanes = 16;
inline constexpr int64_t head_rows_of_team = 4;  // so that each of 64 threads has a lane

// Far below zero instead of -infinity; a NaN stays one.
TRIREME_KERNEL inline float finite_or_far(float u) { return -1e30f > u ? -1e30f : u; }

template <class T>
struct ScanHeadRows {
  struct Shared {
    float of_lane[head_rows_of_team * head_lanes];
    float weighted_of_lane[head_rows_of_team * head_lanes];
    float max[head_rows_of_team];
  };

  HeadScan a;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    Shared& shared = team.template shared<Shared>();
    const int64_t first = index * head_rows_of_team, left = a.chunk.rows - first;
    const int64_t rows = left < head_rows_of_team ? left : head_rows_of_team;
    team.barrier();  // shared memory may still be read
    team.each(rows * head_lanes, [&](int64_t task) {
      float best = -__FLT_MAX__;
      each_of_lane(first, task, [&](float z) { best = best > z ? best : z; });
      shared.of_lane[task] = best;
    });
    team.barrier();
    team.each(rows, [&](int64_t row) {
      shared.max[row] = rescale(first + row, shared.of_lane + row * head_lanes);
    });
    team.barrier();
    team.each(rows * head_lanes, [&](int64_t task) {
      const float max = shared.max[task / head_lanes];
      float sum = 0, weighted = 0;
      each_of_lane(first, task, [&](float z) {
        const float u = z - max, e = exp_of_lane(u);
        sum += e;
        if (a.with_entropy) weighted += e * finite_or_far(u);
      });
      shared.of_lane[task] = sum;
      shared.weighted_of_lane[task] = weighted;
    });
    team.barrier();
    team.each(rows, [&](int64_t row) {
      add(first + row, shared.of_lane + row * head_lanes,
          shared.weighted_of_lane + row * head_lanes);
    });
  }

 private:
  // f(z) for the elements of one lane of one row, in order.
  template <class F>
  TRIREME_KERNEL void each_of_lane(int64_t first, int64_t task, const F& f) const {
    const T* logits =
        static_cast<const T*>(a.chunk.logits) + (first + task / head_lanes) * a.chunk.columns;
    for (int64_t i = task % head_lanes; i < a.chunk.columns; i += head_lanes)
      f(widen(logits[i]) * a.chunk.scale);
  }

  // Moves the row's sums to the larger maximum, which it returns.
  TRIREME_KERNEL float rescale(int64_t row, const float* best_of_lane) const {
    HeadRow seen{0, 0, -__builtin_inff(), 0};
    if (a.chunk.first > 0) seen = a.seen[row];
    float best = best_of_lane[0];
    for (int64_t lane = 1; lane < head_lanes; ++lane)
      best = best > best_of_lane[lane] ? best : best_of_lane[lane];
    if (seen.sum > 0 && best > seen.max) {
      const double shift = static_cast<double>(seen.max) - static_cast<double>(best);
      const double factor = std::exp(shift);
      seen.weighted = factor * (seen.weighted + shift * seen.sum);
      seen.sum *= factor;
    }
    if (best > seen.max) seen.max = best;
    a.seen[row] = seen;
    return seen.max;
  }

  TRIREME_KERNEL void add(int64_t row, const float* sum_of_lane,
                          const float* weighted_of_lane) const {
    double sum = 0, weighted = 0;
    for (int64_t lane = 0; lane < head_lanes; ++lane) {
      sum += static_cast<double>(sum_of_lane[lane]);
      weighted += static_cast<double>(weighted_of_lane[lane]);
    }
    HeadRow& seen = a.seen[row];
    seen.sum += sum;
    seen.weighted += weighted;
    if (a.chunk.first == 0) a.log_probs[row] = 0;
    const int64_t target = a.chunk.targets[row] - a.chunk.first;
    if (target >= 0 && target < a.chunk.columns) {
      a.log_probs[row] =
          widen(static_cast<const T*>(a.chunk.logits)[row * a.chunk.columns + target]) *
          a.chunk.scale;
    }
    if (!a.last) return;
    const float log_sum_exp =
        static_cast<float>(static_cast<double>(seen.max) + std::log(seen.sum));
    a.log_sum_exp[row] = log_sum_exp;
    a.log_probs[row] -= log_sum_exp;
    if (a.with_entropy)
      a.entropy[row] = static_cast<float>(std::log(seen.sum) - seen.weighted / seen.sum);
  }
};

// A row per team.
template <class T>
struct GradientHeadRow {
  HeadGradient a;
  bool aligned;  // rows, for widest<T> elements

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t row) const {
    T* logits = static_cast<T*>(a.chunk.logits) + row * a.chunk.columns;
    const float scale = a.chunk.scale, log_sum_exp = a.log_sum_exp[row];
    const float slope = a.grad_log_probs[row],
                entropy_slope = a.grad_entropy != nullptr ? a.grad_entropy[row] : 0.f;
    const float factor = -scale * slope, entropy_factor = -scale * entropy_slope;
    const float entropy = entropy_slope != 0 ? a.entropy[row] : 0.f;
    const int64_t target = a.chunk.targets[row] - a.chunk.first;
    each_together<widest<T>>(team, a.chunk.columns, aligned, [&]<int n>(Together<n>, int64_t i) {
      Neighbours<T, n> values = neighbours<n>(logits + i);
      for (int j = 0; j < n; ++j) {
        const float log_p = widen(values.at[j]) * scale - log_sum_exp;
        const float p = exp_of_lane(log_p);
        // One sum with the target's own term, rounded once: near a probability of 1 they nearly
        // cancel.
        const float slope_of_logit =
            entropy_slope != 0 ? p * (factor + entropy_factor * (finite_or_far(log_p) + entropy))
                               : p * factor;
        values.at[j] = narrow<T>(i + j == target ? slope_of_logit + scale * slope : slope_of_logit);
      }
      neighbours<n>(logits + i) = values;
    });
  }
};

}  // namespace trireme::kernels
