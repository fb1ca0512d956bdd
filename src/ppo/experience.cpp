#include "torch/torch.hpp"

#include "trireme/ppo/experience.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/ppo/advantages.hpp"
#include "trireme/ppo/distillation.hpp"
#include "trireme/ppo/kl.hpp"

namespace trireme::ppo {
namespace {

using at::Tensor;

template <class T>
Tensor column(const std::vector<T>& values, at::ScalarType type) {
  Tensor out = at::empty({static_cast<int64_t>(values.size())}, type);
  std::copy(values.begin(), values.end(), static_cast<T*>(out.mutable_data_ptr()));
  return out;
}

std::vector<float> to_vector(const Tensor& x) {
  const Tensor dense = x.to(at::kFloat).contiguous();
  const float* data = dense.const_data_ptr<float>();
  return {data, data + dense.numel()};
}

// Columns that may be there or not, as tensors and as samples carry them.
struct LaterColumn {
  Tensor Experience::*tensor;
  std::vector<float> Samples::*stored;
  bool kept;  // in the samples beside the tensor
};
constexpr LaterColumn later_columns[] = {
    {&Experience::sample_log_probs, &Samples::sample_log_probs, true},
    {&Experience::ref_log_probs, &Samples::ref_log_probs, true},
    {&Experience::old_log_probs, &Samples::old_log_probs, false},
    {&Experience::values, &Samples::values, false},
    {&Experience::advantages, &Samples::advantages, false},
    {&Experience::returns, &Samples::returns, false}};

Tensor pick(const Tensor& x, const Tensor& columns) {
  return x.defined() ? at::index_select(x, 0, columns) : Tensor{};
}

// KL of the sampled tokens to the reference, 0 on masked columns and without a reference.
Tensor reference_kl(const Experience& experience, const PipelineOptions& options) {
  if (!experience.ref_log_probs.defined() || options.kl_in_loss)
    return at::zeros({experience.tokens()}, at::kFloat);
  const Tensor old = select(experience.old_log_probs, experience.mask);
  const Tensor reference = select(experience.ref_log_probs, experience.mask);
  return select(approximate_kl(old, reference, options.kl_estimator), experience.mask);
}

void check(const Experience& experience, std::span<const int64_t> rows,
           const PipelineOptions& options) {
  VALIDATE(static_cast<int64_t>(rows.size()) == experience.sequences(), ExitCode::internal,
           "advantages: one row of the reward table per local sequence");
  if (experience.sequences() == 0) return;  // a rank without samples takes part with empty columns
  VALIDATE(experience.old_log_probs.defined() || options.kl_in_loss ||
               !experience.ref_log_probs.defined(),
           ExitCode::internal, "advantages: old log-probs are missing");
  VALIDATE(experience.ref_log_probs.defined() || options.kl_in_loss || options.kl_coef <= 0,
           ExitCode::internal,
           "advantages: reference log-probs are missing although the KL coefficient is ",
           options.kl_coef);
  VALIDATE(experience.values.defined() || !config::traits(options.estimator).critic,
           ExitCode::internal,
           "advantages: values are missing although the estimator has a critic");
}

PipelineReport report_rewards(const RewardTable& table, const ShapedRewards& shaped,
                              std::span<const int64_t> rows) {
  PipelineReport out;
  for (const int64_t row : rows) {
    VALIDATE(row >= 0 && row < static_cast<int64_t>(table.reward.size()), ExitCode::internal,
             "advantages: row ", row, " of ", table.reward.size());
    const auto i = static_cast<size_t>(row);
    out.reward.push_back(table.reward[i]);
    out.shaped_reward.push_back(shaped.shaped[i]);
    out.group_std.push_back(shaped.group_std[i]);
  }
  return out;
}

}  // namespace

Experience Experience::from(Samples samples) {
  Experience out;
  out.segments = Segments(samples.cu_seqlens);
  out.mask = column(samples.action_mask, at::kByte);
  out.rollout_log_probs = column(samples.log_probs, at::kFloat);
  for (const LaterColumn& later : later_columns) {
    std::vector<float>& values = samples.*later.stored;
    if (!values.empty()) out.*later.tensor = column(values, at::kFloat);
    if (!later.kept) values.clear();
  }
  out.samples = std::move(samples);
  return out;
}

Samples Experience::to_samples() const {
  Samples out = samples;
  for (const LaterColumn& later : later_columns) {
    const Tensor& tensor = this->*later.tensor;
    if (tensor.defined()) out.*later.stored = to_vector(tensor);
  }
  return out;
}

Experience Experience::select(std::span<const int64_t> rows) const {
  Experience out;
  out.samples = samples.select(rows);
  out.segments = Segments(out.samples.cu_seqlens);
  std::vector<int64_t> columns;
  columns.reserve(static_cast<size_t>(out.samples.tokens()));
  for (const int64_t row : rows) {
    for (int64_t t = samples.begin(row); t < samples.begin(row) + samples.length(row); ++t)
      columns.push_back(t);
  }
  const Tensor index = column(columns, at::kLong);
  out.mask = pick(mask, index);
  out.rollout_log_probs = pick(rollout_log_probs, index);
  for (const LaterColumn& later : later_columns)
    out.*later.tensor = pick(this->*later.tensor, index);
  return out;
}

namespace {

// Actions of sequence i at token t for which leaves_out(i, t) holds are none any more.
template <class Condition>
int64_t mask_where(Experience& experience, const Condition& leaves_out) {
  Samples& samples = experience.samples;
  int64_t masked = 0;
  for (int64_t i = 0; i < samples.size(); ++i) {
    for (int64_t t = samples.begin(i); t < samples.begin(i) + samples.length(i); ++t) {
      uint8_t& action = samples.action_mask[static_cast<size_t>(t)];
      if (!action || !leaves_out(static_cast<size_t>(i), static_cast<size_t>(t))) continue;
      action = 0;
      ++masked;
    }
  }
  experience.mask = column(samples.action_mask, at::kByte);
  return masked;
}

}  // namespace

int64_t mask_older_than(Experience& experience, int64_t bound, int64_t version) {
  return mask_where(experience, [&](size_t, size_t t) {
    return version - experience.samples.version[t] > bound;
  });
}

int64_t mask_truncated(Experience& experience) {
  return mask_where(
      experience, [&](size_t i, size_t) { return cut_short(experience.samples.finish_reason[i]); });
}

std::vector<int64_t> response_lengths(const Samples& samples) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto begin = samples.action_mask.begin() + samples.begin(i);
    const auto end = begin + samples.length(i);
    const auto first = std::find(begin, end, uint8_t{1});
    const auto last =
        std::find(std::make_reverse_iterator(end), std::make_reverse_iterator(begin), uint8_t{1});
    out.push_back(first == end ? 0 : last.base() - first);
  }
  return out;
}

