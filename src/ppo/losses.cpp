#include "torch/torch.hpp"

#include "trireme/ppo/losses.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <vector>

#include "ppo/correction.hpp"
#include "ppo/policy_losses.hpp"
#include "trireme/base/error.hpp"
#include "trireme/ppo/kl.hpp"

namespace trireme::ppo {

using at::Tensor;

Tensor aggregate(const Tensor& loss, config::LossAggregation aggregation,
                 const LossColumns& columns) {
  using enum config::LossAggregation;
  const Segments& segments = columns.segments;
  const Normalizer& normalizer = columns.normalizer;
  const Tensor selected = select(loss, columns.mask);
  const Tensor counts = columns.mask.to(at::kBool).to(at::kFloat);
  if (aggregation == token_sum) return selected.sum() * normalizer.scale;
  if (aggregation == token_mean) {
    const double tokens =
        normalizer.action_tokens ? *normalizer.action_tokens : total(counts).item<double>();
    return selected.sum() * (normalizer.scale / std::max(tokens, 1.0));
  }
  const Tensor per_sequence = segments.sums(counts);
  const double sequences = std::max(
      normalizer.sequences ? *normalizer.sequences : total(per_sequence > 0).item<double>(), 1.0);
  if (aggregation == seq_mean_token_mean) {
    const Tensor means = segments.sums(selected) / at::clamp_min(per_sequence, 1.0);
    return means.sum() * (normalizer.scale / sequences);
  }
  const double tokens = aggregation == seq_mean_token_sum_norm ? normalizer.sequence_tokens : 1;
  return selected.sum() * (normalizer.scale / (sequences * tokens));
}

PolicyLossOptions policy_loss_options(const config::Options& options) {
  const config::ActorOptions& actor = options.actor;
  PolicyLossOptions out;
  out.type = actor.policy_loss_type;
  out.clip_low = actor.clip()[0];
  out.clip_high = actor.clip()[1];
  out.dual_clip = actor.dual_clip;
  out.delta = actor.delta;
  out.ratio_min = actor.cispo_ratio_min;
  out.ratio_max = actor.cispo_ratio_max;
  out.tau_positive = actor.sapo_tau_pos;
  out.tau_negative = actor.sapo_tau_neg;
  out.log_ratio_max = actor.gspo_log_ratio_max;
  out.off_policy_threshold = actor.off_policy_threshold;
  out.aggregation = config::traits(out.type).by_sequence
                        ? config::LossAggregation::seq_mean_token_mean
                        : actor.loss_agg_mode;
  out.correction = config::importance_correction(options.algo.advantage);
  check_correction(out.correction);
  return out;
}

PolicyStatistics& PolicyStatistics::operator+=(const PolicyStatistics& other) {
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
  return *this;
}

Tensor on_policy(const PolicyLossInput& in, double threshold) {
  const Tensor mask = in.mask.to(at::kBool);
  const Tensor distance = select(in.rollout_log_probs - in.log_probs.detach(), mask);
  const Tensor counts = in.segments.sums(mask.to(at::kFloat));
  const Tensor mean = in.segments.sums(distance) / at::clamp_min(counts, 1.0);
  return at::logical_not(
      at::logical_and(select(in.advantages, mask) < 0.0, in.segments.spread(mean > threshold)));
}

PolicyLoss policy_loss(const PolicyLossInput& input, const PolicyLossOptions& options,
                       const Normalizer& normalizer) {
  const Tensor mask = input.mask.to(at::kBool);
  PolicyLossInput in = input;
  in.log_probs = select(input.log_probs, mask);
  in.advantages = select(input.advantages, mask);
  const TokenLosses losses = token_losses(in, mask, options);

  PolicyLoss out;
  out.tokens = losses.loss;
  const Tensor none = at::zeros({}, losses.loss.options().dtype(at::kDouble));
  std::vector<Tensor> sums(PolicyStatistics::count, none);
  if (options.correction.enabled && config::traits(options.type).corrects) {
    const Correction correction = importance_correction_weights(in, mask, options.correction);
    out.tokens = out.tokens * correction.weights;
    sums[PolicyStatistics::rollout_tokens] = total(mask);
    sums[PolicyStatistics::rollout_kl_sum] = -correction.log_ratio_sum;
    sums[PolicyStatistics::gate_total] = correction.gate_total;
    sums[PolicyStatistics::gated] = correction.gated;
  }
  Tensor keep = in.keep;
  if (options.off_policy_threshold) {
    const Tensor near = on_policy(in, *options.off_policy_threshold);
    keep = keep.defined() ? at::logical_and(keep, near) : near;
  }
  if (keep.defined()) {
    out.tokens = select(out.tokens, keep);
    sums[PolicyStatistics::loss_masked] = total(at::logical_and(mask, at::logical_not(keep)));
  }
  sums[PolicyStatistics::tokens] = total(mask);
  if (losses.clipped.defined())
    sums[PolicyStatistics::clipped] = total(at::logical_and(losses.clipped, mask));
  sums[PolicyStatistics::kl] = total(select(in.old_log_probs, mask) - in.log_probs.detach());
  out.sums = at::stack(sums);
  out.loss = aggregate(out.tokens, options.aggregation, {mask, in.segments, normalizer});
  return out;
}

Tensor positive_nll(const Tensor& log_probs, const Tensor& positive, const LossColumns& columns) {
  const Normalizer& normalizer = columns.normalizer;
  const Tensor counted =
      at::logical_and(columns.mask.to(at::kBool), columns.segments.spread(positive));
  const double tokens =
      normalizer.positive_tokens ? *normalizer.positive_tokens : total(counted).item<double>();
  return select(log_probs, counted).sum() * (-normalizer.scale / std::max(tokens, 1.0));
}

Tensor kl_loss(const Tensor& log_probs, const Tensor& ref_log_probs, const Tensor& old_log_probs,
               const config::KlOptions& options, const LossColumns& columns) {
  const Tensor& mask = columns.mask;
  const Tensor current = select(log_probs, mask);
  const Tensor reference = select(ref_log_probs, mask);
  const Tensor old = old_log_probs.defined() ? select(old_log_probs, mask) : Tensor{};
  const Tensor kl = options.unbiased_gradient
                        ? approximate_kl_unbiased(current, reference, old, options.estimator)
                        : approximate_kl(current, reference, options.estimator);
  return aggregate(kl, config::LossAggregation::token_mean, columns);
}

Tensor entropy_term(const Tensor& entropy, const LossColumns& columns) {
  return aggregate(entropy, config::LossAggregation::token_mean, columns);
}

Tensor value_loss(const Tensor& values, const Tensor& old_values, const Tensor& returns,
                  const std::optional<double>& clip, config::LossAggregation aggregation,
                  const LossColumns& columns) {
  const Tensor& mask = columns.mask;
  const Tensor current = select(values, mask);
  const Tensor target = select(returns, mask);
  Tensor error = (current - target).square();
  if (clip) {
    const Tensor old = select(old_values, mask);
    const Tensor clipped = old + at::clamp(current - old, -*clip, *clip);
    error = at::maximum((clipped - target).square(), error);
  }
  return 0.5 * aggregate(error, aggregation, columns);
}

Tensor sft_loss(const Tensor& log_probs, config::LossAggregation aggregation,
                const LossColumns& columns) {
  return aggregate(-select(log_probs, columns.mask), aggregation, columns);
}

Normalizer step_normalizer(std::span<const CountedSequence> sequences,
                           const config::Options& options, const Sum& sum) {
  std::array<double, 3> totals{};  // action tokens, sequences that count, tokens with a reward > 0
  for (const CountedSequence& sequence : sequences) {
    totals[0] += static_cast<double>(sequence.actions);
    totals[1] += sequence.actions > 0 || options.actor.loss_count_empty;
    totals[2] += sequence.positive ? static_cast<double>(sequence.actions) : 0;
  }
  sum(totals);
  Normalizer out;
  out.action_tokens = totals[0];
  out.sequences = totals[1];
  out.positive_tokens = totals[2];
  out.sequence_tokens = options.loss_scale_factor();
  return out;
}

}  // namespace trireme::ppo
