// Which sequences train in which optimizer step, on which rank, in which micro-batch. A pure
// function of global facts, so that every rank computes the whole plan and no message is needed;
// the composition of the steps does not depend on the rank count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/ppo/balance.hpp"

namespace trireme::ppo {

struct PlanInput {
  std::vector<int64_t> lengths;  // tokens of all N sequences of the rollout, in id order
  std::vector<int>
      owner;  // rank that has the sequence, [N]; empty: the plan assigns ranks, balanced by tokens
  int ranks = 1;
  int64_t batch_size = 128;            // sequences per optimizer step
  int64_t micro_batch_tokens = 16192;  // budget; a longer sequence is a micro-batch of its own
  uint64_t seed = 0;
  uint64_t shuffle = 0;  // e.g. iteration * max_epochs + epoch: another order for each
};

struct OptimizerStep {
  std::vector<int64_t> sequences;   // of all ranks
  std::vector<Bins> micro_batches;  // [rank][micro-batch]: sequences; the same number on all ranks,
                                    // empty ones at the end
  int64_t micro_batches_per_rank = 0;  // at least 1
};

// Optimizer steps for N sequences: ceil(N / batch_size).
int64_t optimizer_steps(int64_t sequences, int64_t batch_size);

// Sequences in the order of base::permutation(seed, shuffle), cut into optimizer_steps() parts that
// differ by at most one sequence; in each part ranks and micro-batches are balanced by tokens.
std::vector<OptimizerStep> plan_epoch(const PlanInput& input);

// Micro-batches of given sequences under the budget, at least `at_least` of them (empty ones at the
// end). For scoring passes.
Bins micro_batches(std::span<const int64_t> lengths, int64_t max_tokens, int64_t at_least);

}  // namespace trireme::ppo
