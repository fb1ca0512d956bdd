// Draws under top-k, top-p and min-p, for draw_functors.hpp.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/row_functors.hpp"
#include "trireme/base/kernel_function.hpp"
#include "trireme/kernels/draw.hpp"

namespace trireme::kernels {

// This rank's logits of a row, and what is drawn from: with biases and without the forbidden ids
// where there are some.
template <class T>
TRIREME_KERNEL const T* logits_of(const DrawArguments& a, const DrawRow& row) {
  return row.kept != nullptr ? static_cast<const T*>(row.kept)
                             : static_cast<const T*>(a.logits) + row.row * a.count;
}
template <class T>
TRIREME_KERNEL const T* drawable_logits_of(const DrawArguments& a, const DrawRow& row) {
  return row.changed < 0 ? logits_of<T>(a, row)
                         : static_cast<const T*>(a.changed) + row.changed * a.count;
}

// What top-k and top-p leave of a row, and the draw from it. Ids are in order of z, largest first,
// equal ones by id, lowest first; all above a value of z are kept, and of those with this
// value all up to an id. Both are found by halving.
template <class T>
struct TruncatedRow {
  const DrawArguments& a;
  const DrawRow& row;
  float best;        // largest z
  double* segments;  // [draw_segments]

  struct Kept {
    uint32_t rank = 0;            // rank_of(z) of the last value
    int64_t last_id = INT64_MAX;  // of those with this value
  };

  // Larger for larger z.
  TRIREME_KERNEL static uint32_t rank_of(float z) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, z);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  TRIREME_KERNEL static bool holds(const Kept& kept, float z, int64_t id) {
    const uint32_t rank = rank_of(z);
    return rank > kept.rank || (rank == kept.rank && id <= kept.last_id);
  }
  TRIREME_KERNEL double weight(float z) const {
    return std::exp(static_cast<double>(z) - static_cast<double>(best));
  }
  TRIREME_KERNEL int64_t vocabulary() const { return a.slice_first[a.ranks]; }
  TRIREME_KERNEL const T* slice(int r) const {
    if (a.ranks == 1) return drawable_logits_of<T>(a, row);
    return static_cast<const T*>(a.slices) +
           (r * a.truncated_rows + row.truncated) * a.slice_stride;
  }
  TRIREME_KERNEL float z_of(int64_t id) const {
    int r = 0;
    while (id >= a.slice_first[r + 1]) ++r;
    return widen(slice(r)[id - a.slice_first[r]]) * row.scale;
  }

  // The sum over all ids of f(z, id), by the whole team.
  template <class Value, class Team, class F>
  TRIREME_KERNEL Value sum(const Team& team, const F& f) const {
    Value mine = 0;
    for (int r = 0; r < a.ranks; ++r) {
      const T* logits = slice(r);
      const int64_t first = a.slice_first[r];
      team.each(a.slice_first[r + 1] - first,
                [&](int64_t i) { mine += f(widen(logits[i]) * row.scale, first + i); });
    }
    return team.sum(mine);
  }
  template <class Team>
  TRIREME_KERNEL int64_t count(const Team& team, const Kept& kept) const {
    return sum<int64_t>(
        team, [&](float z, int64_t id) { return static_cast<int64_t>(holds(kept, z, id)); });
  }
  // Of ids that `within` has too.
  template <class Team>
  TRIREME_KERNEL double mass(const Team& team, const Kept& kept, const Kept& within) const {
    return sum<double>(team, [&](float z, int64_t id) {
      return holds(kept, z, id) && holds(within, z, id) ? weight(z) : 0.0;
    });
  }

