// Importance correction for the difference between the rollout policy mu and the policy that the
// experience was evaluated with (F19-F21; OpenRLHF: models/loss.py). A weight is pi_old over the
// probability that the token was drawn with: of the version that wrote it, and under top-p or top-k
// of what they left. How far the two policies are apart - log_ratio_sum and divergence gates - is a
// question about full distributions.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/ppo/losses.hpp"

namespace trireme::ppo {

struct Correction {
  at::Tensor weights;        // f32 [T], no gradient
  at::Tensor log_ratio_sum;  // of log pi_old - log mu over actions; f64 [], as the next two
  at::Tensor gate_total;     // tokens, sequences or segments, by level
  at::Tensor gated;          // of these outside the threshold; a sequence without actions counts
};
Correction importance_correction_weights(const PolicyLossInput& input, const at::Tensor& mask,
                                         const config::ImportanceCorrection& options);

// Sum in fp64, [] where x lies.
at::Tensor total(const at::Tensor& x);

// Throws UserError(configuration) for combinations without a meaning.
void check_correction(const config::ImportanceCorrection& options);

}  // namespace trireme::ppo
