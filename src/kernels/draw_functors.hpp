// The draws of draw.hpp, a functor per step, a team per row. Greedy and plain draws repeat the
// operations of sampling.cpp and of log_sum_exp_body.hpp in their order: sixteen lanes to a chunk
// of the vocabulary, their sums added in double.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/exp_of_lane.hpp"
#include "kernels/truncated_draw.hpp"
#include "trireme/base/kernel_function.hpp"

namespace trireme::kernels {

// Mass of a sum in units of exp(z - max); nothing where each of its fp32 terms would be 0 in these
// units.
TRIREME_KERNEL inline double mass_of(double sum, float its_max, float max) {
  if (!(its_max - max >= -87.f)) return 0;
  return sum * std::exp(static_cast<double>(its_max) - static_cast<double>(max));
}

// The sum of the slices' sums (or of their full ones), in their order; one slice as it is.
TRIREME_KERNEL inline DrawRunningSum combine_slices(const DrawArguments& a, int64_t row,
                                                    bool full) {
  const auto sum = [&](int r) {
    return full ? a.summaries[r * a.rows + row].full_sum : a.summaries[r * a.rows + row].sum;
  };
  const auto max = [&](int r) {
    return full ? a.summaries[r * a.rows + row].full_max : a.summaries[r * a.rows + row].max;
  };
  DrawRunningSum total;
  total.max = max(0);
  total.sum = sum(0);
  if (a.ranks == 1) return total;
  for (int r = 1; r < a.ranks; ++r) total.max = total.max < max(r) ? max(r) : total.max;
  total.sum = 0;
  for (int r = 0; r < a.ranks; ++r) total.sum += mass_of(sum(r), max(r), total.max);
  return total;
}

template <class T>
struct SummariseRow {
  DrawArguments a;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    const DrawRow& row = a.row[index];
    DrawSummary out;
    DrawRunningSum sum = accumulate(team, logits_of<T>(a, row), row.scale, index);
    out.full_sum = sum.sum;
    out.full_max = sum.max;
    if (row.changed >= 0) {
      change(team, row);
      sum = accumulate(team, drawable_logits_of<T>(a, row), row.scale, index);
    }
    out.sum = sum.sum;
    out.max = sum.max;
    if (team.rank() == 0) a.summaries[a.rank * a.rows + index] = out;
    if (row.truncated >= 0 && a.ranks > 1) {
      const T* from = drawable_logits_of<T>(a, row);
      T* to =
          static_cast<T*>(a.slices) + (a.rank * a.truncated_rows + row.truncated) * a.slice_stride;
      team.each(a.count, [&](int64_t i) { to[i] = from[i]; });
    }
  }

 private:
  // A copy with biases and penalties, and the smallest finite value in the places of the forbidden
  // ids.
  template <class Team>
  TRIREME_KERNEL void change(const Team& team, const DrawRow& row) const {
    const T* from = logits_of<T>(a, row);
    T* to = static_cast<T*>(a.changed) + row.changed * a.count;
    team.each(a.count, [&](int64_t i) { to[i] = from[i]; });
    team.barrier();
    const int64_t first = a.slice_first[a.rank];
    team.each(row.bias_count, [&](int64_t i) {
      const TokenBias& bias = a.biases[row.bias_first + i];
      const int64_t place = bias.id - first;
      if (place >= 0 && place < a.count) to[place] = narrow<T>(widen(from[place]) + bias.bias);
    });
    team.barrier();
    team.each(row.seen_count, [&](int64_t i) {
      const int64_t place = a.seen[row.seen_first + i] - first;
      if (place < 0 || place >= a.count) return;
      const float logit = widen(to[place]);
      to[place] =
          narrow<T>(logit < 0 ? logit * row.repetition_penalty : logit / row.repetition_penalty);
    });
    team.barrier();
    team.each(row.forbidden_count, [&](int64_t i) {
      const int64_t place = a.forbidden[row.forbidden_first + i] - first;
      if (place >= 0 && place < a.count) to[place] = lowest();
    });
    team.barrier();
  }
  TRIREME_KERNEL static T lowest() {
    if constexpr (sizeof(T) == sizeof(float)) {
      return -__FLT_MAX__;
    } else {
      return 0xFF7F;
    }
  }

