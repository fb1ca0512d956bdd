#include "trireme/ppo/rewards.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::ppo {
namespace {

double mean(std::span<const float> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double unbiased_std(std::span<const float> x) {
  if (x.size() < 2) return 0;
  const double center = mean(x);
  double squares = 0;
  for (const float value : x) squares += (value - center) * (value - center);
  return std::sqrt(squares / static_cast<double>(x.size() - 1));
}

template <class Body>
void for_each_group(size_t count, int64_t n, const Body& body) {
  VALIDATE(n > 0 && count % static_cast<size_t>(n) == 0, ExitCode::internal, "the ", count,
           " rewards are not whole groups of ", n, " samples");
  for (size_t first = 0; first < count; first += static_cast<size_t>(n)) body(first);
}

// Baselines: rewards that are compared with each other, in place.
void keep(std::span<float>) {}

void subtract_mean(std::span<float> rewards) {
  const double center = mean(rewards);
  for (float& value : rewards) value = static_cast<float>(value - center);
}

void standardize_plus(std::span<float> rewards, double epsilon) {
  const double center = mean(rewards), spread = unbiased_std(rewards) + epsilon;
  for (float& value : rewards) value = static_cast<float>((value - center) / spread);
}

void standardize(std::span<float> rewards) { standardize_plus(rewards, 1e-9); }

// verl: one answer alone keeps its reward.
void standardize_or_keep(std::span<float> rewards) {
  if (rewards.size() > 1) return standardize_plus(rewards, 1e-6);
  for (float& value : rewards) value = static_cast<float>(value / (1 + 1e-6));
}

void standardize_of_trl(std::span<float> rewards) { standardize_plus(rewards, 1e-4); }

void subtract_mean_or_keep(std::span<float> rewards) {
  if (rewards.size() > 1) subtract_mean(rewards);
}

// Minus the mean of the others.
void leave_one_out(std::span<float> rewards) {
  const double center = mean(rewards), n = static_cast<double>(rewards.size());
  for (float& value : rewards) value = static_cast<float>(value - (center * n - value) / (n - 1));
}

// MaxRL (Tajwar, Zeng et al. 2026, arXiv 2602.02710, algorithm 1): the reward as a success; where
// nobody succeeds there is nothing to learn.
void relative_to_mean(std::span<float> rewards) {
  const double center = mean(rewards);
  for (const float value : rewards) {
    VALIDATE(
        value >= 0, ExitCode::bad_data,
        "algo.advantage.estimator = \"max_rl\" takes rewards as successes, 0 or more, and one is ",
        value, ": use rewards from 0 to 1 without negative penalties, or another estimator");
  }
  for (float& value : rewards)
    value = center > 0 ? static_cast<float>((value - center) / center) : 0.f;
}

// In the order of config::estimator_table.
constexpr std::array<void (*)(std::span<float>), config::estimator_table.size()> baselines{
    keep,                   // gae: the critic's values are its baseline
    keep,                   // reinforce
    leave_one_out,          // rloo
    subtract_mean,          // reinforce_baseline
    standardize,            // group_norm
    subtract_mean,          // dr_grpo
    subtract_mean,          // flash_reinforce
    relative_to_mean,       // max_rl
    standardize_or_keep,    // gdpo, of one source
    standardize_of_trl,     // gdpo_sequences, of one source
    keep,                   // reinforce_plus_plus
    subtract_mean_or_keep,  // reinforce_plus_plus_baseline
    subtract_mean,          // reinforce_plus_plus_baseline_kl
};
static_assert(baselines.back() != nullptr, "an estimator without a baseline: say `keep`");

float overlong_penalty(int64_t length, const LengthPenalty& penalty) {
  const int64_t buffer = *penalty.overlong_buffer;
  const int64_t exceeded = std::min(length - (penalty.max_new_tokens - buffer), buffer);
  if (exceeded <= 0) return 0;
  return static_cast<float>(-static_cast<double>(exceeded) / static_cast<double>(buffer) *
                            penalty.overlong_factor);
}

}  // namespace

std::vector<float> apply_length_penalties(const RewardTable& table, const LengthPenalty& penalty) {
  const size_t count = table.reward.size();
  VALIDATE(table.response_length.size() == count && table.truncated.size() == count,
           ExitCode::internal, "reward table: columns of different length");
  if (penalty.overlong_buffer) {
    VALIDATE(*penalty.overlong_buffer > 0, ExitCode::configuration,
             "reward.overlong_buffer_len = ", *penalty.overlong_buffer,
             " (it is a number of tokens): give a positive number or none");
  }
  const auto coefficient = penalty.stop_properly_coef;
  VALIDATE(!coefficient || *coefficient <= 1, ExitCode::configuration,
           "reward.stop_properly_penalty_coef = ", coefficient.value_or(0),
           " (above 1 it would reward truncated answers): give a factor between 0 and 1, or a "
           "negative reward");
  std::vector<float> out = table.reward;
  for (size_t i = 0; i < count; ++i) {
    if (penalty.overlong_buffer) out[i] += overlong_penalty(table.response_length[i], penalty);
    if (!coefficient || table.truncated[i] == 0) continue;
    out[i] = *coefficient < 0 ? static_cast<float>(*coefficient)
                              : out[i] * static_cast<float>(*coefficient);
  }
  return out;
}

void compare_group(std::span<float> rewards, config::Estimator estimator) {
  baselines[static_cast<size_t>(estimator)](rewards);
}

std::vector<float> apply_baseline(std::span<const float> rewards, config::Estimator estimator,
                                  int64_t n) {
  std::vector<float> out(rewards.begin(), rewards.end());
  if (out.empty()) return out;
  const config::Comparison compares = config::traits(estimator).compares;
  if (compares == config::Comparison::batch) compare_group(out, estimator);
  if (compares == config::Comparison::group) {
    VALIDATE(n > 1, ExitCode::configuration,
             "algo.advantage.estimator = ", config::to_string(estimator),
             " compares the samples of a prompt, but rollout.n_samples_per_prompt = ", n,
             ": set it to 2 or more");
    for_each_group(out.size(), n, [&](size_t first) {
      compare_group(std::span(out).subspan(first, static_cast<size_t>(n)), estimator);
    });
  }
  return out;
}

std::vector<float> group_std(std::span<const float> rewards, int64_t n) {
  std::vector<float> out(rewards.size());
  for_each_group(rewards.size(), n, [&](size_t first) {
    const auto group = rewards.subspan(first, static_cast<size_t>(n));
    std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(first), n,
                static_cast<float>(unbiased_std(group)));
  });
  return out;
}

