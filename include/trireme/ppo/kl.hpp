// Estimates of KL(policy || reference) from log-probs of sampled tokens (Schulman, "Approximating
// KL divergence", 2020; OpenRLHF: models/utils.py, compute_approx_kl), and the controller of its
// coefficient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/config/choices.hpp"

namespace trireme::ppo {

// F7 per token: rho = log_probs - ref; k1 = rho, k2 = rho^2 / 2, k3 = exp(-rho) - 1 + rho; clamped
// to [-10, 10]. f32 [T], differentiable in log_probs, with zero gradient where clamped.
at::Tensor approximate_kl(const at::Tensor& log_probs, const at::Tensor& ref_log_probs,
                          config::KlEstimator estimator);

// The same value with the gradient of the true KL: w rho d(log_probs), w = min(exp(log_probs -
// old_log_probs), 10) held constant; w = 1 when old_log_probs is undefined.
at::Tensor approximate_kl_unbiased(const at::Tensor& log_probs, const at::Tensor& ref_log_probs,
                                   const at::Tensor& old_log_probs, config::KlEstimator estimator);

// F26: beta *= 1 + clip(kl / target - 1, -0.2, 0.2) * samples / horizon (Ziegler et al. 2019, 2.2).
double adapt_kl_coefficient(double coefficient, double kl, double target, double samples,
                            double horizon);

}  // namespace trireme::ppo
