#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "trireme/base/bf16.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::generate {

using kernels::Candidate;
using kernels::LogSumExp;

struct Sampler::Row {
  enum class Kind : uint8_t { greedy, plain, truncated };
  Kind kind = Kind::plain;
  float scale = 1;
  kernels::Truncation truncation;
  kernels::LogitsRow logits;  // the distribution: the request's, or a copy with biases in which
                              // forbidden ids are as good as impossible
  std::vector<std::byte> changed;  // that copy
  std::vector<LogSumExp> after;    // of this rank's slice
  std::vector<LogSumExp> slices;   // of all ranks
  LogSumExp total;
  LogSumExp full;  // of all ids, as their logits are
  Candidate chosen;
  std::optional<float> sample_log_prob;
};

namespace {

// Below the largest z by this much: candidates are looked for in wider and wider bands until they
// suffice.
constexpr float bands[] = {8, 11, 16, 40, std::numeric_limits<float>::infinity()};

// A copy of the row with the biases of the ids that it holds, then the penalties of those that were
// seen, and the smallest finite value in the places of the forbidden ones; empty when it holds
// none.
std::vector<std::byte> change(const kernels::LogitsRow& row, int64_t first_id,
                              const DrawRequest& request) {
  std::vector<std::byte> copy;
  const bool f32 = row.type == kernels::ElementType::f32;
  const auto bytes = static_cast<size_t>(row.count) * (f32 ? sizeof(float) : sizeof(uint16_t));
  const auto set = [&](int32_t id, auto value_of) {
    const int64_t index = id - first_id;
    if (index < 0 || index >= row.count) return;
    if (copy.empty()) {
      const auto* from = static_cast<const std::byte*>(row.data);
      copy.assign(from, from + bytes);
    }
    const auto put = [&](auto value) {
      std::memcpy(copy.data() + static_cast<size_t>(index) * sizeof value, &value, sizeof value);
    };
    const float value = value_of(index);
    f32 ? put(value) : put(base::float_to_bf16(value));
  };
  const float lowest = f32 ? std::numeric_limits<float>::lowest() : base::bf16_to_float(0xFF7F);
  for (const TokenBias& bias : request.sampling->logit_bias)
    set(bias.id, [&](int64_t index) { return row[index] + bias.bias; });
  const auto penalty = static_cast<float>(request.sampling->repetition_penalty);
  for (const int32_t id : request.seen) {
    set(id, [&](int64_t index) {
      kernels::LogitsRow biased = row;
      biased.data = copy.data();
      return kernels::penalized(biased[index], penalty);
    });
  }
  for (const int32_t id : request.forbidden) set(id, [&](int64_t) { return lowest; });
  return copy;
}

// Each rank's records of `count` rows, gathered: [ranks][count].
template <class T>
std::vector<T> gather_rows(const comm::CommView& comm, const std::vector<T>& mine) {
  if (comm.size() == 1) return mine;
  std::vector<T> all(mine.size() * static_cast<size_t>(comm.size()));
  std::memcpy(all.data() + mine.size() * static_cast<size_t>(comm.rank()), mine.data(),
              mine.size() * sizeof(T));
  comm.all_gather_in_place(all.data(), static_cast<int64_t>(mine.size() * sizeof(T)),
                           comm::DType::u8);
  return all;
}

}  // namespace

std::vector<Drawn> Sampler::draw(std::span<const DrawRequest> requests,
                                 std::span<const kernels::LogitsRow> logits) {
  std::vector<Row> rows(requests.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const SamplingParams& p = *requests[i].sampling;
    const bool greedy = p.temperature == 0;
    rows[i].scale = greedy ? 1.f : static_cast<float>(1.0 / p.temperature);
    rows[i].truncation = {p.top_p, p.top_k, p.min_p};
    rows[i].kind = greedy                                   ? Row::Kind::greedy
                   : rows[i].truncation.active(vocabulary_) ? Row::Kind::truncated
                                                            : Row::Kind::plain;
  }
  summarise(requests, logits, rows);
  choose(requests, rows);
  draw_truncated(requests, rows);
  if (std::ranges::any_of(requests, [](const DrawRequest& r) {
        return !r.sampling->logit_bias.empty() || !r.seen.empty();
      }))
    take_back_biases(logits, rows);
  std::vector<Drawn> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    out.push_back({row.chosen.id, row.chosen.z - row.full.log_sum_exp(), row.sample_log_prob});
  }
  return out;
}

void Sampler::summarise(std::span<const DrawRequest> requests,
                        std::span<const kernels::LogitsRow> logits, std::vector<Row>& rows) {
  std::vector<Summary> mine(rows.size());
  team_.run([&](int thread) {
    for (size_t i = static_cast<size_t>(thread); i < rows.size();
         i += static_cast<size_t>(team_.size())) {
      Row& row = rows[i];
      row.logits = logits[i];
      kernels::accumulate(row.logits, row.scale, row.after);
      mine[i].full_sum = row.after.back().sum;
      mine[i].full_max = row.after.back().max;
      row.changed = change(row.logits, first_id_, requests[i]);
      if (!row.changed.empty()) {
        row.logits.data = row.changed.data();
        kernels::accumulate(row.logits, row.scale, row.after);
      }
      mine[i].sum = row.after.back().sum;
      mine[i].max = row.after.back().max;
      if (row.kind != Row::Kind::greedy) continue;
      const int64_t best = kernels::argmax(row.logits);
      mine[i].best = row.logits[best] * row.scale;
      mine[i].best_id = static_cast<int32_t>(first_id_ + best);
    }
  });
  const std::vector<Summary> all = gather_rows(comm_, mine);
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    row.chosen.z = -std::numeric_limits<float>::infinity();
    std::vector<LogSumExp> full;
    for (size_t r = 0; r < static_cast<size_t>(comm_.size()); ++r) {
      const Summary& summary = all[r * rows.size() + i];
      LogSumExp slice;
      slice.max = summary.max;
      slice.sum = summary.sum;
      row.slices.push_back(slice);
      slice.max = summary.full_max;
      slice.sum = summary.full_sum;
      full.push_back(slice);
      // Slices come in the order of ids, so the first of equal ones has the lowest id.
      if (row.kind == Row::Kind::greedy && summary.best > row.chosen.z)
        row.chosen = {summary.best, summary.best_id};
    }
    row.total = kernels::combine(row.slices);
    row.full = kernels::combine(full);
  }
}