std::vector<float> compare_by_source(const std::vector<std::vector<float>>& parts,
                                     std::span<const double> weights, config::Estimator estimator,
                                     int64_t n) {
  VALIDATE(!parts.empty() && parts.size() == weights.size(), ExitCode::internal, "there are ",
           parts.size(), " reward parts for ", weights.size(), " weights");
  std::vector<double> sum(parts.front().size(), 0.0);
  for (size_t part = 0; part < parts.size(); ++part) {
    const std::vector<float> compared = apply_baseline(parts[part], estimator, n);
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += weights[part] * static_cast<double>(compared[i]);
  }
  return {sum.begin(), sum.end()};
}

void whiten_sequences(std::span<float> shaped) {
  if (!shaped.empty()) standardize_plus(shaped, 1e-4);
}

namespace {

// Sources, and what length penalties take away as one more.
std::vector<float> shape_by_source(const RewardTable& table, const std::vector<float>& after,
                                   std::span<const double> weights, config::Estimator estimator,
                                   int64_t n) {
  std::vector<std::vector<float>> parts = table.parts;
  std::vector<double> of_parts(weights.begin(), weights.end());
  std::vector<float> penalty(after.size());
  std::transform(after.begin(), after.end(), table.reward.begin(), penalty.begin(),
                 std::minus<float>());
  if (std::any_of(penalty.begin(), penalty.end(), [](float x) { return x != 0; })) {
    parts.push_back(std::move(penalty));
    of_parts.push_back(1);
  }
  return compare_by_source(parts, of_parts, estimator, n);
}

}  // namespace

ShapedRewards shape_rewards(const RewardTable& table, const LengthPenalty& penalty,
                            config::Estimator estimator, int64_t n,
                            std::span<const double> source_weights) {
  const config::EstimatorTraits& facts = config::traits(estimator);
  ShapedRewards out;
  out.after_penalty = apply_length_penalties(table, penalty);
  out.shaped = facts.by_source && !out.after_penalty.empty()
                   ? shape_by_source(table, out.after_penalty, source_weights, estimator, n)
                   : apply_baseline(out.after_penalty, estimator, n);
  if (facts.whitens == config::Whitening::sequences) whiten_sequences(out.shaped);
  out.group_std = group_std(out.after_penalty, n);
  return out;
}

bool keep_group(std::span<const float> rewards, const config::Range& range) {
  const double center = mean(rewards);
  return range[0] < center && center < range[1];
}

LengthPenalty length_penalty(const config::Options& options) {
  LengthPenalty out;
  out.overlong_buffer = options.reward.overlong_buffer_len;
  out.overlong_factor = options.reward.overlong_penalty_factor;
  out.max_new_tokens =
      options.rollout.max_new_tokens > 0 ? options.rollout.max_new_tokens : options.max_len();
  out.stop_properly_coef = options.reward.stop_properly_penalty_coef;
  return out;
}

}  // namespace trireme::ppo