  // The largest rank for which enough(rank) holds; it holds for 0.
  template <class F>
  TRIREME_KERNEL uint32_t largest_rank(const F& enough) const {
    uint32_t low = 0, high = rank_of(best);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2 + 1;
      if (enough(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
  // Keeps the first `wanted` of the ids that have the last value.
  template <class Team>
  TRIREME_KERNEL void cut_equals(const Team& team, Kept& kept, int64_t wanted) const {
    const int64_t above = kept.rank == UINT32_MAX ? 0 : count(team, Kept{kept.rank + 1, INT64_MAX});
    if (count(team, kept) - above <= wanted) return;
    int64_t low = 0, high = vocabulary() - 1;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (count(team, Kept{kept.rank, middle}) - above >= wanted) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    kept.last_id = low;
  }

  template <class Team>
  TRIREME_KERNEL Kept first_k(const Team& team) const {
    Kept kept;
    if (row.top_k <= 0 || row.top_k >= vocabulary()) return kept;
    kept.rank = largest_rank([&](uint32_t rank) {
      return count(team, Kept{rank, INT64_MAX}) >= row.top_k;
    });
    const int64_t above = count(team, Kept{kept.rank + 1, INT64_MAX});
    cut_equals(team, kept, row.top_k - above);
    return kept;
  }

  // The shortest prefix of `of` whose mass reaches `goal`.
  template <class Team>
  TRIREME_KERNEL Kept shortest(const Team& team, const Kept& of, double goal) const {
    Kept kept;
    kept.rank = largest_rank([&](uint32_t rank) {
      return mass(team, Kept{rank, INT64_MAX}, of) >= goal;
    });
    if (kept.rank < of.rank) kept.rank = of.rank;
    const double above = mass(team, Kept{kept.rank + 1, INT64_MAX}, of);
    const int64_t equals = sum<int64_t>(team, [&](float z, int64_t id) {
      return static_cast<int64_t>(rank_of(z) == kept.rank && holds(of, z, id));
    });
    const double each = weight(z_at(kept.rank));
    int64_t wanted = 1;
    for (double reached = above + each; reached < goal && wanted < equals; reached += each)
      ++wanted;
    kept.last_id = of.rank == kept.rank ? of.last_id : INT64_MAX;
    if (wanted < equals) cut_equals(team, kept, wanted);
    return kept;
  }
  // Of `of` the ids with at least the share `least` of the likeliest one's probability.
  TRIREME_KERNEL Kept at_least(const Kept& of, double least) const {
    uint32_t low = of.rank, high = rank_of(best);
    if (least <= 0 || weight(z_at(low)) >= least) return of;
    while (low + 1 < high) {  // low is too little, high suffices
      const uint32_t middle = low + (high - low) / 2;
      if (weight(z_at(middle)) >= least) {
        high = middle;
      } else {
        low = middle;
      }
    }
    return Kept{high, INT64_MAX};
  }
  TRIREME_KERNEL static float z_at(uint32_t rank) {
    return __builtin_bit_cast(float, rank >> 31 ? rank & 0x7fffffffu : ~rank);
  }

  // The id in which the distribution function passes `uniform`; all threads call it, the first
  // one's answer counts.
  template <class Team>
  TRIREME_KERNEL int64_t draw(const Team& team, const Kept& kept, double& mass_kept) const {
    const int64_t ids = vocabulary(), each = (ids + draw_segments - 1) / draw_segments;
    team.each(draw_segments, [&](int64_t segment) {
      double of_segment = 0;
      for (int64_t id = segment * each; id < (segment + 1) * each && id < ids; ++id) {
        const float z = z_of(id);
        if (holds(kept, z, id)) of_segment += weight(z);
      }
      segments[segment] = of_segment;
    });
    team.barrier();
    mass_kept = 0;
    for (int64_t segment = 0; segment < draw_segments; ++segment) mass_kept += segments[segment];
    if (team.rank() != 0) return 0;
    const double target = static_cast<double>(row.uniform) * mass_kept;
    double sum_before = 0;
    int64_t chosen = 0;
    for (int64_t segment = 0; segment < draw_segments; ++segment) {
      if (segments[segment] <= 0) continue;
      double reached = sum_before;
      for (int64_t id = segment * each; id < (segment + 1) * each && id < ids; ++id) {
        const float z = z_of(id);
        if (!holds(kept, z, id)) continue;
        chosen = id;
        reached += weight(z);
        if (reached > target) return id;
      }
      sum_before += segments[segment];
    }
    return chosen;
  }
};

}  // namespace trireme::kernels
