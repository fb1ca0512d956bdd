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

}  // namespace trireme::config
