// Per-token rewards, advantages and returns, and their whitening: f32 [T] on the host, no
// gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/ppo/packed.hpp"

namespace trireme::ppo {

// F10, F11: -max(kl_coef, 0) * kl on every column, plus the reward, clipped to `clip_range`, on the
// last column of its sequence whose mask is 1 (the last column when there is none). rewards [B], kl
// [T], mask u8 [T].
at::Tensor token_rewards(const std::vector<float>& rewards, const at::Tensor& kl,
                         const at::Tensor& mask, const Segments& segments, double kl_coef,
                         const std::optional<config::Range>& clip_range);

struct AdvantagesAndReturns {
  at::Tensor advantages;
  at::Tensor returns;
};
// F12, F13: generalised advantage estimation; see kernels/scan.hpp.
AdvantagesAndReturns generalized_advantages(const at::Tensor& values, const at::Tensor& rewards,
                                            const at::Tensor& mask, const Segments& segments,
                                            double gamma, double lambda);
// F14: discounted sums of the rewards to come; the advantage of every estimator without a critic.
at::Tensor cumulative_returns(const at::Tensor& rewards, const at::Tensor& mask,
                              const Segments& segments, double gamma);

// F15: whitening with the masked mean and population variance of all ranks' columns: (A - mean)
// rsqrt(max(var, 1e-8)), or A - mean. Masked columns get the same map, not 0. Collective through
// `sum`.
enum class Whiten : uint8_t { center, standardize };
at::Tensor whiten(const at::Tensor& advantages, const at::Tensor& mask, Whiten how, const Sum& sum);

}  // namespace trireme::ppo
