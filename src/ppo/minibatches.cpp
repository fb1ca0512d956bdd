#include "trireme/ppo/minibatches.hpp"

#include <algorithm>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::ppo {
namespace {

std::vector<int64_t> lengths_of(std::span<const int64_t> lengths, std::span<const int64_t> items) {
  std::vector<int64_t> out;
  out.reserve(items.size());
  for (const int64_t item : items) out.push_back(lengths[static_cast<size_t>(item)]);
  return out;
}

bool within_budget(const Bins& bins, std::span<const int64_t> lengths, int64_t max_tokens) {
  return std::all_of(bins.begin(), bins.end(), [&](const std::vector<int64_t>& bin) {
    int64_t tokens = 0;
    for (const int64_t item : bin) tokens += lengths[static_cast<size_t>(item)];
    return bin.size() <= 1 || tokens <= max_tokens;
  });
}

// Sequences of each rank in one optimizer step.
Bins by_rank(const PlanInput& input, std::span<const int64_t> sequences) {
  Bins out(static_cast<size_t>(input.ranks));
  if (!input.owner.empty()) {
    for (const int64_t s : sequences)
      out[static_cast<size_t>(input.owner[static_cast<size_t>(s)])].push_back(s);
    return out;
  }
  const Bins places = interleaved_bins(lengths_of(input.lengths, sequences), input.ranks);
  for (size_t rank = 0; rank < out.size(); ++rank) {
    for (const int64_t place : places[rank])
      out[rank].push_back(sequences[static_cast<size_t>(place)]);
  }
  return out;
}

OptimizerStep plan_step(const PlanInput& input, std::span<const int64_t> sequences) {
  OptimizerStep step;
  step.sequences.assign(sequences.begin(), sequences.end());
  const Bins ranks = by_rank(input, sequences);
  const auto split = [&](const std::vector<int64_t>& mine, int64_t at_least) {
    Bins bins = micro_batches(lengths_of(input.lengths, mine), input.micro_batch_tokens, at_least);
    for (auto& bin : bins) {
      for (int64_t& item : bin) item = mine[static_cast<size_t>(item)];
    }
    return bins;
  };
  int64_t wanted = 1;
  for (const auto& mine : ranks)
    wanted = std::max(wanted, static_cast<int64_t>(split(mine, 1).size()));
  // Splitting further may need yet another bin: repeat until all ranks agree.
  for (bool agreed = false; !agreed;) {
    agreed = true;
    step.micro_batches.clear();
    for (const auto& mine : ranks) {
      step.micro_batches.push_back(split(mine, wanted));
      const auto got = static_cast<int64_t>(step.micro_batches.back().size());
      agreed = agreed && got <= wanted;
      wanted = std::max(wanted, got);
    }
  }
  step.micro_batches_per_rank = wanted;
  return step;
}

void check(const PlanInput& input) {
  VALIDATE(input.ranks > 0 && input.batch_size > 0 && input.micro_batch_tokens > 0,
           ExitCode::internal, "plan_epoch: ranks, batch size and token budget must be positive");
  VALIDATE(input.owner.empty() || input.owner.size() == input.lengths.size(), ExitCode::internal,
           "plan_epoch: one owner per sequence");
  for (const int owner : input.owner) {
    VALIDATE(owner >= 0 && owner < input.ranks, ExitCode::internal, "plan_epoch: owner ", owner,
             " of ", input.ranks, " ranks");
  }
}

}  // namespace

int64_t optimizer_steps(int64_t sequences, int64_t batch_size) {
  return base::ceil_div(sequences, batch_size);
}

Bins micro_batches(std::span<const int64_t> lengths, int64_t max_tokens, int64_t at_least) {
  const auto count = static_cast<int64_t>(lengths.size());
  Bins out;
  // Balanced bins may overflow where first-fit does not: one more until they fit, at worst one
  // sequence each.
  for (int64_t k = std::min(count, std::max(first_fit_bins(lengths, max_tokens), at_least)); k > 0;
       ++k) {
    out = balanced_bins(lengths, k, BinSize::any);
    if (k >= count || within_budget(out, lengths, max_tokens)) break;
  }
  if (static_cast<int64_t>(out.size()) < at_least) out.resize(static_cast<size_t>(at_least));
  std::stable_partition(out.begin(), out.end(), [](const auto& bin) { return !bin.empty(); });
  return out;
}

std::vector<OptimizerStep> plan_epoch(const PlanInput& input) {
  check(input);
  const auto count = static_cast<int64_t>(input.lengths.size());
  const int64_t steps = optimizer_steps(count, input.batch_size);
  const std::vector<int64_t> order = base::permutation(input.seed, input.shuffle, count);
  std::vector<OptimizerStep> out;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t begin = step * count / steps;
    const int64_t end = (step + 1) * count / steps;
    out.push_back(plan_step(input, std::span(order).subspan(static_cast<size_t>(begin),
                                                            static_cast<size_t>(end - begin))));
  }
  return out;
}

}  // namespace trireme::ppo
