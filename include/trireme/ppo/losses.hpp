// Losses of one micro-batch, already normalised by the totals of its optimizer step, so that the
// sum over micro-batches and ranks is the loss of the step and gradients are simply added up.
// Formulas: OpenRLHF, models/loss.py (F16-F25, F29), verl and TRL (F30-F38); which of them where
// they differ, docs/user/algorithms.md. Legend: T packed columns, B sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "trireme/config/importance_correction.hpp"
#include "trireme/config/options.hpp"
#include "trireme/ppo/packed.hpp"

namespace trireme::ppo {

// Divisors of a loss: totals of the optimizer step over all micro-batches and ranks. Without
// a total, the micro-batch's own. `scale` multiplies the result (the number of ranks, where
// gradients are averaged instead of added).
struct Normalizer {
  std::optional<double> action_tokens;
  std::optional<double> sequences;  // N: those with actions, or all (actor.loss_count_empty)
  double scale = 1;
  double sequence_tokens = 1;                  // of seq-mean-token-sum-norm: tokens of a sequence
  std::optional<double> positive_tokens = {};  // action tokens of sequences with a reward above 0
};

// The columns of a micro-batch that a loss counts, and its divisors.
struct LossColumns {
  at::Tensor mask;  // bool or integer [T]
  Segments segments;
  Normalizer normalizer = {};
};

// F22, F30, with N sequences: token-mean = scale * sum(mask L) / action_tokens; token-sum = scale *
// sum(mask L); seq-mean-token-mean = scale * sum over sequences with actions of their token mean /
// N; seq-mean-token-sum = scale * sum(mask L) / N, and seq-mean-token-sum-norm that divided by
// sequence_tokens. loss [T] -> scalar, differentiable; 0 without actions.
at::Tensor aggregate(const at::Tensor& loss, config::LossAggregation aggregation,
                     const LossColumns& columns);

struct PolicyLossOptions {
  config::PolicyLoss type = config::PolicyLoss::ppo;
  double clip_low = 0.2;
  double clip_high = 0.2;
  std::optional<double> dual_clip;
  std::optional<double> delta;
  std::optional<double> ratio_min;             // cispo; none: no lower bound
  double ratio_max = 5;                        // cispo
  double tau_positive = 1;                     // sapo
  double tau_negative = 1.05;                  // sapo
  std::optional<double> log_ratio_max = 10;    // gspo_token
  std::optional<double> off_policy_threshold;  // none: no sequence is left out
  config::LossAggregation aggregation = config::LossAggregation::token_mean;
  config::ImportanceCorrection correction;
};
// With the aggregation of losses that have one of their own (config::policy_loss_table).
PolicyLossOptions policy_loss_options(const config::Options& options);

struct PolicyLossInput {
  at::Tensor log_probs;          // f32 [T], current policy, differentiable
  at::Tensor old_log_probs;      // f32 [T], policy that the experience was evaluated with
  at::Tensor rollout_log_probs;  // f32 [T], policy as the generator computed it; may be undefined
                                 // without a correction
  at::Tensor advantages;         // f32 [T]
  at::Tensor mask;               // bool or integer [T]
  Segments segments;
  at::Tensor sample_log_probs = {};  // f32 [T], of the distribution that the token was drawn from;
                                     // undefined: that of rollout_log_probs
  Segments written = {};  // columns of one sequence that one version of the weights wrote; for a
                          // correction by segment
  at::Tensor keep = {};   // bool [T], columns whose loss counts (F37); undefined: all
};

// F29 as sums, so that micro-batches and ranks add up; the accessors give the means that are
// logged. With a correction but gspo, rollout_kl and filter_ratio are 0 over 0 = 0.
struct PolicyStatistics {
  enum Index : size_t {
    tokens,
    clipped,
    kl,
    rollout_tokens,
    rollout_kl_sum,
    gate_total,
    gated,
    loss_masked,
    count
  };
  std::array<double, count> sums{};

  double clip_ratio() const { return ratio(clipped, tokens); }
  double ppo_kl() const { return ratio(kl, tokens); }
  double rollout_kl() const {
    return ratio(rollout_kl_sum, rollout_tokens);
  }  // vllm_kl in OpenRLHF's logs
  double filter_ratio() const { return ratio(gated, gate_total); }
  // Share of action tokens whose loss the off-policy mask (F36) or the entropy filter (F37) drops.
  double loss_mask_ratio() const { return ratio(loss_masked, tokens); }
  PolicyStatistics& operator+=(const PolicyStatistics& other);

 private:
  double ratio(Index part, Index total) const {
    return sums[total] > 0 ? sums[part] / sums[total] : 0;
  }
};

struct PolicyLoss {
  at::Tensor loss;    // scalar, differentiable
  at::Tensor sums;    // f64 [PolicyStatistics::count], where the loss lies
  at::Tensor tokens;  // f32 [T], what is aggregated; differentiable
};
// F16-F21, F31-F37: the loss that options.type names, with importance correction, off-policy mask
// and entropy filter. Denominators count the tokens that these drop.
PolicyLoss policy_loss(const PolicyLossInput& input, const PolicyLossOptions& options,
                       const Normalizer& normalizer);

// F36: bool [T], false where the advantage is negative and the sequence's mean of
// rollout log-prob minus current log-prob exceeds the threshold (DeepSeek-V3.2, eq. 9). No
// gradient.
at::Tensor on_policy(const PolicyLossInput& input, double threshold);

// F38: the mean of -log_probs over the action tokens of sequences whose `positive` [B] is true,
// divided by the step's positive_tokens; 0 where there are none (VAPO). Differentiable.
at::Tensor positive_nll(const at::Tensor& log_probs, const at::Tensor& positive,
                        const LossColumns& columns);

// F23: token-mean of F7 on the current policy; with unbiased_gradient old_log_probs gives the
// weight. The caller multiplies by the KL coefficient.
at::Tensor kl_loss(const at::Tensor& log_probs, const at::Tensor& ref_log_probs,
                   const at::Tensor& old_log_probs, const config::KlOptions& options,
                   const LossColumns& columns);

// F24: token-mean of the entropy [T]; the caller subtracts coefficient times it.
at::Tensor entropy_term(const at::Tensor& entropy, const LossColumns& columns);

// F25: half the aggregate of max((Vc - G)^2, (V - G)^2), Vc = Vold + clamp(V - Vold, +-clip);
// without a clip (V - G)^2.
at::Tensor value_loss(const at::Tensor& values, const at::Tensor& old_values,
                      const at::Tensor& returns, const std::optional<double>& clip,
                      config::LossAggregation aggregation, const LossColumns& columns);

// Supervised fine-tuning: aggregate of -log_probs.
at::Tensor sft_loss(const at::Tensor& log_probs, config::LossAggregation aggregation,
                    const LossColumns& columns);

// A sequence of an optimizer step, as its totals count it.
struct CountedSequence {
  int64_t actions = 0;
  bool positive = false;  // its reward is above 0
};
// Totals of an optimizer step, from its sequences on this rank: action tokens, sequences that have
// any, and what `options` says of N and of the length of a sequence. Collective through `sum`.
Normalizer step_normalizer(std::span<const CountedSequence> sequences,
                           const config::Options& options, const Sum& sum);

}  // namespace trireme::ppo
