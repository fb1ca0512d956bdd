// The numbers of an iteration against loops over all ranks' samples, which every rank can make.
#include "torch/torch.hpp"

#include "trireme/learn/iteration_numbers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "support/samples.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/learn/objective.hpp"

namespace trireme::learn {
namespace {

using test::world;

float uniform(uint64_t id, uint32_t which) {
  return base::uniform(5, base::Stream::test, id, which);
}

constexpr int64_t groups = 11;
constexpr int64_t per_group = 6;

// Sample `s` of prompt `g`; the groups lie scattered over the ranks.
std::vector<uint64_t> all_ids() {
  std::vector<uint64_t> ids;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t s = 0; s < per_group; ++s) ids.push_back(request_id(3, g, s));
  }
  return ids;
}

float reward_of(uint64_t id) {
  const uint64_t g = group_of(id) & 0xFFFFF;
  if (g == 0) return 0;  // nobody right
  if (g == 1) return 1;  // all right
  return uniform(id, 0) < 0.3f ? 1.0f : uniform(id, 1) - 0.5f;
}

Samples scored(const std::vector<uint64_t>& ids) {
  std::vector<uint64_t> small;  // the fixture makes lengths of the ids
  for (const uint64_t id : ids) small.push_back(id % 1009);
  Samples samples = test::samples_of(small);
  samples.id = ids;
  samples.reward_parts.resize(2);
  for (size_t i = 0; i < ids.size(); ++i) {
    samples.finish_reason[i] =
        uniform(ids[i], 2) < 0.4f ? FinishReason::length : FinishReason::stop;
    samples.reward.push_back(reward_of(ids[i]));
    samples.reward_parts[0].push_back(uniform(ids[i], 3));
    samples.reward_parts[1].push_back(-2);
  }
  return samples;
}

// This rank's part: none at all on the last of four ranks.
std::vector<uint64_t> my_ids() {
  std::vector<uint64_t> ids;
  for (const uint64_t id : all_ids()) {
    if (static_cast<int>(uniform(id, 4) * static_cast<float>(std::min(world().size(), 3))) ==
        world().rank())
      ids.push_back(id);
  }
  return ids;
}

TEST(RolloutMetrics, AreMeansOverTheSamplesOfAllRanks) {
  const Samples all = scored(all_ids());
  IterationMetrics metrics;
  constexpr int64_t max_len = 12;
  add_rollout_metrics(world(), scored(my_ids()), {"first", "second"}, max_len, metrics);
  double reward = 0, first = 0, length = 0, truncated = 0, clipped = 0;
  for (int64_t i = 0; i < all.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    reward += double{all.reward[s]};
    first += double{all.reward_parts[0][s]};
    length += static_cast<double>(all.length(i) - 2);
    truncated += all.finish_reason[s] == FinishReason::length ? 1 : 0;
    clipped += all.length(i) >= max_len ? 1 : 0;
  }
  const auto n = static_cast<double>(all.size());
  EXPECT_NEAR(metrics.get("reward"), reward / n, 1e-12);
  EXPECT_NEAR(metrics.get("reward_first"), first / n, 1e-12);
  EXPECT_EQ(metrics.get("reward_second"), -2);
  EXPECT_EQ(metrics.get("response_length"), length / n);
  EXPECT_EQ(metrics.get("truncated"), truncated / n);
  EXPECT_EQ(metrics.get("response_clip_ratio"), clipped / n);
  EXPECT_NE(clipped, truncated) << "or this says nothing";
  double squares = 0;
  for (const float value : all.reward) squares += std::pow(double{value} - reward / n, 2);
  EXPECT_NEAR(metrics.get("reward_std"), std::sqrt(squares / (n - 1)), 1e-12);
  EXPECT_EQ(metrics.get("reward_min"), double{*std::ranges::min_element(all.reward)});
  EXPECT_EQ(metrics.get("reward_max"), double{*std::ranges::max_element(all.reward)});
  EXPECT_DOUBLE_EQ(metrics.get("groups_without_spread"), 2.0 / groups);
  EXPECT_TRUE(std::isnan(metrics.get("kl"))) << "the trainers know it";
  EXPECT_EQ(metrics.tokens, all.tokens());
}

