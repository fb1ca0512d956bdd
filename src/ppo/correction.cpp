#include "torch/torch.hpp"

#include "ppo/correction.hpp"

#include <ATen/TensorOperators.h>

#include "trireme/base/error.hpp"

namespace trireme::ppo {
namespace {

using at::Tensor;

constexpr double probability_floor = 1e-6;

// Divergence of two coins that show the sampled token with probability p (rollout) and q (trainer).
Tensor divergence(const Tensor& rollout_log_probs, const Tensor& old_log_probs,
                  config::CorrectionGate gate) {
  const auto probability = [](const Tensor& log_probs) {
    return at::clamp(log_probs.exp(), probability_floor, 1 - probability_floor);
  };
  const Tensor p = probability(rollout_log_probs);
  const Tensor q = probability(old_log_probs);
  if (gate == config::CorrectionGate::tv) return (p - q).abs();
  return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log();
}

Tensor inside(const Tensor& x, const config::ImportanceCorrection& options) {
  return at::logical_and(x >= options.low, x <= options.high);
}

}  // namespace

Tensor total(const Tensor& x) { return x.sum(at::kDouble); }

void check_correction(const config::ImportanceCorrection& options) {
  if (!options.enabled || options.mode == config::CorrectionMode::mask) return;
  VALIDATE(options.level == config::CorrectionLevel::token, ExitCode::configuration,
           "algo.advantage.is_correction_mode = clip with is_correction_level = ",
           config::to_string(options.level),
           " (what is judged as a whole is kept or dropped, its weight is not clipped): use mode "
           "mask, or level token");
  VALIDATE(options.gate == config::CorrectionGate::ratio, ExitCode::configuration,
           "algo.advantage.is_correction_mode = clip with is_correction_gating = ",
           config::to_string(options.gate),
           " (a divergence can only drop tokens): use mode mask, or gating ratio");
}

Correction importance_correction_weights(const PolicyLossInput& in, const Tensor& mask,
                                         const config::ImportanceCorrection& options) {
  check_correction(options);
  VALIDATE(in.rollout_log_probs.defined(), ExitCode::internal,
           "importance correction without rollout log-probs");
  const Tensor rollout = select(in.rollout_log_probs, mask).detach();
  const Tensor drawn =
      in.sample_log_probs.defined() ? select(in.sample_log_probs, mask).detach() : rollout;
  const Tensor old = select(in.old_log_probs, mask).detach();
  const Tensor log_ratio = old - drawn;
  const Tensor weights = log_ratio.exp();
  const bool by_ratio = options.gate == config::CorrectionGate::ratio;
  Correction out;
  out.log_ratio_sum = total(old - rollout);
  if (options.level == config::CorrectionLevel::token) {
    const Tensor keep =
        inside(by_ratio ? weights : divergence(rollout, old, options.gate), options);
    out.weights = options.mode == config::CorrectionMode::clip
                      ? at::clamp(weights, options.low, options.high)
                      : select(weights, keep);
    out.gate_total = total(mask);
    out.gated = total(at::logical_and(mask, at::logical_not(keep)));
    return out;
  }
  const Segments& judged =
      options.level == config::CorrectionLevel::segment ? in.written : in.segments;
  VALIDATE(judged.columns() == mask.size(0), ExitCode::internal,
           "importance correction by segment: ", judged.columns(), " of ", mask.size(0),
           " columns belong to one");
  const Tensor counts = judged.sums(mask.to(at::kFloat));
  const Tensor per_token =
      by_ratio ? log_ratio : select(divergence(rollout, old, options.gate), mask);
  const Tensor mean = judged.sums(per_token) / at::clamp_min(counts, 1.0);
  const Tensor keep = at::logical_and(inside(by_ratio ? mean.exp() : mean, options), counts > 0);
  out.weights = select(weights, judged.spread(keep));
  out.gate_total =
      at::full({}, static_cast<double>(judged.sequences()), mask.options().dtype(at::kDouble));
  out.gated = total(at::logical_not(keep));
  return out;
}

}  // namespace trireme::ppo
