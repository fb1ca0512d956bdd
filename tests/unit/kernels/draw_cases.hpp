// Draws of a step for draw_functors.hpp, and what the host's (sampling.hpp) draw for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/draw_functors.hpp"
#include "trireme/kernels/sampling.hpp"

namespace trireme::kernels {

template <class T>
constexpr ElementType type_of = sizeof(T) == sizeof(float) ? ElementType::f32 : ElementType::bf16;

// A row for each way to draw and each of these numbers.
inline std::vector<DrawRow> draws(const std::vector<float>& uniforms) {
  std::vector<DrawRow> rows;
  for (const auto& [kind, scale, top_p, top_k] : {std::tuple{DrawRow::Kind::greedy, 1.f, 1.0, 0},
                                                  {DrawRow::Kind::plain, 1.f, 1.0, 0},
                                                  {DrawRow::Kind::plain, 1.7f, 1.0, 0},
                                                  {DrawRow::Kind::truncated, 1.f, 0.8, 0},
                                                  {DrawRow::Kind::truncated, 0.6f, 1.0, 7},
                                                  {DrawRow::Kind::truncated, 1.f, 0.3, 40},
                                                  {DrawRow::Kind::truncated, 1.f, 1e-9, 0}}) {
    for (const float uniform : uniforms) {
      DrawRow row;
      row.kind = kind;
      row.scale = scale;
      row.top_p = top_p;
      row.top_k = top_k;
      row.uniform = uniform;
      rows.push_back(row);
    }
  }
  return rows;
}

// All ranks' memory of a step; with `forbid`, all rows have biases, and not every third id.
template <class T>
struct DrawStep {
  DrawStep(int64_t ids, int ranks, bool forbid, const std::vector<float>& uniforms)
      : row(draws(uniforms)) {
    std::mt19937 random(static_cast<unsigned>(ids));
    std::normal_distribution<float> normal(0, 3);
    const auto rows = static_cast<int64_t>(row.size());
    for (int r = 0; r <= ranks; ++r) slice_first.push_back(r == ranks ? ids : ids * r / ranks);
    for (int64_t id = 0; forbid && id < ids; id += 3) forbidden.push_back(static_cast<int32_t>(id));
    for (int64_t id = 0; forbid && id < ids; id += 4)
      biases.push_back({static_cast<int32_t>(id), id % 8 == 0 ? 2.3f : -1.7f});
    int32_t truncated = 0;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t id = 0; id < ids; ++id)
        logits.push_back(narrow<T>(std::round(normal(random) * 4) / 4));  // many equal ones
      DrawRow& r = row[static_cast<size_t>(i)];
      r.row = i;
      if (r.kind == DrawRow::Kind::truncated) r.truncated = truncated++;
      if (!forbid) continue;
      r.changed = static_cast<int32_t>(i);
      r.forbidden_count = static_cast<int32_t>(forbidden.size());
      r.bias_count = static_cast<int32_t>(biases.size());
    }
    const int64_t longest = ids / ranks + 1;
    summaries.resize(static_cast<size_t>(rows * ranks));
    results.resize(summaries.size());
    slices.resize(static_cast<size_t>(ranks * truncated * longest));
    for (int r = 0; r < ranks; ++r) {
      const auto at = static_cast<size_t>(r);
      DrawArguments a{};
      a.count = slice_first[at + 1] - slice_first[at];
      std::vector<T>& mine = own.emplace_back();
      for (int64_t i = 0; i < rows; ++i)
        mine.insert(mine.end(), logits.begin() + i * ids + slice_first[at],
                    logits.begin() + i * ids + slice_first[at + 1]);
      a.logits = mine.data();
      a.bf16 = type_of<T> == ElementType::bf16;
      a.rows = rows;
      a.row = row.data();
      a.forbidden = forbidden.data();
      a.biases = biases.data();
      a.rank = r;
      a.ranks = ranks;
      a.slice_first = slice_first.data();
      a.chunks = draw_chunks(a.count);
      a.slice_stride = longest;
      a.truncated_rows = truncated;
      a.running = running.emplace_back(rows * a.chunks).data();
      a.values = values.emplace_back(rows * draw_values(a.chunks)).data();
      a.places = places.emplace_back(rows * a.chunks * draw_lanes).data();
      a.segments = segments.emplace_back(rows * draw_segments).data();
      a.changed = changed.emplace_back(rows * a.count).data();
      a.slices = slices.data();
      a.summaries = summaries.data();
      a.results = results.data();
      arguments.push_back(a);
    }
  }
  std::vector<DrawRow> row;
  std::vector<int64_t> slice_first;
  std::vector<int32_t> forbidden;
  std::vector<TokenBias> biases;
  std::vector<T> logits, slices;
  std::vector<DrawSummary> summaries;
  std::vector<DrawResult> results;
  std::vector<std::vector<T>> own, changed;
  std::vector<std::vector<DrawRunningSum>> running;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<int64_t>> places;
  std::vector<std::vector<double>> segments;
  std::vector<DrawArguments> arguments;
};

