// Per-token rewards, advantages and returns, and their whitening: f32 [T] on the host, no
// gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/config/options.hpp"
#include "trireme/ppo/packed.hpp"

namespace trireme::ppo {

// The reward of each sequence [B], and the turns [B] for which the environment gave some of it;
// none: it gave nothing.
struct SequenceRewards {
  std::span<const float> rewards;
  std::span<const std::vector<Turn>> turns = {};
};
// F10, F11: -max(kl_coef, 0) * kl on every column, plus the reward, clipped to `clip_range`, on the
// last column of its sequence whose mask is 1 (the last column when there is none). kl [T], mask u8
// [T]. F52: the part of a reward that the environment gave for a turn goes to the turn's last
// column whose mask is 1, where it has one. (The placement is ours: OpenRLHF and NeMo-RL add the
// turns up.)
at::Tensor token_rewards(const SequenceRewards& given, const at::Tensor& kl, const at::Tensor& mask,
                         const Segments& segments, double kl_coef,
                         const std::optional<config::Range>& clip_range);

struct AdvantagesAndReturns {
  at::Tensor advantages;
  at::Tensor returns;
};
struct GaeOptions {
  double gamma = 1;
  double lambda = 1;
  std::optional<double> lambda_value = {};  // of the returns; none: lambda
  // VAPO: above 0, the advantages of a sequence of n actions take lambda = 1 - 1 / (alpha n), at
  // least 0, instead.
  double length_adaptive_alpha = 0;
  config::AdvantageGaps gaps = config::AdvantageGaps::decay;
};
// The lambda of the advantages of a sequence with so many actions.
double policy_lambda(const GaeOptions& options, int64_t actions);
// F12, F13, F38, F53: generalised advantage estimation; see kernels/scan.hpp. With gaps = skip
// columns whose mask is 0 get 0.
AdvantagesAndReturns generalized_advantages(const at::Tensor& values, const at::Tensor& rewards,
                                            const at::Tensor& mask, const Segments& segments,
                                            const GaeOptions& options);
// F14, F54: discounted sums of the rewards to come; the advantage of every estimator without a
// critic.
at::Tensor cumulative_returns(const at::Tensor& rewards, const at::Tensor& mask,
                              const Segments& segments, double gamma,
                              config::AdvantageGaps gaps = config::AdvantageGaps::decay);

// Whitening with the masked mean and variance of all ranks' columns. standardize (F15): (A - mean)
// rsqrt(max(var, 1e-8)) with the population's variance; center: A - mean; in both, masked columns
// get the same map, not 0. unbiased (F43, F44): (A - mean) rsqrt(var + 1e-8) with n - 1 in the
// variance, and 0 on masked columns. Collective through `sum`.
enum class Whiten : uint8_t { center, standardize, unbiased };
at::Tensor whiten(const at::Tensor& advantages, const at::Tensor& mask, Whiten how, const Sum& sum);

}  // namespace trireme::ppo