// Wherever the answers to a prompt are; a prompt with one answer is no group.
TEST(RolloutMetrics, GroupsWhoseRewardsAreAllTheSame) {
  Samples samples;
  const auto add = [&](int64_t prompt, int64_t sample, float reward, size_t length) {
    if ((prompt + sample) % world().size() != world().rank()) return;
    samples.add({.id = request_id(1, prompt, sample),
                 .ids = std::vector<int32_t>(length + 1, 7),
                 .action_ranges = {{1, static_cast<int64_t>(length) + 1}}});
    samples.reward.push_back(reward);
  };
  for (int64_t k = 0; k < 3; ++k) add(0, k, 0.5F, 3);
  for (int64_t k = 0; k < 3; ++k) add(1, k, 0.1F, 5);
  for (int64_t k = 0; k < 3; ++k) add(2, k, k == 2 ? 1.0F : 0.5F, 9);
  add(3, 0, -2.0F, 1);
  IterationMetrics metrics;
  add_rollout_metrics(world(), samples, {"only"}, 100, metrics);
  EXPECT_DOUBLE_EQ(metrics.get("groups_without_spread"), 2.0 / 3);
  EXPECT_EQ(metrics.get("reward_min"), -2);
  EXPECT_EQ(metrics.get("reward_max"), 1);
  EXPECT_EQ(metrics.get("response_length_min"), 1);
  EXPECT_EQ(metrics.get("response_length_max"), 9);
}

// Each mean is over the samples that have it, wherever they are; most runs have none.
TEST(RolloutMetrics, WhatPluginsSayIsAveraged) {
  const auto told = [](const std::vector<uint64_t>& ids) {
    Samples samples = scored(ids);
    for (const uint64_t id : ids) {
      const bool has = uniform(id, 5) < 0.5f;
      samples.reward_metrics["judge/some"].push_back(has ? uniform(id, 6) : std::nanf(""));
      samples.reward_metrics["judge/none"].push_back(std::nanf(""));
    }
    if (!ids.empty()) samples.reward_metrics["judge/all"].assign(ids.size(), 0.25f);
    return samples;
  };
  IterationMetrics metrics;
  add_rollout_metrics(world(), told(my_ids()), {"judge", "second"}, 100, metrics);
  const Samples all = told(all_ids());
  double sum = 0, count = 0;
  for (const float value : all.reward_metrics.at("judge/some")) {
    if (std::isnan(value)) continue;
    sum += double{value};
    ++count;
  }
  EXPECT_NEAR(metrics.get("reward_judge/some"), sum / count, 1e-12);
  EXPECT_EQ(metrics.get("reward_judge/all"), 0.25);
  EXPECT_THAT(metrics.values, testing::Not(testing::Contains(testing::Key("reward_judge/none"))));
  add_evaluation_metrics(world(), told(my_ids()), per_group, metrics);
  EXPECT_NEAR(metrics.get("eval_reward_judge/some"), sum / count, 1e-12);
}

TEST(RolloutMetrics, StalenessIsCountedByToken) {
  Samples samples;
  if (world().rank() == 0) {
    samples.add(
        {.id = 1, .ids = {1, 2, 3, 4, 5}, .action_ranges = {{1, 5}}, .versions = {-1, 4, 4, 6, 7}});
    samples.add({.id = 2, .ids = {1, 2}, .action_ranges = {{1, 2}}, .versions = {-1, 7}});
  }
  IterationMetrics metrics;
  add_staleness(world(), samples, 7, 3, metrics);
  EXPECT_EQ(metrics.get("staleness"), 7.0 / 5);
  EXPECT_EQ(metrics.get("staleness_0"), 2.0 / 5);
  EXPECT_EQ(metrics.get("staleness_1"), 1.0 / 5);
  EXPECT_EQ(metrics.get("staleness_2"), 0);
  EXPECT_EQ(metrics.get("staleness_3"), 2.0 / 5);
  EXPECT_TRUE(std::isnan(metrics.get("staleness_4"))) << "none is older than allowed";
  add_staleness(world(), samples, 7, 2, metrics);
  EXPECT_EQ(metrics.get("staleness_3"), 2.0 / 5)
      << "older than allowed: it would be a defect, and is seen";
}