  // The running log-sum-exp of a slice after each chunk.
  template <class Team>
  TRIREME_KERNEL DrawRunningSum accumulate(const Team& team, const T* logits, float scale,
                                           int64_t index) const {
    DrawRunningSum* running = a.running + index * a.chunks;
    float* lanes = a.values + index * draw_values(a.chunks);
    team.barrier();  // the scratch may still be read
    team.each(a.chunks * draw_lanes, [&](int64_t task) {
      float best = -__FLT_MAX__;
      each_of_lane(task, [&](int64_t i) {
        const float z = widen(logits[i]) * scale;
        best = best > z ? best : z;
      });
      lanes[task] = best;
    });
    team.barrier();
    if (team.rank() == 0) {
      float max = -__builtin_inff();
      for (int64_t chunk = 0; chunk < a.chunks; ++chunk) {
        const float* of_chunk = lanes + chunk * draw_lanes;
        float best = of_chunk[0];
        for (int64_t lane = 1; lane < draw_lanes; ++lane)
          best = best > of_chunk[lane] ? best : of_chunk[lane];
        max = best > max ? best : max;
        running[chunk].max = max;
      }
    }
    team.barrier();
    team.each(a.chunks * draw_lanes, [&](int64_t task) {
      const float max = running[task / draw_lanes].max;
      float sum = 0;
      each_of_lane(task, [&](int64_t i) { sum += exp_of_lane(widen(logits[i]) * scale - max); });
      lanes[task] = sum;
    });
    team.barrier();
    if (team.rank() == 0) {
      double sum = 0;
      for (int64_t chunk = 0; chunk < a.chunks; ++chunk) {
        const float before = chunk == 0 ? -__builtin_inff() : running[chunk - 1].max,
                    max = running[chunk].max;
        if (sum > 0 && max > before)
          sum *= std::exp(static_cast<double>(before) - static_cast<double>(max));
        double of_chunk = 0;
        for (int64_t lane = 0; lane < draw_lanes; ++lane)
          of_chunk += static_cast<double>(lanes[chunk * draw_lanes + lane]);
        sum += of_chunk;
        running[chunk].sum = sum;
      }
    }
    team.barrier();
    return running[a.chunks - 1];
  }

  // f(i) for the elements of one lane of one chunk, in order.
  template <class F>
  TRIREME_KERNEL void each_of_lane(int64_t task, const F& f) const {
    const int64_t first = task / draw_lanes * vocabulary_chunk;
    const int64_t last = first + vocabulary_chunk < a.count ? first + vocabulary_chunk : a.count;
    for (int64_t i = first + task % draw_lanes; i < last; i += draw_lanes) f(i);
  }
};

template <class T>
struct ChooseRow {
  DrawArguments a;

  template <class Team>
  TRIREME_KERNEL void operator()(const Team& team, int64_t index) const {
    const DrawRow& row = a.row[index];
    const DrawRunningSum total = combine_slices(a, index, false),
                         full = combine_slices(a, index, true);
    DrawResult out;
    out.full_sum = full.sum;
    out.full_max = full.max;
    out.owner = a.rank;
    switch (row.kind) {
      case DrawRow::Kind::greedy: greedy(team, index, total, out); break;
      case DrawRow::Kind::plain: plain(team, index, total, out); break;
      case DrawRow::Kind::truncated: truncated(team, index, total, out); break;
    }
    if (team.rank() == 0) a.results[a.rank * a.rows + index] = out;
  }

 private:
  TRIREME_KERNEL void set(const DrawRow& row, int64_t place, DrawResult& out) const {
    out.id = static_cast<int32_t>(a.slice_first[a.rank] + place);
    out.z = widen(drawable_logits_of<T>(a, row)[place]) * row.scale;
    out.full_z = widen(logits_of<T>(a, row)[place]) * row.scale;
  }

  // The lowest id with the largest logit: of the first slice that has it.
  template <class Team>
  TRIREME_KERNEL void greedy(const Team& team, int64_t index, const DrawRunningSum& total,
                             DrawResult& out) const {
    const DrawRow& row = a.row[index];
    out.owner = 0;
    while (out.owner + 1 < a.ranks && a.summaries[out.owner * a.rows + index].max != total.max)
      ++out.owner;
    if (out.owner != a.rank) return;
    const T* logits = drawable_logits_of<T>(a, row);
    int64_t* places = a.places + index * a.chunks * draw_lanes;
    const int64_t tasks = a.chunks * draw_lanes;
    team.each(tasks, [&](int64_t task) {
      int64_t found = a.count;
      for (int64_t i = task; i < a.count && found == a.count; i += tasks)
        found = widen(logits[i]) * row.scale == total.max ? i : a.count;
      places[task] = found;
    });
    team.barrier();
    if (team.rank() != 0) return;
    int64_t place = a.count;
    for (int64_t task = 0; task < tasks; ++task)
      place = places[task] < place ? places[task] : place;
    set(row, place < a.count ? place : 0, out);  // only NaN: any id will do
  }

