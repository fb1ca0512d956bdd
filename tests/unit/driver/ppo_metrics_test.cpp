// The numbers of an iteration against loops over all ranks' samples, which every rank can make.
#include "torch/torch.hpp"

#include "driver/ppo_metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "trireme/comm/clock.hpp"
#include "support/samples.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/learn/objective.hpp"

namespace trireme::driver {
namespace {

using test::world;

float uniform(uint64_t id, uint32_t which) { return base::uniform(5, base::Stream::test, id, which); }

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
    samples.finish_reason[i] = uniform(ids[i], 2) < 0.4f ? FinishReason::length : FinishReason::stop;
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
    if (static_cast<int>(uniform(id, 4) * static_cast<float>(std::min(world().size(), 3))) == world().rank()) ids.push_back(id);
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
  EXPECT_TRUE(std::isnan(metrics.get("kl"))) << "the trainers know it";
  EXPECT_EQ(metrics.tokens, all.tokens());
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

// The trainer's state reaches ranks that have no trainer, whatever the names.
TEST(TrainingState, IsThatOfTheFirstTrainerOnEveryRank) {
  config::Options options;
  const int last = world().size() - 1;
  options.ranks.trainer = base::text(last, "-", last);
  const Roles roles = make_roles(options, world());
  IterationMetrics metrics;
  metrics.set("tokens_per_second", 7 + world().rank());
  TrainingState state;
  const std::vector<std::string> names{"kl", "reward_two\nlines", "reward_", "", "reward_\"quoted\""};
  if (roles.trainer) {
    for (size_t i = 0; i < names.size(); ++i) metrics.set(names[i], 0.1 * static_cast<double>(i));
    metrics.set("value_loss", std::nan(""));
    state.actor_steps = 70;
    state.critic_steps = 7;
    state.kl_coefficient = 0.1 + 0.2;
  }
  state = share_training_state(roles, metrics, state);
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(metrics.get(names[i]), 0.1 * static_cast<double>(i)) << names[i];
  EXPECT_TRUE(std::isnan(metrics.get("value_loss")));
  EXPECT_EQ(metrics.get("tokens_per_second"), 7 + last);
  EXPECT_EQ(metrics.values.size(), names.size() + 2);
  EXPECT_EQ(state.actor_steps, 70);
  EXPECT_EQ(state.critic_steps, 7);
  EXPECT_EQ(state.kl_coefficient, 0.1 + 0.2);
}

// Every model of every rank, whoever has it.
TEST(MemoryMetrics, AreTheLargestOfAnyRank) {
  const int rank = world().rank(), last = world().size() - 1;
  std::vector<ModelMemory> models;
  zero::MemoryUse trained;
  trained.master = 1000 + rank;
  trained.weights = 50;
  if (rank % 2 == 0) models.emplace_back("actor", trained);
  zero::MemoryUse frozen;
  frozen.weights = 700;
  if (rank == last) models.emplace_back("reward_two\nlines", frozen);
  if (rank == last) models.emplace_back("reference", frozen);
  const GeneratorMemory generator{.weights = 5000 - rank, .kv_cache_peak = 64 * (100 + rank), .kv_pages_peak = 100 + rank};
  IterationMetrics metrics;
  add_memory_metrics(world(), models, rank % 2 ? nullptr : &generator, metrics);
  EXPECT_EQ(metrics.memory.at("kv_pages_peak"), 100 + last / 2 * 2);
  EXPECT_EQ(metrics.memory.at("kv_cache_peak"), 64 * (100 + last / 2 * 2));
  EXPECT_EQ(metrics.memory.at("generator_weights"), 5000);
  EXPECT_EQ(metrics.memory.at("actor_master"), 1000 + last / 2 * 2);
  EXPECT_EQ(metrics.memory.at("actor_moments"), 0);
  EXPECT_EQ(metrics.memory.at("reference_weights"), 700) << "of the last rank alone";
  EXPECT_EQ(metrics.memory.at("reward_two\nlines_weights"), 700);
  EXPECT_FALSE(metrics.memory.contains("reference_master")) << "it has none";
  EXPECT_FALSE(metrics.memory.contains("critic_master")) << "nobody has one";
  EXPECT_GT(metrics.memory.at("host"), 0);
  EXPECT_GE(metrics.memory.at("host_peak"), world().max(metrics.memory.at("host")) / 2);
}

TEST(ClockOffset, IsNothingOnOneMachine) {
  const double offset = comm::measure_clock_offset(world());
  if (world().rank() == 0) {
    EXPECT_EQ(offset, 0);
  }
  EXPECT_LT(std::abs(offset), 10) << "half a round trip";
}

TEST(LearningRate, StaysWhereTheScheduleEnded) {
  config::OptimizerOptions options;
  options.adam.lr = 1;
  options.min_lr_ratio = 0.25;
  options.warmup_ratio = 0.1;
  const zero::LearningRate schedule(options, 20);
  EXPECT_EQ(learning_rate(schedule, 0), 0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 20), 0.25);
  for (const int64_t step : {21, 25, 40, 1000}) EXPECT_EQ(learning_rate(schedule, step), learning_rate(schedule, 20)) << "the cosine would rise again";
}

// Mean and deviation over all answers, of which the objective knows the means of both sides and of the squares.
TEST(RewardModelMetrics, DeviationOfAllAnswers) {
  const auto objective = learn::make_objective({}, config::Command::rm, nullptr);
  constexpr int64_t pairs = 50;
  std::vector<double> rewards, means(5, 0.0);
  for (int64_t i = 0; i < 2 * pairs; ++i) rewards.push_back(5.0 + 0.01 * uniform(static_cast<uint64_t>(i), 9));
  for (int64_t i = 0; i < 2 * pairs; ++i) {
    const double reward = rewards[static_cast<size_t>(i)];
    means[i % 2 ? 3 : 2] += reward / pairs;
    means[4] += reward * reward / (2 * pairs);
  }
  means[0] = 0.5;
  means[1] = 0.75;
  IterationMetrics metrics;
  const learn::BatchTotals totals{.rows = pairs, .sequences = 0, .targets = 0, .tokens = 0};
  for (const auto& [name, value] : objective->metrics(means, totals)) metrics.set("eval_" + name, value);
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
}  // namespace trireme::driver
