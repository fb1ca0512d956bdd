#include "torch/torch.hpp"

#include "trireme/ppo/preference.hpp"

#include <ATen/TensorOperators.h>

namespace trireme::ppo {

using at::Tensor;

SequenceLogProbs sequence_log_probs(const Tensor& log_probs, const Tensor& mask,
                                    const Segments& segments) {
  const Tensor sums = segments.sums(select(log_probs, mask));
  const Tensor counts = segments.sums(mask.to(at::kBool).to(at::kFloat));
  return {sums, sums / at::clamp_min(counts, 1.0)};
}

DpoLoss dpo_loss(const DpoInput& in, const config::DpoOptions& options, double total_pairs) {
  const Tensor x = (in.policy_chosen - in.policy_rejected) - (in.ref_chosen - in.ref_rejected);
  Tensor loss;
  if (options.ipo) {
    loss = (x - 1 / (2 * options.beta)).square();
  } else {
    const double smoothing = options.label_smoothing;
    loss = at::log_sigmoid(x * options.beta) * (smoothing - 1) -
           at::log_sigmoid(x * -options.beta) * smoothing;
  }
  return {loss.sum() * (1 / total_pairs),
          (in.policy_chosen - in.ref_chosen).detach() * options.beta,
          (in.policy_rejected - in.ref_rejected).detach() * options.beta};
}

Tensor reward_model_loss(const Tensor& chosen, const Tensor& rejected, const Tensor& margin,
                         config::PreferenceLoss loss, double total_pairs) {
  // log(1 + exp(r - c)) is -logsigmoid(c - r), which does not overflow.
  Tensor distance = chosen - rejected;
  if (loss == config::PreferenceLoss::sigmoid && margin.defined()) distance = distance - margin;
  return at::log_sigmoid(distance).sum() * (-1 / total_pairs);
}

}  // namespace trireme::ppo
