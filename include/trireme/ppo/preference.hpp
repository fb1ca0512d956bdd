// Losses on pairs (F28): direct preference optimisation and reward models. P pairs, f32 [P],
// differentiable in the policy's log-probs and the rewards. Means over the pairs of the optimizer
// step: `total_pairs` over all micro-batches and ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/config/options.hpp"
#include "trireme/ppo/packed.hpp"

namespace trireme::ppo {

// Sum and mean of the response tokens' log-probs of each sequence, [B] (OpenRLHF:
// _get_batch_logps). The mean of a sequence without response tokens is 0.
struct SequenceLogProbs {
  at::Tensor sums;
  at::Tensor means;
};
SequenceLogProbs sequence_log_probs(const at::Tensor& log_probs, const at::Tensor& mask,
                                    const Segments& segments);

struct DpoInput {
  at::Tensor policy_chosen, policy_rejected;  // [P], sums of log-probs
  at::Tensor ref_chosen, ref_rejected;        // [P]
};
struct DpoLoss {
  at::Tensor loss;              // scalar
  at::Tensor chosen_rewards;    // [P], beta (policy - reference), no gradient
  at::Tensor rejected_rewards;  // [P]
};
// x = (policy_chosen - policy_rejected) - (ref_chosen - ref_rejected). DPO and cDPO (Rafailov et
// al. 2023; Mitchell 2023):
// -(1 - e) logsigmoid(beta x) - e logsigmoid(-beta x), e = label_smoothing; IPO (Azar et al. 2023,
// eq. 17): (x - 1 / (2 beta))^2.
DpoLoss dpo_loss(const DpoInput& input, const config::DpoOptions& options, double total_pairs);

// sigmoid: -logsigmoid(chosen - rejected - margin); logexp: log(1 + exp(rejected - chosen)), which
// has no margin. margin [P] or undefined.
at::Tensor reward_model_loss(const at::Tensor& chosen, const at::Tensor& rejected,
                             const at::Tensor& margin, config::PreferenceLoss loss,
                             double total_pairs);

}  // namespace trireme::ppo
