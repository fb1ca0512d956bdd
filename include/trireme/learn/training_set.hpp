// Data of supervised training: examples (sft, pretraining texts), pairs of answers (rm, dpo) and
// labelled answers (dpo) with one interface, and how their rows are shared out over the trainers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::learn {

// Rows of one data set. A row is one sequence (an example) or two (the chosen and the rejected
// answer to one prompt).
class TrainingSet {
 public:
  explicit TrainingSet(data::SftSet examples) : set_(std::move(examples)) {}
  explicit TrainingSet(data::PreferenceSet pairs) : set_(std::move(pairs)) {}
  explicit TrainingSet(data::LabelledSet answers) : set_(std::move(answers)) {}
  static TrainingSet load(config::RowKind kind, const data::SetOptions& options,
                          const text::Tokenizer& tokenizer, const data::EncodingTeam& team = {});

  int64_t size() const;
  const data::SetCounts& counts() const;
  // Tokens of all sequences of a row.
  int64_t tokens(int64_t row) const;
  // Of the longest sequence of all rows.
  int64_t longest() const;
  // By how much the chosen answer should beat the other; 0 for examples.
  double margin(int64_t row) const;
  // Of labelled answers: whether this one is wanted; false for the others.
  bool wanted(int64_t row) const;
  bool labelled() const { return std::holds_alternative<data::LabelledSet>(set_); }
  // Of labelled answers: the prompt of `row` with the answer of `other`, no longer than the longest
  // row; for the KL of KTO.
  void append_mismatched(int64_t row, int64_t other, Samples& samples) const;
  int64_t mismatched_tokens(int64_t row, int64_t other) const;
  // Appends the row's sequences, chosen before rejected. The action mask marks the tokens that the
  // loss is about: the answers.
  void append(int64_t row, Samples& samples) const;

 private:
  std::variant<data::SftSet, data::PreferenceSet, data::LabelledSet> set_;
};

// Some rows as one forward and backward pass sees them.
struct RowBatch {
  Samples samples;
  std::vector<float> margins;  // per row
  // Of labelled answers, else empty: per row whether it is wanted, and its prompt with the answer
  // of the row before it in the step, of the last row for the first one (as in TRL).
  std::vector<uint8_t> wanted = {};
  Samples mismatched = {};
};

// This rank's share of the pretraining rows of an iteration's optimizer step `step`
// (actor.ptx_coef); collective over the trainers.
using PretrainingRows = std::function<std::vector<RowBatch>(int64_t step)>;

// The places of the rows that rank `rank` of `ranks` gets, token counts near even: a pure function,
// O(rows) memory.
std::vector<int64_t> share_of(std::span<const int64_t> lengths, int ranks, int rank);

// This rank's share of `rows`, balanced by tokens, in micro-batches under `micro_batch_tokens`;
// both sequences of a pair lie in one, and mismatched ones stay
// under it, too. The same number on every rank, empty ones at the end.
// Collective over `ranks`.
std::vector<RowBatch> share_out(const TrainingSet& set, std::span<const int64_t> rows,
                                const comm::CommView& ranks, int64_t micro_batch_tokens);

// What losses are divided by, over all micro-batches and ranks.
struct BatchTotals {
  double rows = 0;       // examples, or pairs
  double sequences = 0;  // with target tokens
  double targets = 0;    // tokens that the loss is about
  double tokens = 0;     // all of them
};
// Collective over `ranks`.
BatchTotals totals_of(std::span<const RowBatch> batches, const comm::CommView& ranks);

}  // namespace trireme::learn
