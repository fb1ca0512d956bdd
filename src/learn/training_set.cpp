#include "trireme/learn/training_set.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/ppo/balance.hpp"
#include "trireme/ppo/minibatches.hpp"

namespace trireme::learn {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// Where the mask is not 0.
Ranges ranges_of(const std::vector<uint8_t>& mask) {
  Ranges ranges;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) continue;
    const auto token = static_cast<int64_t>(t);
    if (ranges.empty() || ranges.back().second != token) ranges.emplace_back(token, token);
    ++ranges.back().second;
  }
  return ranges;
}

void add(Samples& samples, int64_t row, const std::vector<text::TokenId>& ids, Ranges targets) {
  samples.add({.id = static_cast<uint64_t>(samples.size()),
               .prompt_row = row,
               .ids = ids,
               .action_ranges = std::move(targets)});
}

void append_row(Samples& samples, int64_t row, const data::SftExample& example) {
  add(samples, row, example.ids, ranges_of(example.loss_mask));
}

void append_row(Samples& samples, int64_t row, const data::PreferencePair& pair) {
  add(samples, row, pair.chosen, ranges_of(pair.chosen_mask));
  add(samples, row, pair.rejected, ranges_of(pair.rejected_mask));
}

void append_row(Samples& samples, int64_t row, const data::LabelledAnswer& answer) {
  add(samples, row, answer.ids, ranges_of(answer.mask));
}

int64_t tokens_in(const data::LabelledAnswer& answer) { return std::ssize(answer.ids); }
int64_t longest_in(const data::LabelledAnswer& answer) { return tokens_in(answer); }
int64_t tokens_in(const data::SftExample& example) {
  return static_cast<int64_t>(example.ids.size());
}
int64_t tokens_in(const data::PreferencePair& pair) {
  return static_cast<int64_t>(pair.chosen.size() + pair.rejected.size());
}

int64_t longest_in(const data::SftExample& example) { return tokens_in(example); }
int64_t longest_in(const data::PreferencePair& pair) {
  return static_cast<int64_t>(std::max(pair.chosen.size(), pair.rejected.size()));
}

}  // namespace

int64_t TrainingSet::size() const {
  return std::visit([](const auto& set) { return set.size(); }, set_);
}

const data::SetCounts& TrainingSet::counts() const {
  return std::visit([](const auto& set) -> const data::SetCounts& { return set.counts(); }, set_);
}

int64_t TrainingSet::tokens(int64_t row) const {
  return std::visit([row](const auto& set) { return tokens_in(set[row]); }, set_);
}

int64_t TrainingSet::longest() const {
  int64_t out = 0;
  for (int64_t row = 0; row < size(); ++row) {
    out = std::max(out, std::visit([row](const auto& set) { return longest_in(set[row]); }, set_));
  }
  return out;
}

double TrainingSet::margin(int64_t row) const {
  const auto* pairs = std::get_if<data::PreferenceSet>(&set_);
  return pairs ? (*pairs)[row].margin : 0;
}

TrainingSet TrainingSet::load(config::RowKind kind, const data::SetOptions& options,
                              const text::Tokenizer& tokenizer, const data::EncodingTeam& team) {
  switch (kind) {
    case config::RowKind::example: break;
    case config::RowKind::pair:
      return TrainingSet(data::PreferenceSet::load(options, tokenizer, team));
    case config::RowKind::labelled:
      return TrainingSet(data::LabelledSet::load(options, tokenizer, team));
  }
  return TrainingSet(data::SftSet::load(options, tokenizer, team));
}

bool TrainingSet::wanted(int64_t row) const {
  const auto* answers = std::get_if<data::LabelledSet>(&set_);
  return answers && (*answers)[row].wanted;
}

int64_t TrainingSet::mismatched_tokens(int64_t row, int64_t other) const {
  const auto& answers = std::get<data::LabelledSet>(set_);
  const data::LabelledAnswer& from = answers[other];
  return std::min(answers[row].prompt_length + tokens_in(from) - from.prompt_length,
                  answers.longest());
}