  template <class Team>
  TRIREME_KERNEL void plain(const Team& team, int64_t index, const DrawRunningSum& total,
                            DrawResult& out) const {
    const DrawRow& row = a.row[index];
    const double target = choose_slice(index, total, row.uniform, out.owner);
    if (out.owner != a.rank) return;
    const DrawRunningSum* running = a.running + index * a.chunks;
    const float max = running[a.chunks - 1].max;
    int64_t chunk = 0;
    double sum = 0;
    for (; chunk + 1 < a.chunks; ++chunk) {
      const double next = mass_of(running[chunk].sum, running[chunk].max, max);
      if (next > target) break;
      sum = next;
    }
    const int64_t first = chunk * vocabulary_chunk;
    const int64_t ids = first + vocabulary_chunk < a.count ? vocabulary_chunk : a.count - first;
    const T* logits = drawable_logits_of<T>(a, row) + first;
    float* p = a.values + index * draw_values(a.chunks);
    team.each(ids, [&](int64_t i) {
      const float u = widen(logits[i]) * row.scale - max;
      p[i] = exp_of_lane(u > -1e30f ? u : -1e30f);
    });
    team.barrier();
    if (team.rank() == 0) set(row, first + pass(p, ids, target - sum), out);
  }

  // As choose_slice() of sampling.cpp: the slice, and the mass to pass inside it.
  TRIREME_KERNEL double choose_slice(int64_t index, const DrawRunningSum& total, float uniform,
                                     int32_t& owner) const {
    const double target = static_cast<double>(uniform) * total.sum;
    double sum = 0, inside = 0;
    owner = 0;
    for (int r = 0; r < a.ranks; ++r) {
      const DrawSummary& slice = a.summaries[r * a.rows + index];
      const double own = mass_of(slice.sum, slice.max, total.max);
      if (own <= 0) continue;
      owner = r;
      inside = (target - sum) *
               std::exp(static_cast<double>(total.max) - static_cast<double>(slice.max));
      sum += own;
      if (sum > target) break;
    }
    return inside;
  }

  // The first place at which the running sum passes `target`; the last with a probability above
  // zero when rounding lets none pass.
  TRIREME_KERNEL static int64_t pass(const float* p, int64_t ids, double target) {
    constexpr int together = 16;  // which are read before any is used
    double sum = 0;
    int64_t last = 0, i = 0;
    for (; i + together <= ids; i += together) {
      float some[together];
      for (int j = 0; j < together; ++j) some[j] = p[i + j];
      double reached = sum;
      for (int j = 0; j < together; ++j) reached += static_cast<double>(some[j]);
      if (reached > target) break;  // in one of these: they come one by one
      sum = reached;
      for (int j = 0; j < together; ++j) last = some[j] > 0 ? i + j : last;
    }
    for (; i < ids; ++i) {
      sum += static_cast<double>(p[i]);
      if (p[i] > 0) last = i;
      if (sum > target) return i;
    }
    return last;
  }

  // Every rank has all slices and draws the same.
  template <class Team>
  TRIREME_KERNEL void truncated(const Team& team, int64_t index, const DrawRunningSum& total,
                                DrawResult& out) const {
    const DrawRow& row = a.row[index];
    const TruncatedRow<T> whole{a, row, total.max, a.segments + index * draw_segments};
    const auto of_k = whole.first_k(team);
    auto kept = of_k;
    if (row.top_p < 1) {
      const double all = row.top_k > 0 ? whole.mass(team, of_k, of_k) : total.sum;
      kept = whole.shortest(team, of_k, row.top_p * all);
    }
    kept = whole.at_least(kept, row.min_p);
    out.best = total.max;
    out.id = static_cast<int32_t>(whole.draw(team, kept, out.kept));
    out.z = whole.z_of(out.id);
    out.owner = 0;
    while (out.id >= a.slice_first[out.owner + 1]) ++out.owner;
    if (out.owner == a.rank)
      out.full_z = widen(logits_of<T>(a, row)[out.id - a.slice_first[a.rank]]) * row.scale;
  }
};

}  // namespace trireme::kernels
