#include "torch/torch.hpp"

#include "ppo/policy_losses.hpp"

#include <ATen/TensorOperators.h>

#include <array>

namespace trireme::ppo {
namespace {

using at::Tensor;

// Beyond this the exponential would overflow the objective before the clip can act.
constexpr double log_ratio_limit = 20;

struct LossContext {
  const PolicyLossInput& in;
  const Tensor& mask;
  const PolicyLossOptions& options;

  // log pi - log pi_old, 0 outside the mask.
  Tensor log_ratio() const { return in.log_probs - select(in.old_log_probs, mask); }
  // F16
  Tensor token_ratio() const {
    return at::clamp(log_ratio(), -log_ratio_limit, log_ratio_limit).exp();
  }
  // The mean of x within each sequence, [B]; 0 for one without actions.
  Tensor sequence_mean(const Tensor& x) const {
    const Tensor counts = in.segments.sums(mask.to(at::kFloat));
    return in.segments.sums(x) / at::clamp_min(counts, 1.0);
  }
  // F18, F31: the clipped surrogate of any ratio [T].
  TokenLosses surrogate(const Tensor& ratio) const {
    const Tensor bounded = options.delta ? at::clamp(ratio, std::nullopt, *options.delta) : ratio;
    const Tensor unclipped = bounded * in.advantages;
    const Tensor clipped =
        at::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high) * in.advantages;
    Tensor objective = at::minimum(unclipped, clipped);
    if (options.dual_clip) {
      objective = at::where(in.advantages < 0.0,
                            at::maximum(objective, in.advantages * *options.dual_clip), objective);
    }
    return {-objective, clipped < unclipped};
  }
};

TokenLosses ppo(const LossContext& c) { return c.surrogate(c.token_ratio()); }

// F17: with a correction the rollout's log-probs go into the ratio, and nothing else of it counts.
TokenLosses gspo(const LossContext& c) {
  const bool corrected = c.options.correction.enabled;
  const Tensor& behaviour = corrected ? c.in.rollout_log_probs : c.in.old_log_probs;
  const Tensor mean = c.sequence_mean(c.in.log_probs - select(behaviour, c.mask));
  return c.surrogate(c.in.segments.spread(mean.exp()));
}

// F32 (MiniMax-M1, arXiv 2506.13585; ScaleRL, arXiv 2510.13786).
TokenLosses cispo(const LossContext& c) {
  const Tensor ratio = c.token_ratio().detach();
  const Tensor weight = at::clamp(ratio, c.options.ratio_min, c.options.ratio_max);
  return {-(weight * c.in.advantages * c.in.log_probs), weight != ratio};
}

// F33 (arXiv 2511.20347).
TokenLosses sapo(const LossContext& c) {
  const Tensor ratio = c.token_ratio();
  const Tensor tau =
      at::where(c.in.advantages > 0.0, at::full_like(ratio.detach(), c.options.tau_positive),
                at::full_like(ratio.detach(), c.options.tau_negative));
  const Tensor gate = at::sigmoid(tau * (ratio - 1.0)) * (4.0 / tau);
  return {-(gate * c.in.advantages), {}};
}

// F34 (arXiv 2507.20673), one advantage a sequence: the mean of its tokens'.
TokenLosses gmpo(const LossContext& c) {
  const Tensor advantage = c.in.segments.spread(c.sequence_mean(c.in.advantages));
  const Tensor change = c.log_ratio();
  const Tensor clipped = at::clamp(change, -c.options.clip_low, c.options.clip_high);
  const Tensor kept =
      at::where(advantage > 0.0, at::minimum(change, clipped), at::maximum(change, clipped));
  const Tensor ratio = c.in.segments.spread(c.sequence_mean(kept).exp());
  return {select(-(ratio * advantage), c.mask), kept != change};
}

// F35 (arXiv 2507.18071, section 4.3): the value of gspo, and each token's own gradient.
TokenLosses gspo_token(const LossContext& c) {
  const Tensor mean = c.in.segments.spread(c.sequence_mean(c.log_ratio().detach()));
  Tensor log_ratio = mean + (c.in.log_probs - c.in.log_probs.detach());
  if (c.options.log_ratio_max)
    log_ratio = at::clamp(log_ratio, std::nullopt, *c.options.log_ratio_max);
  return c.surrogate(log_ratio.exp());
}

// In the order of config::policy_loss_table.
constexpr std::array<TokenLosses (*)(const LossContext&), config::policy_loss_table.size()> losses{
    ppo, gspo, cispo, sapo, gmpo, gspo_token};
static_assert(losses.back() != nullptr, "a policy loss without a function");

}  // namespace

TokenLosses token_losses(const PolicyLossInput& input, const Tensor& mask,
                         const PolicyLossOptions& options) {
  return losses[static_cast<size_t>(options.type)]({input, mask, options});
}

}  // namespace trireme::ppo
