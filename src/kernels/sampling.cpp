#include "trireme/kernels/sampling.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/lane_kernels.hpp"
#include "trireme/base/bf16.hpp"

namespace trireme::kernels {
namespace {

// What `body` returns for the row's kernels and data.
template <class Body>
auto with_kernels(const LogitsRow& row, const Body& body) {
  if (row.type == ElementType::f32)
    return body(lane_kernels().f32, static_cast<const float*>(row.data));
  return body(lane_kernels().bf16, static_cast<const uint16_t*>(row.data));
}

// Mass of a running sum in units of exp(z - max); nothing where each of its fp32 terms would be 0
// in these units.
double mass(const LogSumExp& row, float max) {
  if (!(row.max - max >= -87.f)) return 0;
  return row.sum * std::exp(static_cast<double>(row.max) - static_cast<double>(max));
}

bool before(const Candidate& a, const Candidate& b) { return a.z != b.z ? a.z > b.z : a.id < b.id; }

// Candidates, best first, of which only a beginning that has been asked for is sorted: what top-k
// and top-p keep is small mostly.
class BestFirst {
 public:
  BestFirst(std::vector<Candidate> candidates, int64_t top_k) : all_(std::move(candidates)) {
    if (top_k <= 0 || top_k >= static_cast<int64_t>(all_.size())) return;
    std::nth_element(all_.begin(), all_.begin() + top_k, all_.end(), before);
    all_.resize(static_cast<size_t>(top_k));
  }
  size_t size() const { return all_.size(); }
  const Candidate& operator[](size_t i) {
    while (i >= sorted_) sort_more();
    return all_[i];
  }
  // The first `count`, in the order of their ids.
  std::vector<Candidate> by_id(size_t count) && {
    all_.resize(count);
    std::sort(all_.begin(), all_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    return std::move(all_);
  }

 private:
  void sort_more() {
    const auto first = all_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    sorted_ = std::min(all_.size(), std::max<size_t>(64, 4 * sorted_));
    const auto last = all_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    if (last != all_.end()) std::nth_element(first, last, all_.end(), before);
    std::sort(first, last, before);
  }

  std::vector<Candidate> all_;
  size_t sorted_ = 0;
};

}  // namespace

float LogitsRow::operator[](int64_t i) const {
  return type == ElementType::f32 ? static_cast<const float*>(data)[i]
                                  : base::bf16_to_float(static_cast<const uint16_t*>(data)[i]);
}

void accumulate(const LogitsRow& row, float scale, std::vector<LogSumExp>& after) {
  after.clear();
  LogSumExp running;
  for (int64_t first = 0; first < row.count; first += vocabulary_chunk) {
    const int64_t count = std::min(vocabulary_chunk, row.count - first);
    if (row.type == ElementType::f32) {
      update(running, static_cast<const float*>(row.data) + first, count, scale);
    } else {
      update(running, static_cast<const uint16_t*>(row.data) + first, count, scale);
    }
    after.push_back(running);
  }
}

int64_t argmax(const LogitsRow& row) {
  return with_kernels(row, [&](const auto& kernels, const auto* logits) {
    return kernels.argmax(logits, row.count);
  });
}

LogSumExp combine(std::span<const LogSumExp> slices) {
  if (slices.size() == 1) return slices.front();
  LogSumExp total;
  for (const LogSumExp& slice : slices) total.max = std::max(total.max, slice.max);
  for (const LogSumExp& slice : slices) total.sum += mass(slice, total.max);
  return total;
}

SliceChoice choose_slice(std::span<const LogSumExp> slices, const LogSumExp& total, float uniform) {
  const double target = static_cast<double>(uniform) * total.sum;
  double sum = 0;
  SliceChoice choice;
  for (size_t i = 0; i < slices.size(); ++i) {
    const double own = mass(slices[i], total.max);
    if (own <= 0) continue;
    const double unit =
        std::exp(static_cast<double>(total.max) - static_cast<double>(slices[i].max));
    choice = {i, (target - sum) * unit};
    sum += own;
    if (sum > target) break;
  }
  return choice;
}

int64_t choose_index(const LogitsRow& row, float scale, std::span<const LogSumExp> after,
                     double target) {
  const float max = after.back().max;
  size_t chunk = 0;
  double sum = 0;
  for (; chunk + 1 < after.size(); ++chunk) {
    const double next = mass(after[chunk], max);
    if (next > target) break;
    sum = next;
  }
  const int64_t begin = static_cast<int64_t>(chunk) * vocabulary_chunk;
  const int64_t end = std::min(begin + vocabulary_chunk, row.count);
  return with_kernels(row, [&](const auto& kernels, const auto* logits) {
    return kernels.pass(logits, begin, end, scale, max, target - sum);
  });
}

void collect_candidates(const LogitsRow& row, int64_t first_id, float scale, float threshold,
                        std::vector<Candidate>& out) {
  std::array<int32_t, candidate_block> index;
  std::array<float, candidate_block> z;
  for (int64_t first = 0; first < row.count; first += candidate_block) {
    const int64_t found = with_kernels(row, [&](const auto& kernels, const auto* logits) {
      return kernels.at_least(logits + first, std::min(candidate_block, row.count - first), scale,
                              threshold, index.data(), z.data());
    });
    for (size_t i = 0; i < static_cast<size_t>(found); ++i)
      out.push_back({z[i], static_cast<int32_t>(first_id + first) + index[i]});
  }
}

bool sufficient(std::span<const Candidate> candidates, const Truncation& truncation,
                const LogSumExp& total, float threshold) {
  if (candidates.empty()) return false;
  // The mass that top-p asks for is that of all ids, or of the first k.
  const bool by_min_p = truncation.min_p > 0 && (truncation.top_k == 0 || truncation.top_p == 1);
  if (by_min_p &&
      static_cast<double>(threshold) <= static_cast<double>(total.max) + std::log(truncation.min_p))
    return true;
  if (truncation.top_k > 0) return static_cast<int64_t>(candidates.size()) >= truncation.top_k;
  double sum = 0;
  for (const Candidate& c : candidates)
    sum += std::exp(static_cast<double>(c.z) - static_cast<double>(total.max));
  return sum >= truncation.top_p * total.sum;
}

TruncatedDraw draw_truncated(std::vector<Candidate> candidates, const Truncation& truncation,
                             const LogSumExp& all, float uniform) {
  BestFirst ordered(std::move(candidates), truncation.top_k);
  const auto best = static_cast<double>(ordered[0].z);
  const auto weight = [best](const Candidate& c) {
    return std::exp(static_cast<double>(c.z) - best);
  };
  double total = all.sum * std::exp(static_cast<double>(all.max) - best);
  if (truncation.top_k > 0) {
    total = 0;
    for (size_t i = 0; i < ordered.size(); ++i) total += weight(ordered[i]);
  }
  double kept = 0;
  size_t count = 0;
  while (count < ordered.size() && (count == 0 || (kept < truncation.top_p * total &&
                                                   weight(ordered[count]) >= truncation.min_p)))
    kept += weight(ordered[count++]);
  const std::vector<Candidate> in_order = std::move(ordered).by_id(count);
  const double target = static_cast<double>(uniform) * kept;
  double sum = 0;
  size_t chosen = 0;
  for (; chosen + 1 < in_order.size(); ++chosen) {
    sum += weight(in_order[chosen]);
    if (sum > target) break;
  }
  const Candidate& c = in_order[chosen];
  return {c.id, c.z, static_cast<float>(static_cast<double>(c.z) - best - std::log(kept))};
}

}  // namespace trireme::kernels
