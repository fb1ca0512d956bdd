// Keys of [algo].
#include "config/key.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

// "a, b and c": the estimators for which `condition` holds.
template <class Condition>
std::string estimators_where(Condition condition) {
  std::vector<std::string_view> words;
  for (const EstimatorTraits& line : estimator_table) {
    if (condition(line)) words.push_back(line.word);
  }
  std::string out;
  for (size_t i = 0; i < words.size(); ++i)
    out += base::text(i == 0 ? "" : i + 1 == words.size() ? " and " : ", ", words[i]);
  return out;
}

// The key list keeps views of these.
const std::string& estimator_help() {
  const auto comparing = [](Comparison what) {
    return estimators_where(
        [what](const EstimatorTraits& line) { return line.compares == what && !line.critic; });
  };
  static const std::string help = base::text(
      "How rewards become advantages. With a critic: ",
      estimators_where([](const EstimatorTraits& line) { return line.critic; }),
      ". By comparing the answers to one prompt: ", comparing(Comparison::group),
      " (group_norm is GRPO's; gdpo compares each reward source on its own). By comparing all "
      "answers: ",
      comparing(Comparison::batch), ". By the reward alone: ", comparing(Comparison::nothing), ".");
  return help;
}

const std::string& gamma_help() {
  static const std::string help =
      base::text("Discount; counts for ",
                 estimators_where([](const EstimatorTraits& line) { return line.discounts; }),
                 ", 1 for the others.");
  return help;
}

void add_dpo_keys(KeyList<Options>& keys) {
  keys.add(KEY(algo.dpo.loss),
           "dpo: what is minimised (algorithms.md). On pairs, against the reference: sigmoid (DPO, "
           "with label_smoothing cDPO), ipo, hinge, robust, ipo_norm, sigmoid_norm, aot, "
           "aot_unpaired, apo_zero, apo_down; without a reference: orpo, simpo, cpo. On answers "
           "with a label true or false: kto, apo_zero_unpaired.")
      .departs("OpenRLHF: DPO, cDPO and IPO; the others as in TRL.");
  keys.add(KEY(algo.dpo.beta),
           "dpo: temperature of the implicit reward; orpo: weight of the odds ratio.")
      .above(0);
  keys.add(KEY(algo.dpo.label_smoothing), "dpo: share of labels taken to be wrong (cDPO).")
      .at_least(0)
      .below(0.5);
  keys.add(KEY(algo.dpo.ipo), "dpo: the same as algo.dpo.loss = \"ipo\".");
  keys.add(
          KEY(algo.dpo.nll_loss_coef),
          "dpo: weight of the language-model loss on the chosen answers: of the mean over pairs of "
          "their token means, with simpo and cpo (where TRL's cpo_alpha is 1) of the mean over all "
          "tokens of the step.")
      .at_least(0);
  keys.add(KEY(algo.dpo.simpo_gamma), "simpo: margin that is aimed at.")
      .at_least(0)
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(algo.dpo.orpo_nll),
           "orpo: tokens of its language-model loss: prompt and chosen answer (sequence, as in "
           "TRL), or the answer alone (response, as in the paper).")
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(algo.dpo.desirable_weight), "kto, apo_zero_unpaired: weight of wanted answers.")
      .at_least(0)
      .departs("OpenRLHF removed its KTO trainer.")
      .expert();
  keys.add(KEY(algo.dpo.undesirable_weight), "The same of unwanted ones.")
      .at_least(0)
      .departs("OpenRLHF removed its KTO trainer.")
      .expert();
}

void add_distill_keys(KeyList<Options>& keys) {
  keys.add(KEY(algo.distill.coef),
           "sft, ppo: weight of the divergence from a frozen teacher, reference.path. sft compares "
           "distributions at each token that is trained, ppo by algo.distill.policy at each token "
           "that the student drew (on-policy distillation). 0: there is no teacher.")
      .at_least(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(algo.distill.policy),
           "ppo: advantage: coef x (teacher's - student's log-prob at sampling) is added to the "
           "advantages, as in Tinker and NeMo-RL; policy_gradient: the same of the current "
           "log-probs, as in verl; k2, k3: coef x that estimate of the KL is added to the loss; "
           "distribution: coef x the divergence of the two distributions is, by the keys below "
           "(GKD).");
  keys.add(KEY(algo.distill.discount),
           "ppo, policy = \"advantage\": discount of later tokens' log-ratios; 0: a token's own.")
      .range(0, 1)
      .expert();
  keys.add(KEY(algo.distill.nll_coef),
           "sft: weight of the language-model loss on the data, beside the divergence.")
      .at_least(0);
  keys.add(KEY(algo.distill.beta),
           "Of distributions (sft; ppo with policy = \"distribution\"), as the keys below: 0: "
           "KL(teacher || student), the forward one. 1: KL(student || teacher), the reverse one. "
           "Between: the generalised Jensen-Shannon divergence (arXiv 2306.13649, as in TRL).")
      .range(0, 1);
  keys.add(KEY(algo.distill.temperature),
           "Both models' logits are divided by this; no factor of its square.")
      .above(0);
  keys.add(KEY(algo.distill.top_k),
           "Most likely tokens that are compared; 0: the whole vocabulary. With support = "
           "\"teacher\" a rank keeps only so many log-probs of the teacher for each token.")
      .range(0, 65536);
  keys.add(KEY(algo.distill.support), "top_k: whose most likely tokens.").expert();
  keys.add(KEY(algo.distill.rest),
           "top_k: all other tokens are one more (tail), both distributions are divided by their "
           "mass on these (renormalise), or the others are left out (none, as in verl).")
      .expert();
  keys.add(KEY(algo.distill.log_prob_min), "rest = \"none\": least log-prob of either model.")
      .below(0)
      .expert();
  keys.add(KEY(algo.distill.loss_max),
           "Most of a token's divergence: with rest = \"none\"; ppo with policy_gradient, k2, k3.")
      .above(0)
      .expert();
}

}  // namespace

