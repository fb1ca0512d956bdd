// Which trainer has which sequence in a PPO epoch, and the epoch's optimizer steps: pure functions
// of what all ranks know, without a message.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/learn/exchange.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/minibatches.hpp"

namespace trireme::learn {

struct EpochPlan {
  std::vector<int>
      owner;  // trainer of each of `sequences`, such that each step is balanced by tokens
  std::vector<ppo::OptimizerStep> steps;  // of these owners' sequences
};
// Of an iteration, from 1 on, and an epoch, from 0 on: each has an order of its own, which does not
// depend on the number of trainers.
EpochPlan plan_epoch(const config::Options& options, const SequenceList& sequences, int trainers,
                     int64_t iteration, int64_t epoch);

// Sequence i of `sequences`, which are those of all `trainers`, with all of its columns to trainer
// owner[i]; in id order. Collective over them.
ppo::Experience hand_over(const ppo::Experience& mine, const SequenceList& sequences,
                          const std::vector<int>& owner, const comm::CommView& trainers);

// Counts the tokens of a step, and those that it would have if all trainers had as many as the
// fullest: `step_tokens`, `step_tokens_if_full`. Of one rank.
void count_balance(const ppo::OptimizerStep& step, const SequenceList& sequences);

// A trainer that has no sequence takes part with empty columns.
void fill_if_empty(ppo::Experience& experience);

}  // namespace trireme::learn
