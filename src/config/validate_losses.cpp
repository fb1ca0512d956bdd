#include "config/validate_losses.hpp"

#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

class Mistakes {
 public:
  template <class... Parts>
  void refuse_if(bool wrong, const Parts&... parts) {
    if (wrong) list_.push_back(base::text(parts...));
  }
  // A key that another loss has: it would be ignored silently.
  template <class E>
  void foreign(bool is_set, std::string_view key, std::string_view selector, E owner, E chosen) {
    refuse_if(is_set && owner != chosen, key, " is for ", selector, " = \"", to_string(owner),
              "\", and it is \"", to_string(chosen), "\" (it would have no effect): remove it");
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

void clip_mistakes(const ActorOptions& actor, Mistakes& mistakes) {
  const PolicyLossTraits& loss = traits(actor.policy_loss_type);
  for (const auto& [key, is_set] : {std::pair{"actor.dual_clip", actor.dual_clip.has_value()},
                                    std::pair{"actor.delta", actor.delta.has_value()}}) {
    mistakes.refuse_if(is_set && !loss.bounds, key, " with actor.policy_loss_type = \"", loss.word,
                       "\" (that loss has no branch that it would bound): remove it");
  }
  mistakes.refuse_if(actor.eps_clip_low_high && !loss.clips,
                     "actor.eps_clip_low_high with actor.policy_loss_type = \"", loss.word,
                     "\" (its bounds are keys of its own): remove it");
  mistakes.refuse_if(actor.delta && actor.dual_clip,
                     "actor.delta and actor.dual_clip are both set (both bound the objective where "
                     "the advantage is negative): keep one");
  mistakes.refuse_if(actor.delta && *actor.delta <= 1 + actor.clip()[1],
                     "actor.delta = ", actor.delta.value_or(0), " is not above the upper clip 1 + ",
                     actor.clip()[1], " (it would replace the clip): raise it");
}

void own_key_mistakes(const ActorOptions& actor, Mistakes& mistakes) {
  const ActorOptions initial;
  const auto foreign = [&](bool is_set, std::string_view key, PolicyLoss owner) {
    mistakes.foreign(is_set, key, "actor.policy_loss_type", owner, actor.policy_loss_type);
  };
  foreign(actor.cispo_ratio_max != initial.cispo_ratio_max, "actor.cispo_ratio_max",
          PolicyLoss::cispo);
  foreign(actor.cispo_ratio_min.has_value(), "actor.cispo_ratio_min", PolicyLoss::cispo);
  foreign(actor.sapo_tau_pos != initial.sapo_tau_pos, "actor.sapo_tau_pos", PolicyLoss::sapo);
  foreign(actor.sapo_tau_neg != initial.sapo_tau_neg, "actor.sapo_tau_neg", PolicyLoss::sapo);
  foreign(actor.gspo_log_ratio_max != initial.gspo_log_ratio_max, "actor.gspo_log_ratio_max",
          PolicyLoss::gspo_token);
  mistakes.refuse_if(actor.cispo_ratio_min && *actor.cispo_ratio_min >= actor.cispo_ratio_max,
                     "actor.cispo_ratio_min = ", actor.cispo_ratio_min.value_or(0),
                     " is not below actor.cispo_ratio_max = ", actor.cispo_ratio_max,
                     " (every weight would be the same): lower it");
}

}  // namespace

std::vector<std::string> policy_loss_mistakes(const Options& options) {
  const ActorOptions& actor = options.actor;
  const bool gmpo = actor.policy_loss_type == PolicyLoss::gmpo;
  Mistakes mistakes;
  clip_mistakes(actor, mistakes);
  own_key_mistakes(actor, mistakes);
  mistakes.foreign(actor.loss_scale_factor.has_value(), "actor.loss_scale_factor",
                   "actor.loss_agg_mode", LossAggregation::seq_mean_token_sum_norm,
                   actor.loss_agg_mode);
  mistakes.refuse_if(gmpo && options.has_critic(),
                     "actor.policy_loss_type = \"gmpo\" with algo.advantage.estimator = \"",
                     to_string(options.algo.advantage.estimator),
                     "\" (it has one advantage for each answer, a critic one for each token): use "
                     "an estimator without a critic");
  mistakes.refuse_if(gmpo && options.algo.advantage.is_correction_enable,
                     "actor.policy_loss_type = \"gmpo\" with algo.advantage.is_correction_enable "
                     "(its tokens have no loss of their own to weight): keep one");
  mistakes.refuse_if(gmpo && actor.top_entropy_quantile,
                     "actor.policy_loss_type = \"gmpo\" with actor.top_entropy_quantile (its "
                     "tokens have no loss of their own to leave out): keep one");
  return mistakes.take();
}

std::vector<std::string> estimator_mistakes(const Options& options) {
  const AdvantageOptions& advantage = options.algo.advantage;
  Mistakes mistakes;
  const int64_t every = options.reference.sync_every;
  mistakes.refuse_if(every > 0 && !options.needs_reference(), "reference.sync_every = ", every,
                     " with algo.kl.init_coef = 0 (there is no reference): remove it");
  mistakes.refuse_if(every > 0 && options.train.async_depth > 0, "reference.sync_every = ", every,
                     " with train.async_depth = ", options.train.async_depth,
                     " (answers that are written ahead would be compared with the reference before "
                     "or after it, as time has it): set one of them to 0");
  for (const auto& [key, is_set] :
       {std::pair{"algo.advantage.lambd_value", advantage.lambd_value.has_value()},
        std::pair{"algo.advantage.length_adaptive_alpha", advantage.length_adaptive_alpha > 0}}) {
    mistakes.refuse_if(is_set && !options.has_critic(), key, " with algo.advantage.estimator = \"",
                       to_string(advantage.estimator),
                       "\" (only a critic's advantages have a lambda): remove it, or use gae");
  }
  return mistakes.take();
}

std::vector<std::string> dpo_mistakes(const Options& options) {
  const DpoOptions& dpo = options.algo.dpo;
  const DpoOptions initial;
  const DpoLossTraits& loss = traits(dpo.form());
  Mistakes mistakes;
  mistakes.refuse_if(dpo.ipo && dpo.loss != DpoLoss::sigmoid && dpo.loss != DpoLoss::ipo,
                     "algo.dpo.ipo with algo.dpo.loss = \"", to_string(dpo.loss),
                     "\" (they name two losses): keep one");
  mistakes.refuse_if(dpo.label_smoothing > 0 && !loss.smooths,
                     dpo.ipo ? "algo.dpo.ipo" : base::text("algo.dpo.loss = \"", loss.word, "\""),
                     " with algo.dpo.label_smoothing (this loss has none): keep one");
  const auto foreign = [&](bool is_set, std::string_view key, DpoLoss owner) {
    mistakes.foreign(is_set, key, "algo.dpo.loss", owner, dpo.form());
  };
  foreign(dpo.simpo_gamma != initial.simpo_gamma, "algo.dpo.simpo_gamma", DpoLoss::simpo);
  foreign(dpo.orpo_nll != initial.orpo_nll, "algo.dpo.orpo_nll", DpoLoss::orpo);
  const bool labelled = loss.rows == DpoRows::labelled;
  mistakes.refuse_if(!labelled && (dpo.desirable_weight != initial.desirable_weight ||
                                   dpo.undesirable_weight != initial.undesirable_weight),
                     "algo.dpo.desirable_weight and undesirable_weight are for algo.dpo.loss = "
                     "\"kto\" and \"apo_zero_unpaired\", and it is \"",
                     loss.word, "\" (they would have no effect): remove them");
  mistakes.refuse_if(dpo.nll_loss_coef > 0 && (labelled || dpo.form() == DpoLoss::orpo),
                     "algo.dpo.nll_loss_coef with algo.dpo.loss = \"", loss.word, "\" (",
                     labelled ? "it has no chosen answers" : "its language-model loss has weight 1",
                     "): remove it");
  mistakes.refuse_if(options.reference.sync_every > 0,
                     "reference.sync_every is for ppo (dpo compares with the same reference to the "
                     "end): remove it");
  mistakes.refuse_if(!options.reference.path.empty() && !loss.reference,
                     "reference.path with algo.dpo.loss = \"", loss.word,
                     "\" (it compares with no reference): remove it");
  mistakes.refuse_if(dpo.form() == DpoLoss::kto && options.train.batch_size < 2,
                     "algo.dpo.loss = \"kto\" with train.batch_size = 1 (its KL is that of prompts "
                     "with the answers to other ones of the step): use 2 or more");
  return mistakes.take();
}

namespace {

// The keys that a comparison of drawn tokens does not have.
DistillOptions of_distributions(const DistillOptions& distill) {
  DistillOptions out = distill;
  const DistillOptions initial;
  out.coef = initial.coef;
  out.policy = initial.policy;
  out.discount = initial.discount;
  out.loss_max = initial.loss_max;
  return out;
}

void distribution_mistakes(const DistillOptions& distill, Mistakes& mistakes) {
  const DistillOptions initial;
  mistakes.refuse_if(
      distill.top_k == 0 && (distill.support != initial.support || distill.rest != initial.rest),
      "algo.distill.support and rest are for algo.distill.top_k, and it is 0 (the "
      "whole vocabulary is compared): set it, or remove them");
  const bool partial = distill.rest == DistillRest::none;
  mistakes.refuse_if(!partial && (distill.log_prob_min || distill.loss_max),
                     "algo.distill.log_prob_min and loss_max are for algo.distill.rest = \"none\", "
                     "and it is \"",
                     to_string(distill.rest), "\" (they would have no effect): remove them");
  mistakes.refuse_if(partial && distill.beta != 0,
                     "algo.distill.rest = \"none\" with algo.distill.beta = ", distill.beta,
                     " (over some of the tokens it is defined for the forward KL alone): use tail "
                     "or renormalise");
}

void off_policy_mistakes(const DistillOptions& distill, Mistakes& mistakes) {
  mistakes.refuse_if(
      distill.policy != DistillOptions{}.policy || distill.discount != 0,
      "algo.distill.policy and discount are for ppo (sft has no advantages): remove them");
  distribution_mistakes(distill, mistakes);
}

void on_policy_mistakes(const Options& options, Mistakes& mistakes) {
  const DistillOptions& distill = options.algo.distill;
  if (distill.in_steps()) {
    mistakes.refuse_if(distill.nll_coef > 0,
                       "algo.distill.nll_coef is for sft (ppo has no data to learn by heart): "
                       "remove it, or use actor.ptx_coef");
    distribution_mistakes(distill, mistakes);
  } else {
    mistakes.refuse_if(!(of_distributions(distill) == DistillOptions{}),
                       "algo.distill: beta, temperature, top_k, support, rest, log_prob_min and "
                       "nll_coef are for sft and, without nll_coef, for algo.distill.policy = "
                       "\"distribution\", and it is \"",
                       to_string(distill.policy),
                       "\" (it compares log-probs of the tokens that were drawn): remove them");
  }
  mistakes.refuse_if(options.algo.kl.init_coef != 0 || options.algo.kl.target,
                     "algo.distill.coef = ", distill.coef,
                     " with algo.kl.init_coef = ", options.algo.kl.init_coef,
                     " (there is one frozen model, the teacher): set algo.kl.init_coef = 0");
  mistakes.refuse_if(options.reference.sync_every > 0,
                     "reference.sync_every with algo.distill.coef (the teacher stays): remove it");
  const bool by_advantage = distill.policy == DistillPolicy::advantage;
  mistakes.refuse_if(
      !by_advantage && distill.discount > 0,
      "algo.distill.discount is for algo.distill.policy = \"advantage\", and it is \"",
      to_string(distill.policy), "\" (it would have no effect): remove it");
  mistakes.refuse_if(
      by_advantage && distill.loss_max,
      "algo.distill.loss_max with algo.distill.policy = \"advantage\" (it would have "
      "no effect): remove it");
}

}  // namespace

std::vector<std::string> distill_mistakes(const Options& options, Command command) {
  const DistillOptions& distill = options.algo.distill;
  Mistakes mistakes;
  if (distill.coef == 0) {
    mistakes.refuse_if(!(distill == DistillOptions{}),
                       "algo.distill without algo.distill.coef (it would have no effect): set "
                       "algo.distill.coef = 1, or remove it");
    mistakes.refuse_if(command == Command::sft && !options.reference.path.empty(),
                       "reference.path with sft (it has no reference): remove it, or set "
                       "algo.distill.coef, whose teacher it is");
    return mistakes.take();
  }
  mistakes.refuse_if(command != Command::sft && command != Command::ppo, "algo.distill.coef with ",
                     to_string(command), " (it is for sft and ppo): remove it");
  mistakes.refuse_if(options.reference.path.empty(), "algo.distill.coef = ", distill.coef,
                     " without reference.path (the teacher): name its folder");
  if (command == Command::sft) off_policy_mistakes(distill, mistakes);
  if (command == Command::ppo) on_policy_mistakes(options, mistakes);
  return mistakes.take();
}

}  // namespace trireme::config
