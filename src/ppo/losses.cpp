#include "torch/torch.hpp"

#include "trireme/ppo/losses.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <vector>

#include "ppo/correction.hpp"
#include "trireme/base/error.hpp"
#include "trireme/ppo/kl.hpp"

namespace trireme::ppo {
namespace {

using at::Tensor;

// Beyond this the exponential would overflow the objective before the clip can act.
constexpr double log_ratio_limit = 20;

// The probability ratio per column; for gspo that of the whole sequence, the same on all of its
// columns.
Tensor probability_ratio(const PolicyLossInput& in, const PolicyLossOptions& options,
                         const Tensor& log_probs, const Tensor& mask) {
  if (options.type == config::PolicyLoss::ppo) {
    return at::clamp(log_probs - select(in.old_log_probs, mask), -log_ratio_limit, log_ratio_limit)
        .exp();
  }
  const Tensor& behaviour = options.correction.enabled ? in.rollout_log_probs : in.old_log_probs;
  const Tensor sums = in.segments.sums(log_probs - select(behaviour, mask));
  const Tensor counts = in.segments.sums(mask.to(at::kFloat));
  return in.segments.spread((sums / at::clamp_min(counts, 1.0)).exp());
}

}  // namespace

Tensor aggregate(const Tensor& loss, const Tensor& mask, const Segments& segments,
                 config::LossAggregation aggregation, const Normalizer& normalizer) {
  const Tensor selected = select(loss, mask);
  const Tensor counts = mask.to(at::kBool).to(at::kFloat);
  if (aggregation == config::LossAggregation::token_mean) {
    const double tokens =
        normalizer.action_tokens ? *normalizer.action_tokens : total(counts).item<double>();
    return selected.sum() * (normalizer.scale / std::max(tokens, 1.0));
  }
  const Tensor per_sequence = segments.sums(counts);
  const double sequences =
      normalizer.sequences ? *normalizer.sequences : total(per_sequence > 0).item<double>();
  const Tensor means = segments.sums(selected) / at::clamp_min(per_sequence, 1.0);
  return means.sum() * (normalizer.scale / std::max(sequences, 1.0));
}

PolicyLossOptions policy_loss_options(const config::Options& options) {
  PolicyLossOptions out;
  out.type = options.actor.policy_loss_type;
  out.clip_low = options.actor.clip()[0];
  out.clip_high = options.actor.clip()[1];
  out.dual_clip = options.actor.dual_clip;
  out.aggregation = out.type == config::PolicyLoss::gspo
                        ? config::LossAggregation::seq_mean_token_mean
                        : options.actor.loss_agg_mode;
  out.correction = config::importance_correction(options.algo.advantage);
  check_correction(out.correction);
  return out;
}

PolicyStatistics& PolicyStatistics::operator+=(const PolicyStatistics& other) {
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
  return *this;
}

PolicyLoss policy_loss(const PolicyLossInput& in, const PolicyLossOptions& options,
                       const Normalizer& normalizer) {
  const Tensor mask = in.mask.to(at::kBool);
  const Tensor log_probs = select(in.log_probs, mask);
  const Tensor advantages = select(in.advantages, mask);
  const Tensor ratio = probability_ratio(in, options, log_probs, mask);
  const Tensor unclipped = ratio * advantages;
  const Tensor clipped = at::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high) * advantages;
  Tensor objective = at::minimum(unclipped, clipped);
  if (options.dual_clip) {
    objective = at::where(advantages < 0.0, at::maximum(objective, advantages * *options.dual_clip),
                          objective);
  }
  Tensor loss = -objective;

  PolicyLoss out;
  const Tensor none = at::zeros({}, loss.options().dtype(at::kDouble));
  std::vector<Tensor> sums(PolicyStatistics::count, none);
  if (options.correction.enabled && options.type == config::PolicyLoss::ppo) {
    const Correction correction = importance_correction_weights(in, mask, options.correction);
    loss = loss * correction.weights;
    sums[PolicyStatistics::rollout_tokens] = total(mask);
    sums[PolicyStatistics::rollout_kl_sum] = -correction.log_ratio_sum;
    sums[PolicyStatistics::gate_total] = correction.gate_total;
    sums[PolicyStatistics::gated] = correction.gated;
  }
  sums[PolicyStatistics::tokens] = total(mask);
  sums[PolicyStatistics::clipped] = total(at::logical_and(clipped < unclipped, mask));
  sums[PolicyStatistics::kl] = total(select(in.old_log_probs, mask) - log_probs.detach());
  out.sums = at::stack(sums);
  out.loss = aggregate(loss, mask, in.segments, options.aggregation, normalizer);
  return out;
}

Tensor kl_loss(const Tensor& log_probs, const Tensor& ref_log_probs, const Tensor& old_log_probs,
               const Tensor& mask, const Segments& segments, const config::KlOptions& options,
               const Normalizer& normalizer) {
  const Tensor current = select(log_probs, mask);
  const Tensor reference = select(ref_log_probs, mask);
  const Tensor old = old_log_probs.defined() ? select(old_log_probs, mask) : Tensor{};
  const Tensor kl = options.unbiased_gradient
                        ? approximate_kl_unbiased(current, reference, old, options.estimator)
                        : approximate_kl(current, reference, options.estimator);
  return aggregate(kl, mask, segments, config::LossAggregation::token_mean, normalizer);
}

Tensor entropy_term(const Tensor& entropy, const Tensor& mask, const Segments& segments,
                    const Normalizer& normalizer) {
  return aggregate(entropy, mask, segments, config::LossAggregation::token_mean, normalizer);
}

Tensor value_loss(const Tensor& values, const Tensor& old_values, const Tensor& returns,
                  const Tensor& mask, const Segments& segments, const std::optional<double>& clip,
                  config::LossAggregation aggregation, const Normalizer& normalizer) {
  const Tensor current = select(values, mask);
  const Tensor target = select(returns, mask);
  Tensor error = (current - target).square();
  if (clip) {
    const Tensor old = select(old_values, mask);
    const Tensor clipped = old + at::clamp(current - old, -*clip, *clip);
    error = at::maximum((clipped - target).square(), error);
  }
  return 0.5 * aggregate(error, mask, segments, aggregation, normalizer);
}

Tensor sft_loss(const Tensor& log_probs, const Tensor& mask, const Segments& segments,
                config::LossAggregation aggregation, const Normalizer& normalizer) {
  return aggregate(-select(log_probs, mask), mask, segments, aggregation, normalizer);
}

Normalizer step_normalizer(std::span<const int64_t> action_counts, const Sum& sum) {
  std::array<double, 2> totals{};  // action tokens, sequences with any
  for (const int64_t count : action_counts) {
    totals[0] += static_cast<double>(count);
    totals[1] += count > 0;
  }
  sum(totals);
  return {totals[0], totals[1], 1.0};
}

}  // namespace trireme::ppo