TEST(RolloutMetrics, OneSourceHasNoParts) {
  IterationMetrics metrics;
  add_rollout_metrics(world(), Samples{}, {"only"}, 100, metrics);
  EXPECT_EQ(metrics.get("reward"), 0) << "no sample at all";
  EXPECT_TRUE(std::isnan(metrics.get("reward_only")));
}

TEST(EvaluationMetrics, PassRatesByPrompt) {
  double reward = 0, first = 0, any = 0;
  for (int64_t g = 0; g < groups; ++g) {
    int right = 0;
    for (int64_t s = 0; s < per_group; ++s) {
      reward += double{reward_of(request_id(3, g, s))};
      right += reward_of(request_id(3, g, s)) > 0.5f;
    }
    first += right / static_cast<double>(per_group);
    any += right > 0;
  }
  IterationMetrics metrics;
  add_evaluation_metrics(world(), scored(my_ids()), per_group, metrics);
  EXPECT_NEAR(metrics.get("eval_reward"), reward / (groups * per_group), 1e-12);
  EXPECT_NEAR(metrics.get("eval_pass1"), first / groups, 1e-12);
  EXPECT_NEAR(metrics.get("eval_pass6"), any / groups, 1e-12);
}

TEST(DynamicFiltering, KeepsGroupsWhoseMeanLiesInside) {
  const config::Range range{0, 1};
  std::vector<uint64_t> wanted;
  for (int64_t g = 0; g < groups; ++g) {
    double sum = 0;
    for (int64_t s = 0; s < per_group; ++s) sum += double{reward_of(request_id(3, g, s))};
    if (0 < sum && sum < per_group) wanted.push_back(group_of(request_id(3, g, 0)));
  }
  EXPECT_EQ(informative_groups(world(), scored(my_ids()), range), wanted);
  EXPECT_LT(wanted.size(), static_cast<size_t>(groups)) << "the first two are left out";
  EXPECT_TRUE(informative_groups(world(), Samples{}, range).empty());
}

// Mean and deviation over all answers, of which the objective knows the means of both sides and of
// the squares.
TEST(RewardModelMetrics, DeviationOfAllAnswers) {
  const auto objective = make_objective({}, config::Command::rm, nullptr);
  constexpr int64_t pairs = 50;
  std::vector<double> rewards, means(5, 0.0);
  for (int64_t i = 0; i < 2 * pairs; ++i)
    rewards.push_back(5.0 + 0.01 * uniform(static_cast<uint64_t>(i), 9));
  for (int64_t i = 0; i < 2 * pairs; ++i) {
    const double reward = rewards[static_cast<size_t>(i)];
    means[i % 2 ? 3 : 2] += reward / pairs;
    means[4] += reward * reward / (2 * pairs);
  }
  means[0] = 0.5;
  means[1] = 0.75;
  IterationMetrics metrics;
  const BatchTotals totals{.rows = pairs, .sequences = 0, .targets = 0, .tokens = 0};
  for (const auto& [name, value] : objective->metrics(means, totals))
    metrics.set("eval_" + name, value);
  double mean = 0, square = 0;
  for (const double reward : rewards) mean += reward / (2 * pairs);
  for (const double reward : rewards) square += (reward - mean) * (reward - mean);
  EXPECT_EQ(metrics.get("eval_loss"), 0.5);
  EXPECT_EQ(metrics.get("eval_accuracy"), 0.75);
  EXPECT_NEAR(metrics.get("eval_reward_mean"), mean, 1e-12);
  EXPECT_NEAR(metrics.get("eval_reward_std"), std::sqrt(square / (2 * pairs - 1)), 1e-9);
  EXPECT_TRUE(std::isnan(metrics.get("eval_reward_square"))) << "a means to an end";
}

}  // namespace
}  // namespace trireme::learn