void TrainingSet::append_mismatched(int64_t row, int64_t other, Samples& samples) const {
  const auto& answers = std::get<data::LabelledSet>(set_);
  const data::LabelledAnswer &asked = answers[row], &from = answers[other];
  std::vector<text::TokenId> ids(asked.ids.begin(), asked.ids.begin() + asked.prompt_length);
  std::vector<uint8_t> mask(ids.size(), 0);
  ids.insert(ids.end(), from.ids.begin() + from.prompt_length, from.ids.end());
  mask.insert(mask.end(), from.mask.begin() + from.prompt_length, from.mask.end());
  const auto tokens = static_cast<size_t>(mismatched_tokens(row, other));
  ids.resize(tokens);
  mask.resize(tokens);
  add(samples, row, ids, ranges_of(mask));
}

void TrainingSet::append(int64_t row, Samples& samples) const {
  std::visit([&](const auto& set) { append_row(samples, row, set[row]); }, set_);
}

std::vector<int64_t> share_of(std::span<const int64_t> lengths, int ranks, int rank) {
  return std::move(ppo::interleaved_bins(lengths, ranks)[static_cast<size_t>(rank)]);
}

std::vector<RowBatch> share_out(const TrainingSet& set, std::span<const int64_t> rows,
                                const comm::CommView& ranks, int64_t micro_batch_tokens) {
  std::vector<int64_t> lengths;
  for (const int64_t row : rows) lengths.push_back(set.tokens(row));
  const std::vector<int64_t> mine = share_of(lengths, ranks.size(), ranks.rank());

  const auto row_at = [&](int64_t place) { return rows[static_cast<size_t>(place)]; };
  const auto row_before = [&](int64_t place) {
    return row_at(place == 0 ? std::ssize(rows) - 1 : place - 1);
  };
  std::vector<int64_t> my_lengths;
  for (const int64_t place : mine) {
    const int64_t own = lengths[static_cast<size_t>(place)];
    my_lengths.push_back(
        set.labelled() ? std::max(own, set.mismatched_tokens(row_at(place), row_before(place)))
                       : own);
  }
  const auto bins = ppo::micro_batches(my_lengths, micro_batch_tokens, 1);
  std::vector<RowBatch> batches(static_cast<size_t>(ranks.max(static_cast<int64_t>(bins.size()))));
  for (size_t b = 0; b < bins.size(); ++b) {
    for (const int64_t item : bins[b]) {
      const int64_t place = mine[static_cast<size_t>(item)], row = row_at(place);
      set.append(row, batches[b].samples);
      batches[b].margins.push_back(static_cast<float>(set.margin(row)));
      if (!set.labelled()) continue;
      batches[b].wanted.push_back(set.wanted(row) ? 1 : 0);
      set.append_mismatched(row, row_before(place), batches[b].mismatched);
    }
  }
  return batches;
}

BatchTotals totals_of(std::span<const RowBatch> batches, const comm::CommView& ranks) {
  std::array<double, 4> sums{};
  for (const RowBatch& batch : batches) {
    sums[0] += static_cast<double>(batch.margins.size());
    const Samples& samples = batch.samples;
    for (int64_t i = 0; i < samples.size(); ++i) {
      int64_t targets = 0;  // the first token of a sequence is predicted by nothing
      for (int64_t t = samples.begin(i) + 1; t < samples.begin(i) + samples.length(i); ++t) {
        targets += samples.action_mask[static_cast<size_t>(t)] != 0;
      }
      sums[1] += targets > 0;
      sums[2] += static_cast<double>(targets);
    }
    sums[3] += static_cast<double>(samples.tokens());
  }
  ranks.all_reduce(sums.data(), static_cast<int64_t>(sums.size()), comm::DType::f64, comm::Op::sum);
  return {sums[0], sums[1], sums[2], sums[3]};
}

}  // namespace trireme::learn
