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
  max_rl,
  gdpo,
  gdpo_sequences,
  reinforce_plus_plus,
  reinforce_plus_plus_baseline,
  reinforce_plus_plus_baseline_kl
};

// The baseline of a reward before it is spread over the tokens.
enum class Comparison : uint8_t {
  nothing,
  group,  // the other answers to the same prompt: rollout.n_samples_per_prompt > 1 is needed
  batch,  // all answers of the rollout
};

// How advantages are whitened over the batch.
enum class Whitening : uint8_t {
  none,
  population,  // F15: variance with n, at least 1e-8 (OpenRLHF, NeMo-RL)
  sample,      // F43, F44: variance with n - 1, plus 1e-8, masked columns 0 (verl)
  sequences,   // F43: over sequences before they are spread over tokens (TRL)
};

// Use of a KL penalty that is part of the reward.
enum class KlSpread : uint8_t {
  accumulated,  // a token pays for itself and for all later ones
  per_token,    // a token pays for itself alone
};

struct EstimatorTraits {
  Estimator estimator;
  std::string_view word;  // in the deck
  Comparison compares;
  bool critic;     // advantages by a critic's values (GAE)
  bool discounts;  // algo.advantage.gamma counts; it is 1 for the others
  Whitening whitens;
  KlSpread kl = KlSpread::accumulated;
  bool by_source = false;  // each reward source is normalised on its own
};

inline constexpr std::array estimator_table{
    EstimatorTraits{Estimator::gae, "gae", Comparison::nothing, true, true, Whitening::population},
    EstimatorTraits{Estimator::reinforce, "reinforce", Comparison::nothing, false, true,
                    Whitening::population},
    EstimatorTraits{Estimator::rloo, "rloo", Comparison::group, false, false, Whitening::none},
    EstimatorTraits{Estimator::reinforce_baseline, "reinforce_baseline", Comparison::group, false,
                    false, Whitening::population},
    EstimatorTraits{Estimator::group_norm, "group_norm", Comparison::group, false, false,
                    Whitening::none},
    EstimatorTraits{Estimator::dr_grpo, "dr_grpo", Comparison::group, false, false,
                    Whitening::none},
    EstimatorTraits{Estimator::flash_reinforce, "flash_reinforce", Comparison::batch, false, false,
                    Whitening::none},
    EstimatorTraits{Estimator::max_rl, "max_rl", Comparison::group, false, false, Whitening::none},
    EstimatorTraits{Estimator::gdpo, "gdpo", Comparison::group, false, false, Whitening::sample,
                    KlSpread::accumulated, true},
    EstimatorTraits{Estimator::gdpo_sequences, "gdpo_sequences", Comparison::group, false, false,
                    Whitening::sequences, KlSpread::accumulated, true},
    EstimatorTraits{Estimator::reinforce_plus_plus, "reinforce_plus_plus", Comparison::nothing,
                    false, true, Whitening::sample},
    EstimatorTraits{Estimator::reinforce_plus_plus_baseline, "reinforce_plus_plus_baseline",
                    Comparison::group, false, false, Whitening::sample},
    EstimatorTraits{Estimator::reinforce_plus_plus_baseline_kl, "reinforce_plus_plus_baseline_kl",
                    Comparison::group, false, false, Whitening::population, KlSpread::per_token},
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
         Estimator::reinforce_plus_plus_baseline_kl;  // the last enumerator: none is missing
}
static_assert(in_order(), "estimator_table has one line per enumerator, in their order");
}  // namespace detail

}  // namespace trireme::config