void Sampler::choose(std::span<const DrawRequest> requests, std::vector<Row>& rows) {
  std::vector<Choice> mine(rows.size());
  std::vector<size_t> owner(rows.size(), 0);
  team_.run([&](int thread) {
    for (size_t i = static_cast<size_t>(thread); i < rows.size();
         i += static_cast<size_t>(team_.size())) {
      const Row& row = rows[i];
      if (row.kind != Row::Kind::plain) continue;
      const DrawRequest& r = requests[i];
      const float uniform =
          base::uniform(r.sampling->seed, base::Stream::sampling, r.request, r.position);
      const kernels::SliceChoice slice = kernels::choose_slice(row.slices, row.total, uniform);
      owner[i] = slice.slice;
      if (slice.slice != static_cast<size_t>(comm_.rank())) continue;
      const int64_t index = kernels::choose_index(row.logits, row.scale, row.after, slice.target);
      mine[i] = {static_cast<int32_t>(first_id_ + index), row.logits[index] * row.scale};
    }
  });
  const std::vector<Choice> all = gather_rows(comm_, mine);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].kind != Row::Kind::plain) continue;
    const Choice& choice = all[owner[i] * rows.size() + i];
    rows[i].chosen = {choice.z, choice.id};
  }
}

// Log-probs are those of the logits as they are: z of the chosen ids, from the ranks that have
// them.
void Sampler::take_back_biases(std::span<const kernels::LogitsRow> logits,
                               std::vector<Row>& rows) const {
  std::vector<Choice> mine(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t index = rows[i].chosen.id - first_id_;
    if (index >= 0 && index < logits[i].count)
      mine[i] = {rows[i].chosen.id, logits[i][index] * rows[i].scale};
  }
  const std::vector<Choice> all = gather_rows(comm_, mine);
  for (size_t at = 0; at < all.size(); ++at) {
    if (all[at].id >= 0) rows[at % rows.size()].chosen.z = all[at].z;
  }
}

void Sampler::draw_truncated(std::span<const DrawRequest> requests, std::vector<Row>& rows) {
  std::vector<size_t> open;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].kind == Row::Kind::truncated) open.push_back(i);
  }
  const auto in_turn = [&](size_t count, const auto& body) {
    team_.run([&](int thread) {
      for (size_t j = static_cast<size_t>(thread); j < count;
           j += static_cast<size_t>(team_.size()))
        body(j);
    });
  };
  // Every rank sees the same candidates and so leaves the loop in the same round.
  for (size_t band = 0; !open.empty(); ++band) {
    ASSERT(band < std::size(bands));
    const bool last = band + 1 == std::size(bands);
    std::vector<std::vector<Candidate>> mine(open.size());
    in_turn(open.size(), [&](size_t j) {
      const Row& row = rows[open[j]];
      kernels::collect_candidates(row.logits, first_id_, row.scale, row.total.max - bands[band],
                                  mine[j]);
    });
    std::vector<std::vector<Candidate>> all = gather(std::move(mine));
    std::vector<uint8_t> drawn(open.size(), 0);
    in_turn(open.size(), [&](size_t j) {
      Row& row = rows[open[j]];
      if (!last &&
          !kernels::sufficient(all[j], row.truncation, row.total, row.total.max - bands[band]))
        return;
      drawn[j] = 1;
      choose_truncated(requests[open[j]], std::move(all[j]), row);
    });
    std::vector<size_t> still_open;
    for (size_t j = 0; j < open.size(); ++j) {
      if (drawn[j] == 0) still_open.push_back(open[j]);
    }
    open = std::move(still_open);
  }
}

void Sampler::choose_truncated(const DrawRequest& request, std::vector<Candidate> candidates,
                               Row& row) {
  if (candidates.empty()) {  // not one logit is a number
    row.chosen = {std::numeric_limits<float>::quiet_NaN(), -1};
    return;
  }
  const float uniform = base::uniform(request.sampling->seed, base::Stream::sampling,
                                      request.request, request.position);
  const kernels::TruncatedDraw drawn =
      kernels::draw_truncated(std::move(candidates), row.truncation, row.total, uniform);
  row.chosen = {drawn.z, drawn.id};
  row.sample_log_prob = drawn.log_prob;
}

std::vector<std::vector<Candidate>> Sampler::gather(
    std::vector<std::vector<Candidate>> mine) const {
  if (comm_.size() == 1) return mine;
  std::vector<std::vector<Candidate>> all(mine.size());
  for (const auto& part : comm_.gather_values(mine)) {
    for (size_t i = 0; i < all.size(); ++i)
      all[i].insert(all[i].end(), part[i].begin(), part[i].end());
  }
  return all;
}

}  // namespace trireme::generate