struct ExpectedDraw {
  Candidate chosen;
  float full_z = 0;
  LogSumExp full;
  double log_kept = 0;
};

template <class T>
ExpectedDraw draw_by_host(const DrawStep<T>& step, size_t i) {
  const DrawRow& row = step.row[i];
  const int64_t ids = step.slice_first.back();
  std::vector<T> allowed(step.logits.begin() + static_cast<int64_t>(i) * ids,
                         step.logits.begin() + static_cast<int64_t>(i + 1) * ids);
  std::vector<LogitsRow> of_rank, all_of_rank;
  const std::vector<T> all = allowed;
  for (const auto& [id, bias] : step.biases)
    allowed[static_cast<size_t>(id)] = narrow<T>(widen(allowed[static_cast<size_t>(id)]) + bias);
  for (const int32_t id : step.forbidden) allowed[static_cast<size_t>(id)] = narrow<T>(-3e38f);
  std::vector<std::vector<LogSumExp>> after;
  std::vector<LogSumExp> slices, full;
  for (size_t r = 0; r + 1 < step.slice_first.size(); ++r) {
    const int64_t first = step.slice_first[r], count = step.slice_first[r + 1] - first;
    of_rank.push_back({type_of<T>, allowed.data() + first, count});
    std::vector<LogSumExp> sums;
    accumulate({type_of<T>, all.data() + first, count}, row.scale, sums);
    full.push_back(sums.back());
    accumulate(of_rank.back(), row.scale, after.emplace_back());
    slices.push_back(after.back().back());
  }
  ExpectedDraw out;
  out.full = combine(full);
  const LogSumExp total = combine(slices);
  const LogitsRow whole{type_of<T>, allowed.data(), ids};
  if (row.kind == DrawRow::Kind::greedy) {
    const int64_t best = argmax(whole);
    out.chosen = {whole[best], static_cast<int32_t>(best)};
  } else if (row.kind == DrawRow::Kind::plain) {
    const SliceChoice slice = choose_slice(slices, total, row.uniform);
    const int64_t index =
        choose_index(of_rank[slice.slice], row.scale, after[slice.slice], slice.target);
    out.chosen = {of_rank[slice.slice][index] * row.scale,
                  static_cast<int32_t>(step.slice_first[slice.slice] + index)};
  } else {
    std::vector<Candidate> candidates;
    collect_candidates(whole, 0, row.scale, -std::numeric_limits<float>::infinity(), candidates);
    const TruncatedDraw drawn =
        draw_truncated(candidates, {row.top_p, row.top_k}, total, row.uniform);
    out.chosen = {drawn.z, drawn.id};
    out.log_kept = static_cast<double>(drawn.z) - static_cast<double>(total.max) -
                   static_cast<double>(drawn.log_prob);
  }
  out.full_z = widen(all[static_cast<size_t>(out.chosen.id)]) * row.scale;
  return out;
}

// Each row's draw, as each rank has it, against the host's.
template <class T>
void expect_draws_of_host(const DrawStep<T>& step) {
  for (size_t i = 0; i < step.row.size(); ++i) {
    const ExpectedDraw want = draw_by_host(step, i);
    for (const DrawArguments& a : step.arguments) {
      const auto of_rank = [&](int r) {
        return step.results[static_cast<size_t>(r) * step.row.size() + i];
      };
      const DrawResult got = of_rank(of_rank(a.rank).owner);
      EXPECT_EQ(got.id, want.chosen.id)
          << step.slice_first.back() << " ids, " << a.ranks << " ranks, row " << i
          << (step.forbidden.empty() ? "" : ", some forbidden");
      EXPECT_EQ(got.z, want.chosen.z);
      EXPECT_EQ(got.full_z, want.full_z);
      EXPECT_EQ(got.full_max, want.full.max);
      EXPECT_EQ(got.full_sum, want.full.sum);
      if (step.row[i].kind == DrawRow::Kind::truncated) {
        EXPECT_NEAR(std::log(got.kept), want.log_kept, 1e-6);
      }
    }
  }
}

}  // namespace trireme::kernels
