#include "torch/torch.hpp"

#include "trireme/ppo/kl.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

namespace trireme::ppo {
namespace {

using at::Tensor;

constexpr double kl_limit = 10;
// exp(20) is far above the limit, so the bound changes no value; it keeps infinity out of the
// gradient.
constexpr double exponent_limit = 20;

Tensor estimate(const Tensor& rho, config::KlEstimator estimator) {
  switch (estimator) {
    case config::KlEstimator::k1: return rho;
    case config::KlEstimator::k2: return rho.square() / 2.0;
    case config::KlEstimator::k3:
      return at::clamp(-rho, std::nullopt, exponent_limit).exp() - 1.0 + rho;
  }
  return rho;
}

}  // namespace

Tensor approximate_kl(const Tensor& log_probs, const Tensor& ref_log_probs,
                      config::KlEstimator estimator) {
  return at::clamp(estimate(log_probs - ref_log_probs, estimator), -kl_limit, kl_limit);
}

Tensor approximate_kl_unbiased(const Tensor& log_probs, const Tensor& ref_log_probs,
                               const Tensor& old_log_probs, config::KlEstimator estimator) {
  const Tensor value = approximate_kl(log_probs.detach(), ref_log_probs, estimator);
  Tensor slope = log_probs.detach() - ref_log_probs;
  if (old_log_probs.defined())
    slope = slope * at::clamp((log_probs.detach() - old_log_probs).exp(), std::nullopt, kl_limit);
  const Tensor carrier = slope * log_probs;
  return value + (carrier - carrier.detach());
}

double adapt_kl_coefficient(double coefficient, double kl, double target, double samples,
                            double horizon) {
  if (std::isnan(kl))
    return coefficient;  // of a batch whose numbers went wrong: it would be no number from then on
  const double error = std::clamp(kl / target - 1, -0.2, 0.2);
  return coefficient * (1 + error * samples / horizon);
}

}  // namespace trireme::ppo
