// F9: how a reward becomes an advantage. One line per estimator says all that parsing, help,
// validation, warnings and `ppo` need to know of it; its arithmetic is one function in
// ppo/rewards.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::config {

enum class Estimator {
  gae,
  reinforce,
  rloo,
  reinforce_baseline,
  group_norm,
  dr_grpo,
  flash_reinforce,
  max_rl
};

// What a reward is compared with before it is spread over the tokens.
enum class Comparison : uint8_t {
  nothing,
  group,  // the other answers to the same prompt: rollout.n_samples_per_prompt > 1 is needed
  batch,  // all answers of the rollout
};

struct EstimatorTraits {
  Estimator estimator;
  std::string_view word;  // in the deck
  Comparison compares;
  bool critic;     // advantages by a critic's values (GAE)
  bool discounts;  // algo.advantage.gamma counts; it is 1 for the others
  bool whitens;    // advantages are whitened over the batch (F15)
};

inline constexpr std::array estimator_table{
    EstimatorTraits{Estimator::gae, "gae", Comparison::nothing, true, true, true},
    EstimatorTraits{Estimator::reinforce, "reinforce", Comparison::nothing, false, true, true},
    EstimatorTraits{Estimator::rloo, "rloo", Comparison::group, false, false, false},
    EstimatorTraits{Estimator::reinforce_baseline, "reinforce_baseline", Comparison::group, false,
                    false, true},
    EstimatorTraits{Estimator::group_norm, "group_norm", Comparison::group, false, false, false},
    EstimatorTraits{Estimator::dr_grpo, "dr_grpo", Comparison::group, false, false, false},
    EstimatorTraits{Estimator::flash_reinforce, "flash_reinforce", Comparison::batch, false, false,
                    false},
    EstimatorTraits{Estimator::max_rl, "max_rl", Comparison::group, false, false, false},
};

constexpr const EstimatorTraits& traits(Estimator estimator) {
  return estimator_table[static_cast<size_t>(estimator)];
}

namespace detail {
constexpr bool in_order() {
  for (size_t i = 0; i < estimator_table.size(); ++i) {
    if (static_cast<size_t>(estimator_table[i].estimator) != i) return false;
  }
  return estimator_table.back().estimator ==
         Estimator::max_rl;  // the last enumerator: none is missing
}
static_assert(in_order(), "estimator_table has one line per enumerator, in their order");
}  // namespace detail

}  // namespace trireme::config