std::vector<uint8_t> clipped(const Samples& samples, int64_t max_len) {
  std::vector<uint8_t> out;
  for (int64_t i = 0; i < samples.size(); ++i) out.push_back(samples.length(i) >= max_len);
  return out;
}

std::vector<int64_t> action_counts(const Samples& samples) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto begin = samples.action_mask.begin() + samples.begin(i);
    out.push_back(std::count(begin, begin + samples.length(i), uint8_t{1}));
  }
  return out;
}

std::vector<CountedSequence> counted_sequences(const Samples& samples) {
  std::vector<CountedSequence> out;
  const auto actions = action_counts(samples);
  for (size_t i = 0; i < actions.size(); ++i)
    out.push_back({actions[i], !samples.reward.empty() && samples.reward[i] > 0});
  return out;
}

namespace {

// Of each episode the actions of its longest turn: the limit rollout.max_new_tokens is a turn's.
std::vector<int64_t> longest_turns(const Samples& samples) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < samples.size(); ++i) {
    int64_t longest = 0, length = 0, t = 0;
    const auto take = [&](int64_t end) {
      for (length = 0; t < std::min(end, samples.length(i)); ++t)
        length += samples.action_mask[static_cast<size_t>(samples.begin(i) + t)];
      longest = std::max(longest, length);
    };
    for (const Turn& turn : samples.turns[static_cast<size_t>(i)]) take(turn.end);
    take(samples.length(i));
    out.push_back(longest);
  }
  return out;
}

}  // namespace

RewardTable reward_table(const Samples& samples) {
  VALIDATE(static_cast<int64_t>(samples.reward.size()) == samples.size(), ExitCode::internal,
           "the samples have no rewards yet");
  RewardTable out;
  out.reward = samples.reward;
  out.response_length = samples.turns.empty() ? response_lengths(samples) : longest_turns(samples);
  for (const FinishReason reason : samples.finish_reason)
    out.truncated.push_back(cut_short(reason));
  return out;
}

