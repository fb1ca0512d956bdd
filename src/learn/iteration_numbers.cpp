#include "torch/torch.hpp"

#include "trireme/learn/iteration_numbers.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/rewards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

// Rewards of all samples on any rank, by group, in id order: the same on every rank.
std::map<uint64_t, std::vector<float>> rewards_by_group(const comm::CommView& world,
                                                        const Samples& samples) {
  struct Entry {
    uint64_t id;
    double reward;  // no padding: it travels as it lies in memory
  };
  std::vector<Entry> mine;
  for (size_t i = 0; i < samples.id.size(); ++i)
    mine.push_back({samples.id[i], double{samples.reward[i]}});
  std::vector<Entry> all = world.all_gather<Entry>(mine);
  std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
  std::map<uint64_t, std::vector<float>> groups;
  for (const Entry& entry : all)
    groups[group_of(entry.id)].push_back(static_cast<float>(entry.reward));
  return groups;
}

// reward_std, _min and _max, response_length_min and _max, and groups_without_spread: the share of
// the groups of several answers whose rewards are all the same, of which group-based estimators
// learn nothing. Collective over world.
void add_spread(const comm::CommView& world, const Samples& samples, IterationMetrics& metrics) {
  struct Entry {
    uint64_t id;
    double reward, length;  // no padding: it travels as it lies in memory
  };
  struct Extremes {
    double low, high;
    int64_t count = 0;
    void take(double value) {
      low = count == 0 ? value : std::min(low, value);
      high = count == 0 ? value : std::max(high, value);
      ++count;
    }
  };
  std::vector<Entry> mine;
  const std::vector<int64_t> length_of = ppo::response_lengths(samples);
  for (size_t s = 0; s < length_of.size(); ++s) {
    mine.push_back({samples.id[s], double{samples.reward[s]}, static_cast<double>(length_of[s])});
  }
  std::vector<Entry> all = world.all_gather<Entry>(mine);
  if (all.empty()) return;
  std::ranges::sort(all, {}, &Entry::id);  // sums are the same for every division over ranks
  Extremes rewards{}, lengths{};
  std::map<uint64_t, Extremes> groups;
  double sum = 0, squares = 0;
  for (const Entry& entry : all) {
    sum += entry.reward;
    rewards.take(entry.reward);
    lengths.take(entry.length);
    groups[group_of(entry.id)].take(entry.reward);
  }
  const auto n = static_cast<double>(all.size());
  for (const Entry& entry : all) squares += std::pow(entry.reward - sum / n, 2);
  const auto add = [&](const char* name, double value) {
    if (std::isnan(metrics.get(name))) metrics.set(name, value);  // a source may be called "std"
  };
  add("reward_std", std::sqrt(squares / std::max(1.0, n - 1)));
  add("reward_min", rewards.low);
  add("reward_max", rewards.high);
  add("response_length_min", lengths.low);
  add("response_length_max", lengths.high);
  const auto several =
      std::ranges::count_if(groups, [](const auto& g) { return g.second.count > 1; });
  const auto flat = std::ranges::count_if(
      groups, [](const auto& g) { return g.second.count > 1 && g.second.low == g.second.high; });
  if (several > 0)
    metrics.set("groups_without_spread", static_cast<double>(flat) / static_cast<double>(several));
}

// Of all tokens that are learned from, after whitening: advantage_mean and _std; with a critic also
// explained_variance, 1 - Var(returns - values) / Var(returns). Collective over the trainers.
void add_advantages(const comm::CommView& trainers, const ppo::Experience& experience, bool critic,
                    IterationMetrics& metrics) {
  enum : size_t { count, advantage, advantage2, value, value2, error, error2, size };
  std::vector<double> sums(size, 0.0);
  const auto add = [&](const at::Tensor& tokens, size_t first) {
    const at::Tensor x = tokens.masked_select(experience.mask.to(at::kBool)).to(at::kDouble);
    sums[first] += x.sum().item<double>();
    sums[first + 1] += x.square().sum().item<double>();
  };
  if (experience.advantages.defined() && experience.sequences() > 0) {
    sums[count] = experience.mask.to(at::kBool).sum().item<double>();
    add(experience.advantages, advantage);
    if (critic && experience.returns.defined() && experience.values.defined()) {
      add(experience.returns, value);
      add(experience.returns - experience.values, error);
    }
  }
  sum_over(trainers, sums);
  const double n = std::max(1.0, sums[count]);
  const auto variance = [&](size_t first) {
    return std::max(0.0, sums[first + 1] / n - std::pow(sums[first] / n, 2));
  };
  metrics.set("advantage_mean", sums[advantage] / n);
  metrics.set("advantage_std", std::sqrt(variance(advantage)));
  if (critic)
    metrics.set("explained_variance", variance(value) > 0
                                          ? 1 - variance(error) / variance(value)
                                          : std::numeric_limits<double>::quiet_NaN());
}

