// What roles report of an iteration, against what each rank puts in.
#include "torch/torch.hpp"

#include "driver/role_metrics.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "support/samples.hpp"
#include "trireme/report/generation_totals.hpp"

namespace trireme::driver {
namespace {

using test::world;

// The trainer's state reaches ranks that have no trainer, whatever the names.
TEST(TrainingState, IsThatOfTheFirstTrainerOnEveryRank) {
  config::Options options;
  const int last = world().size() - 1;
  options.ranks.trainer = base::text(last, "-", last);
  const comm::Roles roles = comm::make_roles(options, world());
  report::IterationMetrics metrics;
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
  const rollout::GeneratorMemory generator{.weights = 5000 - rank, .kv_cache_peak = 64 * (100 + rank), .kv_pages_peak = 100 + rank};
  report::IterationMetrics metrics;
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

// Rank r wrote 10 (r + 1) tokens in 5 (r + 1) steps of 4 slots.
TEST(GenerationMetrics, AreOfAllReplicas) {
  const int64_t place = world().rank() + 1, n = world().size();
  const rollout::GeneratorWork work{.steps = 5 * place, .tokens = 10 * place, .preemptions = place, .shared_tokens = 3, .seconds = 2};
  report::IterationMetrics metrics;
  add_generation_metrics(world(), &work, 4, metrics);
  const int64_t tokens = 10 * n * (n + 1) / 2;
  EXPECT_EQ(metrics.generation.at("tokens"), tokens);
  EXPECT_EQ(metrics.generation.at("steps"), 5 * n);
  EXPECT_DOUBLE_EQ(metrics.generation.at("occupancy"), static_cast<double>(tokens) / static_cast<double>(5 * n * 4 * n));
  EXPECT_DOUBLE_EQ(metrics.generation.at("busiest_replica"), static_cast<double>(10 * n * n) / static_cast<double>(tokens));
  EXPECT_EQ(metrics.generation.at("preemptions"), n * (n + 1) / 2);
  EXPECT_EQ(metrics.generation.at("shared_tokens"), 3 * n);
  EXPECT_DOUBLE_EQ(metrics.generation.at("tokens_per_second"), static_cast<double>(tokens) / 2);
  EXPECT_FALSE(metrics.generation.contains("proposed_tokens")) << "nothing was guessed";
  EXPECT_FALSE(metrics.generation.contains("dropped_tokens"));
  report::IterationMetrics dropped;
  const rollout::GeneratorWork begun_again{.steps = 5, .tokens = 12, .dropped_tokens = place};
  add_generation_metrics(world(), &begun_again, 4, dropped);
  EXPECT_EQ(dropped.generation.at("dropped_tokens"), n * (n + 1) / 2);
  const rollout::GeneratorWork guessing{.steps = 5, .tokens = 12, .proposed_tokens = 9, .accepted_tokens = 2};
  report::IterationMetrics guessed;
  add_generation_metrics(world(), &guessing, 4, guessed);
  EXPECT_EQ(guessed.generation.at("proposed_tokens"), 9 * n);
  EXPECT_EQ(guessed.generation.at("accepted_tokens"), 2 * n);
  EXPECT_DOUBLE_EQ(guessed.generation.at("occupancy"), 0.5) << "ten tokens of 20 places";
  report::IterationMetrics nothing;
  add_generation_metrics(world(), nullptr, 4, nothing);
  EXPECT_TRUE(nothing.generation.empty()) << "nobody wrote";
}

// 100 tokens of 400 slot-steps in 2 s, then 300 of 400 in 6 s.
TEST(GenerationTotals, AreOfAllIterations) {
  report::GenerationTotals totals;
  EXPECT_EQ(totals.describe(), "");
  EXPECT_EQ(totals.to_json(), "");
  report::IterationMetrics metrics;
  totals.add(metrics);
  metrics.generation = {{"tokens", 100}, {"occupancy", 0.25}, {"tokens_per_second", 50}, {"preemptions", 1}, {"shared_tokens", 7}};
  totals.add(metrics);
  metrics.generation = {{"tokens", 300}, {"occupancy", 0.75}, {"tokens_per_second", 50}, {"preemptions", 0}, {"shared_tokens", 5}};
  totals.add(metrics);
  EXPECT_EQ(totals.describe(),
            "generation: 400 tokens, 50 a second while the engines worked, occupancy 50 % (tokens per slot and step), 1 preemptions, 12 prompt tokens shared");
  EXPECT_EQ(totals.to_json(), R"({"tokens": 400, "tokens_per_second": 50, "occupancy": 0.5, "preemptions": 1, "shared_tokens": 12})");
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

}  // namespace
}  // namespace trireme::driver
