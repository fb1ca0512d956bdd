// How a policy loss is made of probability ratios. One line per loss says what parsing, help,
// validation and `ppo` need to know of it; its arithmetic is one function in ppo/policy_losses.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::config {

enum class PolicyLoss { ppo, gspo, cispo, sapo, gmpo, gspo_token };

struct PolicyLossTraits {
  PolicyLoss loss;
  std::string_view word;  // in the deck
  bool clips;             // actor.eps_clip and actor.eps_clip_low_high count
  bool bounds;            // actor.dual_clip and actor.delta count
  bool by_sequence;       // always the mean over sequences of their token means
  bool corrects;          // an importance correction weights its tokens
  std::string_view what;  // for help
};

inline constexpr std::array policy_loss_table{
    PolicyLossTraits{PolicyLoss::ppo, "ppo", true, true, false, true,
                     "clipped ratio of each token"},
    PolicyLossTraits{PolicyLoss::gspo, "gspo", true, true, true, false,
                     "clipped ratio of the whole sequence, the geometric mean of its tokens'"},
    PolicyLossTraits{PolicyLoss::cispo, "cispo", false, false, false, true,
                     "log-probabilities weighted with the clipped ratio, which has no gradient "
                     "(MiniMax-M1, ScaleRL)"},
    PolicyLossTraits{PolicyLoss::sapo, "sapo", false, false, false, true,
                     "a sigmoid of the ratio as a soft clip"},
    PolicyLossTraits{PolicyLoss::gmpo, "gmpo", true, false, true, false,
                     "geometric mean of ratios that are clipped in log space, where the paper "
                     "takes 0.4 for actor.eps_clip"},
    PolicyLossTraits{PolicyLoss::gspo_token, "gspo_token", true, false, false, true,
                     "value of gspo, with a gradient of each token's own advantage"},
};

constexpr const PolicyLossTraits& traits(PolicyLoss loss) {
  return policy_loss_table[static_cast<size_t>(loss)];
}

namespace detail {
constexpr bool losses_in_order() {
  for (size_t i = 0; i < policy_loss_table.size(); ++i) {
    if (static_cast<size_t>(policy_loss_table[i].loss) != i) return false;
  }
  return policy_loss_table.back().loss ==
         PolicyLoss::gspo_token;  // the last enumerator: none is missing
}
static_assert(losses_in_order(), "policy_loss_table has one line per enumerator, in their order");
}  // namespace detail

}  // namespace trireme::config