// Means of what reward sources and environments say beside rewards, as `prefix` + its name: over
// the samples that have it. Collective over world.
void add_reward_metrics(const comm::CommView& world, const Samples& samples,
                        const std::string& prefix, IterationMetrics& metrics) {
  using Sum = std::pair<double, double>;  // and count
  std::vector<std::pair<std::string, Sum>> mine;
  const auto add = [&](const std::string& name, const std::vector<float>& values) {
    Sum sum{0, 0};
    for (const float value : values) {
      if (std::isnan(value)) continue;
      sum.first += double{value};
      sum.second += 1;
    }
    mine.emplace_back(name, sum);
  };
  for (const auto& [name, values] : samples.reward_metrics) add(name, values);
  for (const auto& [name, values] : samples.episode_metrics)
    add(base::text(config::environment_source, "/", name), values);
  std::map<std::string, Sum> all;
  for (const auto& [name, sum] : world.all_gather<std::pair<std::string, Sum>>(mine)) {
    all[name].first += sum.first;
    all[name].second += sum.second;
  }
  for (const auto& [name, sum] : all)
    if (sum.second > 0) metrics.set(prefix + name, sum.first / sum.second);
}

// turns, observation_tokens and turn_tokens of an episode, and the share of broken_episodes.
// Collective over world.
void add_episodes(const comm::CommView& world, const Samples& samples, IterationMetrics& metrics) {
  enum : size_t { count, turns, observed, written, broken, size };
  std::vector<double> sums(size, 0.0);
  const std::vector<int64_t> actions = ppo::action_counts(samples);
  for (size_t s = 0; s < samples.turns.size(); ++s) {
    const int64_t after_prompt = samples.response_len(static_cast<int64_t>(s));
    sums[count] += 1;
    sums[turns] += static_cast<double>(samples.turns[s].size());
    sums[observed] += static_cast<double>(after_prompt - actions[s]);
    sums[written] += static_cast<double>(actions[s]);
    sums[broken] += samples.finish_reason[s] == FinishReason::broken;
  }
  sum_over(world, sums);
  const double n = std::max(1.0, sums[count]);
  metrics.set("turns", sums[turns] / n);
  metrics.set("observation_tokens", sums[observed] / n);
  metrics.set("turn_tokens", sums[written] / n);
  metrics.set("broken_episodes", sums[broken] / n);
}

}  // namespace

void sum_over(const comm::CommView& ranks, std::vector<double>& values) {
  ranks.all_reduce(values.data(), static_cast<int64_t>(values.size()), comm::DType::f64,
                   comm::Op::sum);
}

double add_rollout_metrics(const comm::CommView& world, const Samples& samples,
                           const std::vector<std::string>& parts, int64_t max_len,
                           IterationMetrics& metrics) {
  const trace::Phase phase{"report", metrics.iteration};
  enum : size_t { count, reward, length, truncated, clipped, tokens, named, episodes, first_part };
  std::vector<double> sums(first_part + parts.size(), 0.0);
  const std::vector<uint8_t> at_limit = ppo::clipped(samples, max_len);
  sums[named] = samples.reward_metrics.empty() && samples.episode_metrics.empty() ? 0 : 1;
  sums[episodes] = static_cast<double>(samples.turns.size());
  const std::vector<int64_t> length_of = ppo::response_lengths(samples);
  if (samples.reward_parts.size() > parts.size())
    throw InternalError(base::text("samples have rewards of ", samples.reward_parts.size(),
                                   " sources, and the deck has ", parts.size()));
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    sums[count] += 1;
    sums[clipped] += at_limit[s];
    sums[reward] += double{samples.reward[s]};
    sums[length] += static_cast<double>(length_of[s]);
    sums[truncated] += samples.finish_reason[s] == FinishReason::length;
    sums[tokens] += static_cast<double>(samples.length(i));
    for (size_t part = 0; part < samples.reward_parts.size(); ++part)
      sums[first_part + part] += double{samples.reward_parts[part][s]};
  }
  sum_over(world, sums);
  const double n = std::max(1.0, sums[count]);
  metrics.set("reward", sums[reward] / n);
  metrics.set("kl", std::numeric_limits<double>::quiet_NaN());  // keeps its place in the line; set
                                                                // by the trainers
  if (parts.size() > 1) {
    for (size_t part = 0; part < parts.size(); ++part)
      metrics.set("reward_" + parts[part], sums[first_part + part] / n);
  }
  if (sums[named] > 0) add_reward_metrics(world, samples, report::reward_prefix, metrics);
  metrics.set("response_length", sums[length] / n);
  metrics.set("truncated", sums[truncated] / n);
  metrics.set("response_clip_ratio", sums[clipped] / n);
  if (sums[episodes] > 0) add_episodes(world, samples, metrics);
  add_spread(world, samples, metrics);
  metrics.tokens = static_cast<int64_t>(sums[tokens]);
  return sums[reward] / n;
}

