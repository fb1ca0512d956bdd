// What roles report of an iteration, against what each rank puts in.
#include "torch/torch.hpp"

#include "driver/role_metrics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "support/samples.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/trace/region.hpp"
#include "unit/zero/tiny_model.hpp"

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
  learn::TrainingState state;
  const std::vector<std::string> names{"kl", "reward_two\nlines", "reward_", "",
                                       "reward_\"quoted\""};
  if (roles.trainer) {
    for (size_t i = 0; i < names.size(); ++i) metrics.set(names[i], 0.1 * static_cast<double>(i));
    metrics.set("value_loss", std::nan(""));
    state.actor_steps = 70;
    state.critic_steps = 7;
    state.kl_coefficient = 0.1 + 0.2;
  }
  Outcome outcome{.curve = 0.5};
  if (roles.trainer) outcome.entropy = -0.25;
  state = share_training_state(roles, metrics, state, outcome);
  EXPECT_EQ(outcome, (Outcome{.curve = 0.5, .entropy = -0.25}));
  for (size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(metrics.get(names[i]), 0.1 * static_cast<double>(i)) << names[i];
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
  const rollout::GeneratorMemory generator{
      .weights = 5000 - rank, .kv_cache_peak = 64 * (100 + rank), .kv_pages_peak = 100 + rank};
  comm::Roles roles;
  roles.world = world();
  report::IterationMetrics metrics;
  add_memory_metrics(roles, models, rank % 2 ? nullptr : &generator, metrics);
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

void work() {
  const base::Stopwatch watch;
  while (watch.seconds() < 0.002) continue;
}

// Rank 0 trains, all write: each role's number is the mean over the ranks that have it.
TEST(BusyMetrics, AreTheMeanOverTheRanksOfARole) {
  comm::Roles roles;
  roles.world = world();
  roles.trainer = world().rank() == 0;
  roles.generator = true;
  report::IterationMetrics metrics;
  const auto iterate = [](bool waits) {
    const trace::Region iteration{"iteration"};
    work();
    if (!waits) return;
    const trace::Region wait{"wait for others", trace::no_argument, trace::Category::wait};
    work();
  };
  const trace::Waited before = trace::waited_in("iteration");
  iterate(world().rank() % 2 == 0);
  const trace::Waited now = add_busy_metrics(roles, before, metrics);
  const double busy =
      std::clamp(1 - (now.wait - before.wait) / (now.seconds - before.seconds), 0.0, 1.0);
  const auto all = world().all_gather<double>(std::array{busy});
  EXPECT_LT(all[0], 1) << "it waited";
  EXPECT_NEAR(metrics.busy.at("trainer"), all[0], 1e-6);
  EXPECT_NEAR(metrics.busy.at("generator"),
              std::accumulate(all.begin(), all.end(), 0.0) / world().size(), 1e-6);
  EXPECT_FALSE(metrics.busy.contains("reward")) << "nobody has the role";
  report::IterationMetrics next;
  iterate(false);
  add_busy_metrics(roles, now, next);
  EXPECT_NEAR(next.busy.at("generator"), 1, 0.01) << "the wait before is not counted again";
}

// Roles on ranks that lack them are left out, and a role that nobody has is no metric.
TEST(ThreadMetrics, AreTheFewestOverTheRanksOfARole) {
  const int rank = world().rank();
  const auto options = [] {
    config::Options deck;
    deck.model.dtype = config::ComputeType::fp32;
    deck.algo.advantage.estimator = config::Estimator::reinforce;
    return deck;
  }();
  const comm::Roles roles = comm::make_roles(options, world());
  const auto spec = model::describe(test::tiny_shape(test::Tied::no), model::HeadKind::language);
  learn::Trainer trainer(options, roles, {spec}, {at::kCPU}, machine::MemoryCheck{}, 1);
  machine::ThreadPlan threads;
  threads.trainer.count = 2 + rank;
  threads.generator.count = 7;
  report::IterationMetrics metrics;
  add_thread_metrics(world(), threads, rank == world().size() - 1 ? &trainer : nullptr, nullptr,
                     metrics);
  EXPECT_EQ(metrics.threads.at("trainer"), 1 + world().size()) << "the last rank's alone";
  EXPECT_EQ(metrics.threads.size(), 1u) << "it has learned nothing yet, and nobody generates";
  report::IterationMetrics of_all;
  add_thread_metrics(world(), threads, &trainer, nullptr, of_all);
  EXPECT_EQ(of_all.threads.at("trainer"), 2);
}

TEST(SyncMetrics, AreThoseThatTheSyncHas) {
  report::IterationMetrics metrics;
  add_sync_metrics({.version = 3, .weights = 1000, .seconds = 2}, metrics);
  EXPECT_TRUE(metrics.weight_sync.empty()) << "nothing was copied";
  weightsync::SyncTotals local{.weights = 4'000'000'000, .local = 8, .seconds = 2, .stall = 0.5};
  add_sync_metrics(local, metrics);
  EXPECT_EQ(metrics.weight_sync.at("bytes"), 4e9);
  EXPECT_EQ(metrics.weight_sync.at("gb_per_second"), 2);
  EXPECT_EQ(metrics.weight_sync.at("stall"), 0.5);
  EXPECT_EQ(metrics.weight_sync.at("copied_bytes"), 8);
  for (const char* name : {"gathered_bytes", "over_bound", "sent_share", "changed_head"})
    EXPECT_FALSE(metrics.weight_sync.contains(name)) << name;
  const weightsync::SyncTotals wide{.weights = 1000,
                                    .network = 300,
                                    .busiest_node = 200,
                                    .busiest_rank = 150,
                                    .bound = 100,
                                    .in_node = 400,
                                    .in_place = 50,
                                    .local = 25,
                                    .gathered = 12,
                                    .sent = 30,
                                    .full = 120,
                                    .messages = 9,
                                    .seconds = 1,
                                    .changed = {{"embedding", 0.5}, {"head", 0.125}}};
  add_sync_metrics(wide, metrics);
  const std::map<std::string, double> wanted{{"network_bytes", 300},  {"busiest_node_bytes", 200},
                                             {"node_bytes", 400},     {"in_place_bytes", 50},
                                             {"copied_bytes", 25},    {"gathered_bytes", 12},
                                             {"messages", 9},         {"over_bound", 1.5},
                                             {"sent_share", 0.25},    {"changed_embedding", 0.5},
                                             {"changed_head", 0.125}, {"seconds", 1}};
  for (const auto& [name, value] : wanted) EXPECT_EQ(metrics.weight_sync.at(name), value) << name;
}

}  // namespace
}  // namespace trireme::driver
