// Losses on pairs and on labelled answers (F28, F39-F42): what `dpo` and `rm` minimise. P pairs, B
// answers; f32, differentiable in the policy's log-probs and the rewards. Means over the pairs or
// answers of the optimizer step are sums divided by their number over all micro-batches and ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

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

// Two sides of [P].
struct Pairs {
  at::Tensor chosen, rejected;
};
struct PairInput {
  Pairs policy;          // sums of log-probs; means for losses without a reference but cpo
  Pairs reference = {};  // sums; undefined for losses without one
  Pairs lengths = {};    // f32, response tokens; for losses with `_norm`
  Pairs matched = {};    // for losses that sort: see matched(). aot: `chosen` only
};
// Loss and statistics of each pair.
struct PairLosses {
  at::Tensor losses;  // [P]
  Pairs rewards;      // beta times policy minus reference, or times the policy's; no gradient
};
// The loss that options.form() names, on pairs. x = policy chosen - rejected minus the same of the
// reference, u = beta x, q = policy - reference, e = label_smoothing. sigmoid: DPO and cDPO
// (Rafailov et al. 2023; Mitchell 2023): -(1 - e) logsigmoid(u) - e logsigmoid(-u). ipo (Azar et
// al. 2023, eq. 17): (x - 1 / (2 beta))^2. The others: F40-F42, as TRL has them.
PairLosses pair_losses(const PairInput& input, const config::DpoOptions& options);

// For each of `values` the element of sorted `others` that is as many places from the lowest: the
// optimal transport in one dimension (AOT, arXiv 2406.05882). Of all pairs of the step.
std::vector<float> matched(std::span<const float> values, std::span<const float> others);

struct LabelledInput {
  at::Tensor policy, reference;  // [B], sums of log-probs
  at::Tensor wanted;             // bool [B]
};
struct LabelledLosses {
  at::Tensor losses;   // [B]
  at::Tensor rewards;  // [B], beta times policy minus reference, no gradient
};
// F39: kto (Ethayarajh et al. 2024, arXiv 2402.01306) with `kl`, which is at least 0, and
// apo_zero_unpaired (arXiv 2408.06266), for which it is 0.
LabelledLosses labelled_losses(const LabelledInput& input, double kl,
                               const config::DpoOptions& options);

// sigmoid: -logsigmoid(chosen - rejected - margin); logexp: log(1 + exp(rejected - chosen)), which
// has no margin. margin [P] or undefined.
at::Tensor reward_model_loss(const at::Tensor& chosen, const at::Tensor& rejected,
                             const at::Tensor& margin, config::PreferenceLoss loss,
                             double total_pairs);

}  // namespace trireme::ppo
