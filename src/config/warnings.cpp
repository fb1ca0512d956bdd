// Combinations that work and hardly mean what they say.
#include <algorithm>

#include "trireme/base/text.hpp"
#include "trireme/config/deck.hpp"

namespace trireme::config {

namespace {

using Warnings = std::vector<std::string>;

void warn_if(Warnings& out, bool condition, const std::string& text) {
  if (condition) out.push_back(text);
}

void about_estimator(const Options& o, Warnings& out) {
  const auto& advantage = o.algo.advantage;
  const std::string estimator(to_string(advantage.estimator));
  const EstimatorTraits& facts = traits(advantage.estimator);
  warn_if(out, !o.has_critic() && o.critic != CriticOptions{},
          base::text("[critic] has no effect with algo.advantage.estimator = \"", estimator, "\""));
  warn_if(out, !facts.discounts && advantage.gamma != 1,
          base::text("algo.advantage.gamma counts as 1 for ", estimator));
  warn_if(out, !o.has_critic() && advantage.lambd != 1,
          base::text("algo.advantage.lambd has no effect for ", estimator));
  warn_if(out, facts.whitens == Whitening::none && advantage.no_std_norm,
          base::text("algo.advantage.no_std_norm has no effect for ", estimator,
                     ", which does not whiten its advantages"));
  warn_if(out, o.train.async_depth > 0 && !advantage.is_correction_enable,
          base::text("train.async_depth = ", o.train.async_depth,
                     " without algo.advantage.is_correction_enable: samples are up to ",
                     o.train.async_depth, " steps old and nothing corrects for it"));
  warn_if(out, o.train.async_depth > 0 && o.run.threads == "phase",
          base::text("run.threads = \"phase\" with train.async_depth = ", o.train.async_depth,
                     ": generators write while trainers learn, and each takes the threads of all "
                     "its cores; auto divides them"));
  warn_if(out, o.generate.weights == RolloutWeights::int8 && !advantage.is_correction_enable,
          "generate.weights = \"int8\" without algo.advantage.is_correction_enable: answers are "
          "drawn from another policy than "
          "the one that is trained and nothing corrects for it");
  warn_if(out, advantage.is_correction_enable && o.actor.policy_loss_type == PolicyLoss::gspo,
          "algo.advantage.is_correction_enable with actor.policy_loss_type = \"gspo\": the "
          "rollout's log-probs go into its "
          "ratio, and "
          "nothing is clipped or dropped");
}

void about_policy_loss(const Options& o, Warnings& out) {
  const PolicyLossTraits& loss = traits(o.actor.policy_loss_type);
  const LossAggregation mode = o.actor.loss_agg_mode;
  const std::string word(loss.word);
  warn_if(out,
          loss.by_sequence && mode != LossAggregation::token_mean &&
              mode != LossAggregation::seq_mean_token_mean,
          base::text("actor.loss_agg_mode = \"", to_string(mode),
                     "\" has no effect with actor.policy_loss_type = \"", word,
                     "\", which always takes seq-mean-token-mean"));
  warn_if(out,
          o.actor.policy_loss_type == PolicyLoss::gspo_token && mode == LossAggregation::token_mean,
          "actor.policy_loss_type = \"gspo_token\" with actor.loss_agg_mode = \"token-mean\": the "
          "paper and verl take seq-mean-token-mean");
  warn_if(out, mode == LossAggregation::token_sum,
          "actor.loss_agg_mode = \"token-sum\": the size of a step grows with the tokens of its "
          "answers");
  warn_if(out, traits(o.algo.advantage.estimator).by_source && o.reward.source.size() == 1,
          base::text("algo.advantage.estimator = \"", to_string(o.algo.advantage.estimator),
                     "\" with one [[reward.source]]: it compares each source on its own"));
}

void about_kl(const KlOptions& kl, Estimator estimator, Warnings& out) {
  warn_if(out, kl.use_loss && kl.estimator == KlEstimator::k1 && !kl.unbiased_gradient,
          "algo.kl.use_loss with estimator k1: the gradient of its mean is 0 in expectation; k2 or "
          "k3, or "
          "algo.kl.unbiased_gradient, is meant for the loss");
  warn_if(out,
          !kl.use_loss && kl.estimator != KlEstimator::k1 && kl.init_coef > 0 &&
              traits(estimator).kl == KlSpread::accumulated,
          "algo.kl.estimator k2 or k3 in the reward is biased; k1 is meant for the reward");
}

void about_rewards(const RewardOptions& reward, Warnings& out) {
  const auto any = [&](auto condition) {
    return std::any_of(reward.source.begin(), reward.source.end(), condition);
  };
  warn_if(out, reward.normalize_enable && !any([](const auto& s) {
                 return s.kind == RewardKind::model;
               }),
          "reward.normalize_enable has no effect: no [[reward.source]] is a model");
  warn_if(out, any([](const auto& s) { return s.weight == 0; }),
          "a [[reward.source]] has weight 0: it is computed and logged but does not count");
}

}  // namespace

std::vector<std::string> warnings(const Options& options, Command command) {
  Warnings out;
  warn_if(out, options.fault.any(), "faults are injected: [fault] is set");
  warn_if(out, command == Command::rm && options.algo.rm.loss == PreferenceLoss::logexp,
          "algo.rm.loss = \"logexp\" ignores margins");
  warn_if(out, command != Command::dpo && options.algo.dpo != DpoOptions{},
          "algo.dpo has no effect here: it is for `trireme dpo`");
  warn_if(out,
          command == Command::dpo && options.algo.dpo.form() == DpoLoss::cpo &&
              options.algo.dpo.nll_loss_coef == 0,
          "algo.dpo.loss = \"cpo\" with algo.dpo.nll_loss_coef = 0: the paper and TRL add the "
          "language-model loss with weight 1");
  warn_if(out, command != Command::rm && options.algo.rm != RmOptions{},
          "algo.rm has no effect here: it is for `trireme rm`");
  if (command != Command::ppo) {
    warn_if(out, !options.reward.source.empty(),
            "[[reward.source]] has no effect here: it is for `trireme ppo`");
    warn_if(out, options.environment != EnvironmentOptions{},
            "[environment] has no effect here: it is for `trireme ppo`");
    return out;
  }
  about_estimator(options, out);
  about_policy_loss(options, out);
  about_kl(options.algo.kl, options.algo.advantage.estimator, out);
  about_rewards(options.reward, out);
  warn_if(out,
          options.eval.steps > 0 && options.eval.temperature == 0 &&
              options.eval.n_samples_per_prompt > 1,
          "eval.temperature = 0 gives the same answer each time: eval.n_samples_per_prompt = 1 "
          "says as much");
  return out;
}

}  // namespace trireme::config
