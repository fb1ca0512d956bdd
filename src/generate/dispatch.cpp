#include "trireme/generate/dispatch.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/wire.hpp"

namespace trireme::generate {
namespace {

// Answers of all prompts that the mean remembers; of one prompt it remembers those of the last few
// draws.
constexpr int64_t remembered = 65536;

}  // namespace

// Beyond `memory` answers what was there counts half.
void AnswerLengths::Sum::add(int64_t more_answers, int64_t more_tokens, int64_t memory) {
  if (answers > memory) {
    answers /= 2;
    tokens /= 2;
  }
  answers += more_answers;
  tokens += more_tokens;
}

int64_t AnswerLengths::Sum::mean() const {
  return answers == 0 ? 1 : std::max<int64_t>(1, (tokens + answers / 2) / answers);
}

void AnswerLengths::add(int64_t row, int64_t answers, int64_t tokens) {
  all_.add(answers, tokens, remembered);
  rows_[row].add(answers, tokens, answers);
}

int64_t AnswerLengths::expected(int64_t row) const {
  const auto known = rows_.find(row);
  return known == rows_.end() ? all_.mean() : known->second.mean();
}

std::string AnswerLengths::to_bytes() const {
  std::vector<Row> rows;
  rows.reserve(rows_.size());
  for (const auto& [row, sum] : rows_) rows.push_back({row, sum});
  std::ranges::sort(rows, {}, &Row::row);
  return base::WireWriter().put(all_).put(rows).take();
}

AnswerLengths AnswerLengths::from_bytes(std::string_view bytes) {
  base::WireReader reader(bytes, "the answers' lengths of the checkpoint");
  AnswerLengths lengths;
  reader.take(lengths.all_);
  for (const Row& row : reader.take<std::vector<Row>>()) lengths.rows_[row.row] = row.sum;
  reader.must_be_done();
  return lengths;
}

Assignment assign(std::span<const PromptWork> prompts, std::span<const int64_t> outstanding) {
  Assignment result{.replica = std::vector<int32_t>(prompts.size()),
                    .order = std::vector<size_t>(prompts.size())};
  std::iota(result.order.begin(), result.order.end(), size_t{0});
  std::ranges::stable_sort(result.order, std::greater<>(),
                           [&](size_t p) { return prompts[p].answers; });
  std::vector<int64_t> tokens(outstanding.begin(), outstanding.end());
  for (const PromptWork& work : prompts) {
    if (work.replica != PromptWork::anywhere)
      tokens[static_cast<size_t>(work.replica)] += work.prompt + work.answers;
  }
  using Load = std::pair<int64_t, int32_t>;  // tokens, replica
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (size_t r = 0; r < tokens.size(); ++r) loads.emplace(tokens[r], static_cast<int32_t>(r));
  for (const size_t p : result.order) {
    result.replica[p] = prompts[p].replica;
    if (prompts[p].replica != PromptWork::anywhere) continue;
    const auto [load, replica] = loads.top();
    loads.pop();
    result.replica[p] = replica;
    loads.emplace(load + prompts[p].prompt + prompts[p].answers, replica);
  }
  return result;
}

}  // namespace trireme::generate
