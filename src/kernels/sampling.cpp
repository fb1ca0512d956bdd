#include "trireme/kernels/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "trireme/kernels/vector16.hpp"

namespace trireme::kernels {
namespace {

using lanes::Float;
constexpr float lowest = std::numeric_limits<float>::lowest();

float bf16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

template <class T>
TRIREME_LANES_INLINE Float take(const T* from, int64_t left) {
  return lanes::load(from, std::min(left, lanes::count), lowest);
}

template <class T>
TRIREME_LANES_INLINE int64_t argmax_of(const T* logits, int64_t count) {
  Float best = Float{} + lowest;
  for (int64_t i = 0; i < count; i += lanes::count) best = lanes::max(best, take(logits + i, count - i));
  const float wanted = lanes::horizontal_max(best);
  for (int64_t i = 0; i < count; i += lanes::count) {
    const Float v = take(logits + i, count - i);
    for (int64_t j = 0; j < std::min<int64_t>(lanes::count, count - i); ++j) {
      if (v[j] == wanted) return i + j;
    }
  }
  return 0;  // only NaN: any id will do
}

// The first index of [begin, end) at which the running sum of exp(z - max) passes target; the last with a probability
// above zero when rounding lets none pass.
template <class T>
TRIREME_LANES_INLINE int64_t walk(const T* logits, int64_t begin, int64_t end, float scale, float max, double target) {
  double sum = 0;
  int64_t last = begin;
  for (int64_t i = begin; i < end; i += lanes::count) {
    const int64_t count = std::min<int64_t>(lanes::count, end - i);
    const Float p = lanes::exp(lanes::max(take(logits + i, end - i) * scale - max, Float{} - 1e30f));
    for (int64_t j = 0; j < count; ++j) {
      sum += static_cast<double>(p[j]);
      if (p[j] > 0) last = i + j;
      if (sum > target) return i + j;
    }
  }
  return last;
}

template <class T>
TRIREME_LANES_INLINE void collect(const T* logits, int64_t count, int64_t first_id, float scale, float threshold,
                                  std::vector<Candidate>& out) {
  for (int64_t i = 0; i < count; i += lanes::count) {
    const Float z = take(logits + i, count - i) * scale;
    if (!(lanes::horizontal_max(z) >= threshold)) continue;
    for (int64_t j = 0; j < std::min<int64_t>(lanes::count, count - i); ++j) {
      if (z[j] >= threshold) out.push_back({z[j], static_cast<int32_t>(first_id + i + j)});
    }
  }
}

// Mass of a running sum in units of exp(z - max); nothing where each of its fp32 terms would be 0 in these units.
double mass(const LogSumExp& row, float max) {
  if (!(row.max - max >= -87.f)) return 0;
  return row.sum * std::exp(static_cast<double>(row.max) - static_cast<double>(max));
}

bool before(const Candidate& a, const Candidate& b) { return a.z != b.z ? a.z > b.z : a.id < b.id; }

// Sorts, best first, and cuts to the first top_k; returns the largest z.
double sort_and_cut(std::vector<Candidate>& candidates, const Truncation& truncation) {
  std::sort(candidates.begin(), candidates.end(), before);
  if (truncation.top_k > 0 && truncation.top_k < static_cast<int64_t>(candidates.size())) {
    candidates.resize(static_cast<size_t>(truncation.top_k));
  }
  return static_cast<double>(candidates.front().z);
}

}  // namespace

float LogitsRow::operator[](int64_t i) const {
  return type == ElementType::f32 ? static_cast<const float*>(data)[i] : bf16_value(static_cast<const uint16_t*>(data)[i]);
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

TRIREME_CLONES int64_t argmax(const LogitsRow& row) {
  if (row.type == ElementType::f32) return argmax_of(static_cast<const float*>(row.data), row.count);
  return argmax_of(static_cast<const uint16_t*>(row.data), row.count);
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
    const double unit = std::exp(static_cast<double>(total.max) - static_cast<double>(slices[i].max));
    choice = {i, (target - sum) * unit};
    sum += own;
    if (sum > target) break;
  }
  return choice;
}

TRIREME_CLONES int64_t choose_index(const LogitsRow& row, float scale, std::span<const LogSumExp> after, double target) {
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
  if (row.type == ElementType::f32) return walk(static_cast<const float*>(row.data), begin, end, scale, max, target - sum);
  return walk(static_cast<const uint16_t*>(row.data), begin, end, scale, max, target - sum);
}

TRIREME_CLONES void collect_candidates(const LogitsRow& row, int64_t first_id, float scale, float threshold,
                                       std::vector<Candidate>& out) {
  if (row.type == ElementType::f32) {
    collect(static_cast<const float*>(row.data), row.count, first_id, scale, threshold, out);
  } else {
    collect(static_cast<const uint16_t*>(row.data), row.count, first_id, scale, threshold, out);
  }
}

bool sufficient(std::span<const Candidate> candidates, const Truncation& truncation, const LogSumExp& total) {
  if (candidates.empty()) return false;
  if (truncation.top_k > 0) return static_cast<int64_t>(candidates.size()) >= truncation.top_k;
  double sum = 0;
  for (const Candidate& c : candidates) sum += std::exp(static_cast<double>(c.z) - static_cast<double>(total.max));
  return sum >= truncation.top_p * total.sum;
}

TruncatedDraw draw_truncated(std::vector<Candidate> candidates, const Truncation& truncation, const LogSumExp& all, float uniform) {
  const double best = sort_and_cut(candidates, truncation);
  const auto weight = [best](const Candidate& c) { return std::exp(static_cast<double>(c.z) - best); };
  double total = all.sum * std::exp(static_cast<double>(all.max) - best);
  if (truncation.top_k > 0) {
    total = 0;
    for (const Candidate& c : candidates) total += weight(c);
  }
  double kept = 0;
  size_t count = 0;
  while (count < candidates.size() && (count == 0 || kept < truncation.top_p * total)) kept += weight(candidates[count++]);
  candidates.resize(count);
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const double target = static_cast<double>(uniform) * kept;
  double sum = 0;
  size_t chosen = 0;
  for (; chosen + 1 < candidates.size(); ++chosen) {
    sum += weight(candidates[chosen]);
    if (sum > target) break;
  }
  const Candidate& c = candidates[chosen];
  return {c.id, c.z, static_cast<float>(static_cast<double>(c.z) - best - std::log(kept))};
}

}  // namespace trireme::kernels