void add_algo_keys(KeyList<Options>& keys) {
  keys.add(KEY(algo.advantage.estimator), estimator_help());
  keys.add(KEY(algo.advantage.gamma), gamma_help()).range(0, 1);
  keys.add(KEY(algo.advantage.lambd), "Lambda of generalised advantage estimation.").range(0, 1);
  keys.add(KEY(algo.advantage.lambd_value),
           "algo.advantage.lambd of the returns that the critic learns; none: the same.")
      .range(0, 1)
      .departs("Not in OpenRLHF; NeMo-RL: gae_lambda_value.")
      .expert();
  keys.add(KEY(algo.advantage.length_adaptive_alpha),
           "gae: above 0, the advantages of an answer of n tokens take lambda = 1 - 1 / (alpha n), "
           "at least 0, in the place of algo.advantage.lambd (VAPO: 0.05).")
      .at_least(0)
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(algo.advantage.gaps),
           "How advantages and returns pass tokens between two turns of the policy. skip: as if "
           "they were not there (verl, NeMo-RL); decay: as tokens with reward and value 0 "
           "(OpenRLHF). The same where an answer is one turn.")
      .departs("OpenRLHF: decay.")
      .expert();
  keys.add(KEY(algo.advantage.no_std_norm),
           "Centers advantages over the batch without dividing by their standard deviation.");
  keys.add(KEY(algo.advantage.is_correction_enable),
           "Weights the policy loss by the ratio of training to rollout probabilities (truncated "
           "importance sampling); with rollout.top_p or top_k the latter "
           "are of what these left.");
  keys.add(KEY(algo.advantage.is_correction_type),
           "tis: token weights clipped to the threshold; icepop: tokens outside it are dropped; "
           "seq-mask-tis: sequences outside "
           "it are "
           "dropped; custom: as the next three keys say.");
  keys.add(KEY(algo.advantage.is_correction_level),
           "custom: what is judged: tokens, whole sequences, or of a sequence the tokens that one "
           "version of the weights wrote (segment).")
      .expert();
  keys.add(KEY(algo.advantage.is_correction_mode),
           "custom: clip the weight to the threshold, or drop what lies outside.")
      .expert();
  keys.add(KEY(algo.advantage.is_correction_gating),
           "custom: what is held against the threshold: the ratio, or a divergence of the two "
           "probabilities.")
      .expert();
  keys.add(KEY(algo.advantage.is_correction_threshold), "[low, high] of the above.")
      .at_least(0)
      .ordered();
  keys.add(KEY(algo.advantage.mask_older_than),
           "With train.async_depth: tokens that weights of more versions before the trainers' "
           "wrote are not learned from; none: all are.")
      .at_least(0);

  keys.add(KEY(algo.advantage.mask_truncated),
           "Answers that the length limit cut are not learned from, by actor and critic; their "
           "rewards still count for the baseline of their group (DAPO).")
      .departs("Not in OpenRLHF; TRL: mask_truncated_completions.");

  keys.add(KEY(algo.kl.init_coef),
           "Weight of the KL term against the reference; 0: no reference model is loaded.")
      .range(0, 1e6)
      .departs("OpenRLHF loads the reference only above 1e-8; here the same without that margin.");
  keys.add(KEY(algo.kl.target),
           "KL that an adaptive coefficient steers to; none: the coefficient stays.")
      .above(0);
  keys.add(KEY(algo.kl.horizon), "Time constant of the adaptive coefficient, in samples.")
      .at_least(1)
      .expert();
  keys.add(KEY(algo.kl.estimator),
           "k1: log ratio; k2: half its square; k3: exp(-ratio) - 1 + ratio.");
  keys.add(KEY(algo.kl.use_loss), "The KL term goes into the policy loss instead of the reward.");
  keys.add(KEY(algo.kl.unbiased_gradient),
           "With use_loss: the gradient of the expected KL, by importance weights, instead of that "
           "of the estimate.")
      .expert();

  keys.add(KEY(algo.dynamic_filtering_enable),
           "Drops prompts whose mean reward lies outside the range and draws new ones until the "
           "batch is full (DAPO): as many as are missing, and "
           "more where many were dropped lately. What is left over is learned from first in the "
           "next iteration. With train.async_depth it draws for "
           "the next iterations, too, and tokens may be one version older than that.");
  keys.add(KEY(algo.dynamic_filtering_range), "[low, high], both ends excluded.").ordered();
  keys.add(KEY(algo.dynamic_filtering_patience),
           "Prompts that an iteration may draw before it warns and does what "
           "algo.dynamic_filtering_shortage says, in units of rollout.batch_size.")
      .range(1, 524288)
      .expert();
  keys.add(KEY(algo.dynamic_filtering_shortage),
           "draw_on: draws until the batch is full, with a warning each time that patience is "
           "over; smaller: learns from what was found, if anything; "
           "stop: ends the run with exit code 65.")
      .expert();

  add_dpo_keys(keys);
  add_distill_keys(keys);
  keys.add(KEY(algo.rm.loss),
           "rm: -log sigmoid(chosen - rejected - margin), or log(1 + exp(rejected - chosen)), "
           "which has no margin.");
}

}  // namespace trireme::config
