// Keys of [actor] that say what the policy minimises.
#include "config/key.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

// The key list keeps a view of it.
const std::string& policy_loss_help() {
  static const std::string help = [] {
    std::string out = "What the policy minimises.";
    for (const PolicyLossTraits& line : policy_loss_table)
      out += base::text(" ", line.word, ": ", line.what, ".");
    return out;
  }();
  return help;
}

void add_aggregation_keys(KeyList<Options>& keys) {
  keys.add(KEY(actor.loss_agg_mode),
           "How the losses of tokens become that of an optimizer step, over all its micro-batches "
           "and ranks. token-mean: their mean; token-sum: their sum; seq-mean-token-mean: the mean "
           "over sequences of their token means; seq-mean-token-sum: of their token sums; "
           "seq-mean-token-sum-norm: of these sums divided by actor.loss_scale_factor (Dr. GRPO).")
      .departs("gspo and gmpo always take seq-mean-token-mean.");
  keys.add(KEY(actor.loss_scale_factor),
           "seq-mean-token-sum-norm: tokens that the sum of a sequence is divided by; none: "
           "rollout.max_new_tokens, else data.max_len.")
      .above(0)
      .departs("Not in OpenRLHF; verl: the padded width where none is given.")
      .expert();
  keys.add(
          KEY(actor.loss_count_empty),
          "Means over sequences count those without a token to learn from (masked by "
          "algo.advantage.mask_truncated or mask_older_than), as in TRL; false: they do not count, "
          "as in verl.")
      .departs("Not in OpenRLHF.")
      .expert();
}

void add_filter_keys(KeyList<Options>& keys) {
  keys.add(KEY(actor.off_policy_threshold),
           "Tokens with a negative advantage are not learned from where the mean of rollout minus "
           "current log-probabilities of their sequence is above this (DeepSeek-V3.2); none: off.")
      .departs("Not in OpenRLHF; TRL: off_policy_mask_threshold.")
      .expert();
  keys.add(KEY(actor.top_entropy_quantile),
           "Share of an optimizer step's tokens, those with the highest entropies, whose policy "
           "loss counts; it takes one more forward pass. none: all.")
      .above(0)
      .at_most(1)
      .departs("Not in OpenRLHF; in TRL of a micro-batch's tokens.")
      .expert();
  keys.add(KEY(actor.positive_nll_coef),
           "Weight of the language-model loss on answers with a reward above 0 (VAPO); 0: none.")
      .at_least(0)
      .departs("Not in OpenRLHF; NeMo-RL: positive_example_nll_weight.")
      .expert();
}

}  // namespace

void add_policy_loss_keys(KeyList<Options>& keys) {
  keys.add(KEY(actor.policy_loss_type), policy_loss_help());
  keys.add(KEY(actor.delta),
           "Most that the ratio may be in the branch that is not clipped (two-sided clip); more "
           "than 1 + the upper clip distance. none: any.")
      .above(1)
      .departs("Not in OpenRLHF; TRL: delta.")
      .expert();
  keys.add(KEY(actor.cispo_ratio_max), "cispo: most that a weight may be.")
      .above(0)
      .departs("Not in OpenRLHF; TRL and ScaleRL: 5, verl: 1 + the upper clip distance.")
      .expert();
  keys.add(KEY(actor.cispo_ratio_min), "cispo: least that a weight may be; none: no bound.")
      .at_least(0)
      .departs("Not in OpenRLHF; verl: 1 - the lower clip distance, TRL and MiniMax-M1: none.")
      .expert();
  keys.add(KEY(actor.sapo_tau_pos), "sapo: temperature where the advantage is above 0.")
      .above(0)
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(actor.sapo_tau_neg), "sapo: temperature elsewhere.")
      .above(0)
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(actor.gspo_log_ratio_max),
           "gspo_token: most that the logarithm of the ratio may be; none: any.")
      .departs("Not in OpenRLHF; verl: 10, TRL: none.")
      .expert();
  add_aggregation_keys(keys);
  add_filter_keys(keys);
}

}  // namespace trireme::config
