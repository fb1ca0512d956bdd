// Importance correction for the difference between the rollout policy mu and the policy that the experience was evaluated with
// (F19-F21; OpenRLHF: models/loss.py). A weight is pi_old over the probability that the token was drawn with: of the version that wrote it, and
// under top-p or top-k of what they left. How far the two policies are apart - log_ratio_sum and divergence gates - is a question about full
// distributions.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/ppo/losses.hpp"

namespace trireme::ppo {

struct Correction {
  at::Tensor weights;        // f32 [T], no gradient
  double log_ratio_sum = 0;  // of log pi_old - log mu over actions
  double gate_total = 0;     // tokens, sequences or segments, by level
  double gated = 0;          // of these outside the threshold; a sequence without actions counts
};
Correction importance_correction_weights(const PolicyLossInput& input, const at::Tensor& mask,
                                         const config::ImportanceCorrection& options);

// Sum in fp64.
double total(const at::Tensor& x);

// Throws UserError(configuration) for combinations without a meaning.
void check_correction(const config::ImportanceCorrection& options);

}  // namespace trireme::ppo