void add_staleness(const comm::CommView& world, const Samples& samples, int64_t version,
                   int64_t depth, IterationMetrics& metrics) {
  if (depth == 0) return;
  const auto ages = static_cast<size_t>(depth) + 2;
  std::vector<double> tokens(ages + 1, 0.0);  // by age; the sum of ages behind them
  for (size_t t = 0; t < samples.ids.size(); ++t) {
    if (!samples.action_mask[t]) continue;
    const int64_t age = version - samples.version[t];
    ++tokens[static_cast<size_t>(std::clamp<int64_t>(age, 0, depth + 1))];
    tokens[ages] += static_cast<double>(age);
  }
  sum_over(world, tokens);
  const double all = std::max(1.0, std::accumulate(tokens.begin(), tokens.end() - 1, 0.0));
  metrics.set("staleness", tokens[ages] / all);
  for (size_t age = 0; age < ages; ++age) {
    if (age < ages - 1 || tokens[age] > 0)
      metrics.set(base::text("staleness_", age), tokens[age] / all);
  }
}

void add_training_metrics(const config::Options& options, const comm::CommView& trainers,
                          double kl_coefficient, const Learning& learning,
                          const std::optional<double>& kl, IterationMetrics& metrics) {
  const auto& [experience, mismatch, pipeline, update, left] = learning;
  std::vector<double> sums{pipeline.group_std, pipeline.returns, pipeline.sequences,
                           pipeline.masked_tokens};
  sum_over(trainers, sums);
  const double n = std::max(1.0, sums[2]);
  metrics.set("kl", kl.value_or(std::numeric_limits<double>::quiet_NaN()));
  metrics.set("policy_loss", update.policy_loss);
  metrics.set("value_loss",
              options.has_critic() ? update.value_loss : std::numeric_limits<double>::quiet_NaN());
  metrics.set("entropy", options.actor.entropy_coef ? update.entropy
                                                    : std::numeric_limits<double>::quiet_NaN());
  metrics.set("clip_ratio", update.statistics.clip_ratio());
  metrics.set("ppo_kl", update.statistics.ppo_kl());
  metrics.set("rollout_kl", update.statistics.rollout_kl());
  metrics.set("filter_ratio", update.statistics.filter_ratio());
  if (options.algo.advantage.mask_older_than || options.algo.advantage.mask_truncated)
    metrics.set("masked_tokens", sums[3]);
  if (options.actor.off_policy_threshold || options.actor.top_entropy_quantile)
    metrics.set("loss_mask_ratio", update.statistics.loss_mask_ratio());
  metrics.set("grad_norm", update.grad_norm);
  metrics.set("critic_grad_norm", options.has_critic() ? update.critic_grad_norm
                                                       : std::numeric_limits<double>::quiet_NaN());
  metrics.set("lr", update.lr);
  if (options.has_critic()) metrics.set("critic_lr", update.critic_lr);
  add_advantages(trainers, experience, options.has_critic(), metrics);
  metrics.set("kl_coefficient", kl_coefficient);
  metrics.set("kl_loss", update.kl_loss);
  if (options.actor.ptx_coef > 0) metrics.set("ptx_loss", update.ptx_loss);
  if (options.actor.positive_nll_coef > 0) metrics.set("positive_nll", update.positive_nll);
  if (options.algo.distill.in_steps()) metrics.set("distill_loss", update.distill_loss);
  metrics.set("group_reward_std", sums[0] / n);
  metrics.set("return", sums[1] / n);
  metrics.set("mismatch_max", mismatch.max);
  metrics.set("mismatch_mean", mismatch.mean);
  metrics.set("mismatch_p999", mismatch.p999);
  metrics.set("mismatch_kl", mismatch.kl);
  metrics.set("mismatch_tokens", mismatch.tokens);
  metrics.set("optimizer_steps", static_cast<double>(update.steps));
  metrics.set("skipped_steps", static_cast<double>(update.skipped_steps));
}

void add_evaluation_metrics(const comm::CommView& world, const Samples& samples, int64_t n,
                            IterationMetrics& metrics) {
  double sum = 0;
  double first = 0;
  double any = 0;
  const auto groups = rewards_by_group(world, samples);
  for (const auto& [group, rewards] : groups) {
    sum += std::accumulate(rewards.begin(), rewards.end(), 0.0);
    first += std::count_if(rewards.begin(), rewards.end(), [](float r) { return r > 0.5f; }) /
             static_cast<double>(rewards.size());
    any += std::any_of(rewards.begin(), rewards.end(), [](float r) { return r > 0.5f; });
  }
  const double count = std::max<double>(1, static_cast<double>(groups.size()));
  metrics.set("eval_reward", sum / (count * static_cast<double>(n)));
  metrics.set("eval_pass1", first / count);
  metrics.set(base::text("eval_pass", n), any / count);
  add_reward_metrics(world, samples, std::string("eval_") + report::reward_prefix, metrics);
}

std::vector<uint64_t> informative_groups(const comm::CommView& world, const Samples& samples,
                                         const config::Range& range) {
  std::vector<uint64_t> groups;
  for (const auto& [group, rewards] : rewards_by_group(world, samples)) {
    if (ppo::keep_group(rewards, range)) groups.push_back(group);
  }
  return groups;
}

}  // namespace trireme::learn