PipelineOptions pipeline_options(const config::Options& options, double kl_coef) {
  PipelineOptions out;
  out.estimator = options.algo.advantage.estimator;
  out.n_samples_per_prompt = options.rollout.n_samples_per_prompt;
  out.penalty = length_penalty(options);
  out.clip_range = options.reward.clip_range;
  out.kl_coef = kl_coef;
  out.kl_estimator = options.algo.kl.estimator;
  out.kl_in_loss = options.algo.kl.use_loss;
  out.gae = {.gamma = options.algo.advantage.gamma,
             .lambda = options.algo.advantage.lambd,
             .lambda_value = options.algo.advantage.lambd_value,
             .length_adaptive_alpha = options.algo.advantage.length_adaptive_alpha,
             .gaps = options.algo.advantage.gaps};
  for (const config::RewardSource& source : options.reward.source)
    out.source_weights.push_back(source.weight);
  out.no_std_norm = options.algo.advantage.no_std_norm;
  out.turn_rewards = options.environment.rewards == config::TurnRewards::turns;
  out.distill = options.algo.distill;
  return out;
}

namespace {

// Where episodes are compared, turns get no rewards of their own: it is by the sums of theirs.
SequenceRewards sequence_rewards(const PipelineReport& report, const Experience& experience,
                                 const PipelineOptions& options) {
  const bool compares = config::traits(options.estimator).compares != config::Comparison::nothing;
  if (!options.turn_rewards || compares) return {report.shaped_reward};
  return {report.shaped_reward, experience.samples.turns};
}

void set_advantages(Experience& experience, const PipelineReport& report, const Tensor& kl,
                    const PipelineOptions& options) {
  const config::EstimatorTraits& facts = config::traits(options.estimator);
  const Segments& segments = experience.segments;
  if (facts.critic) {
    const auto out = generalized_advantages(experience.values, report.token_rewards,
                                            experience.mask, segments, options.gae);
    experience.advantages = out.advantages;
    experience.returns = out.returns;
    return;
  }
  const bool accumulates = facts.kl == config::KlSpread::accumulated;
  const Tensor rewards =
      accumulates ? report.token_rewards
                  : token_rewards(sequence_rewards(report, experience, options), at::zeros_like(kl),
                                  experience.mask, segments, 0, options.clip_range);
  experience.returns =
      cumulative_returns(rewards, experience.mask, segments,
                         facts.discounts ? options.gae.gamma : 1.0, options.gae.gaps);
  if (!accumulates) experience.returns = experience.returns - kl * std::max(options.kl_coef, 0.0);
  experience.advantages = experience.returns;
}

void whiten_over_batch(Experience& experience, const PipelineOptions& options, const Sum& sum) {
  const config::Whitening how = config::traits(options.estimator).whitens;
  if (how == config::Whitening::none || how == config::Whitening::sequences) return;
  const Whiten deviation =
      how == config::Whitening::sample ? Whiten::unbiased : Whiten::standardize;
  experience.advantages = whiten(experience.advantages, experience.mask,
                                 options.no_std_norm ? Whiten::center : deviation, sum);
}

}  // namespace

void spread_rewards(Experience& experience, PipelineReport& report, const PipelineOptions& options,
                    const Sum& sum) {
  const Segments& segments = experience.segments;
  const Tensor kl = reference_kl(experience, options);
  report.token_rewards =
      token_rewards(sequence_rewards(report, experience, options), kl, experience.mask, segments,
                    options.kl_coef, options.clip_range);
  set_advantages(experience, report, kl, options);
  whiten_over_batch(experience, options, sum);
  const config::DistillOptions& distill = options.distill;
  const bool taught = distill.coef > 0 && distill.policy == config::DistillPolicy::advantage;
  if (taught && experience.sequences() > 0) {  // else there are no columns
    experience.advantages =
        experience.advantages + teacher_advantages(experience.rollout_log_probs,
                                                   experience.ref_log_probs, experience.mask,
                                                   segments, distill);
  }
  const Tensor actions = segments.sums(experience.mask.to(at::kFloat));
  report.kl = to_vector(segments.sums(kl) / at::clamp_min(actions, 1.0));
  report.returns = to_vector(segments.sums(report.token_rewards));
}

PipelineReport advantages(Experience& experience, const RewardTable& table,
                          std::span<const int64_t> rows, const PipelineOptions& options,
                          const Sum& sum) {
  check(experience, rows, options);
  const ShapedRewards shaped = shape_rewards(table, options.penalty, options.estimator,
                                             options.n_samples_per_prompt, options.source_weights);
  PipelineReport report = report_rewards(table, shaped, rows);
  spread_rewards(experience, report, options, sum);
  return report;
}

}  // namespace trireme::ppo
