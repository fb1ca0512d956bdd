// What ranks that work together hold in common, in the ledger: weights that a generator reads where
// its trainer has them, and NCCL's communicators.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "small_jobs.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/decisions.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::test {
namespace {

constexpr int64_t mib = int64_t{1} << 20;
constexpr int64_t own_communicator = 700 * mib,
                  split_communicator = 258 * mib;  // a communicator, and one more of the same ranks

plan::Machine host() { return {.name = "host", .host_bytes = int64_t{64} << 30}; }
plan::Machine gpu() {
  return {.name = "gpu", .device_bytes = int64_t{80} << 30, .host_bytes = int64_t{64} << 30};
}

int64_t bytes_of(const plan::Ledger& ledger, const std::string& owner, const std::string& what) {
  int64_t sum = 0;
  for (const auto& entry : ledger.entries())
    sum += entry.owner == owner && entry.what == what ? entry.bytes : 0;
  return sum;
}

SmallJob job_of(const std::vector<std::string>& overrides, int nodes, int per_node,
                plan::Machine machine) {
  return {config::parse_deck("", "deck", overrides), small_shape(2, 4, 2), nodes, per_node,
          std::move(machine)};
}

struct Where {
  const char* what;
  std::vector<std::string> overrides;
  int nodes;
  plan::Machine machine;
  bool own;  // weights of the generator
};

// Eight ranks on two nodes: a shard group of four cuts the frozen models, too, unless it does not
// divide the ranks that have them.
TEST(FrozenModels, ObeyTheShardGroup) {
  config::ModelShape shape = small_shape(2, 4, 2);
  shape.hidden = 512;
  shape.head_dim = 128;
  shape.ffn = 1024;
  shape.vocab = 4096;
  const auto job_of = [&](const std::vector<std::string>& overrides, int nodes, int per_node,
                          plan::Machine machine) {
    return SmallJob(config::parse_deck("", "deck", overrides), shape, nodes, per_node,
                    std::move(machine));
  };
  const auto reference = [&](const std::vector<std::string>& overrides, plan::Machine machine,
                             int rank = 0) {
    return bytes_of(plan::memory_of_rank(job_of(overrides, 2, 4, std::move(machine)).job(), rank),
                    "reference", "own weight slices");
  };
  const plan::ModelLayout model = job_of({}, 2, 4, gpu()).models.actor;
  const auto own = [&](int ranks) {
    return plan::sharded_model_bytes(plan::frozen(model), 2, false,
                                     {plan::Exchange::device_ring, ranks})
        .weights_own;
  };
  ASSERT_GT(own(4), own(8));
  EXPECT_EQ(reference({}, gpu()), own(8));
  for (const int rank : {0, 5}) EXPECT_EQ(reference({"train.shard_group=4"}, gpu(), rank), own(4));
  EXPECT_EQ(reference({"train.shard_group=4", "ranks.trainer=0-3", "ranks.generator=0-7",
                       "ranks.reward=0-5"},
                      gpu()),
            own(6))
      << "four do not divide six";
  EXPECT_EQ(reference({"train.shard_group=2", "ranks.trainer=0-3", "ranks.generator=0-7",
                       "ranks.reward=0-5"},
                      gpu(), 5),
            own(2));
  // On hosts a group inside a node has a window.
  EXPECT_EQ(reference({"train.shard_group=4"}, host()), 0);
  EXPECT_GT(bytes_of(plan::memory_of_rank(job_of({"train.shard_group=4"}, 2, 4, host()).job(), 7),
                     "reference", "weights, share of the node's"),
            0);
  const plan::Fit fit = plan::fit(job_of({"train.shard_group=2", "ranks.trainer=0-3",
                                          "ranks.generator=0-7", "ranks.reward=2-7"},
                                         2, 4, gpu())
                                      .job());
  for (int rank = 0; rank < 8; ++rank) {
    const SmallJob job = job_of(
        {"train.shard_group=2", "ranks.trainer=0-3", "ranks.generator=0-7", "ranks.reward=2-7"}, 2,
        4, gpu());
    EXPECT_LE(plan::memory_of_rank(job.job(), rank).peak(plan::Place::device), fit.device.peak)
        << rank;
  }
}

TEST(GeneratorWeights, AreCountedWhereTheGeneratorHasThem) {
  for (const Where& place :
       {Where{"one node", {}, 1, host(), false},
        Where{
            "two nodes, each with a copy of the model", {"train.shard_group=4"}, 2, host(), false},
        Where{"two nodes that share one", {}, 2, host(), true},
        Where{"a group on two nodes", {"train.shard_group=8"}, 4, host(), true},
        Where{"slices", {"generate.tensor_parallel=2"}, 1, host(), true},
        Where{"no shared memory", {"weightsync.shared_memory=never"}, 1, host(), true},
        Where{"a generator that does not train",
              {"ranks.trainer=0-2", "ranks.generator=0-3", "ranks.reward=0-3"},
              1,
              host(),
              true},
        Where{"a GPU", {}, 1, gpu(), true}}) {
    const SmallJob job = job_of(place.overrides, place.nodes, 4, place.machine);
    const int64_t whole = plan::generator_weight_bytes(job.models.slices, 0, 2);
    const plan::Ledger ledger = plan::memory_of_rank(job.job(), 0);
    EXPECT_EQ(bytes_of(ledger, "generator", "weights"), place.own ? whole : 0) << place.what;
    if (place.own) continue;
    EXPECT_EQ(bytes_of(ledger, "weight sync", "rings between ranks of the node"), 0) << place.what;
    EXPECT_EQ(bytes_of(ledger, "weight sync", "buckets of messages"), 0) << place.what;
  }
}

TEST(GeneratorWeights, LeaveADeviceToTrainersWhereTheyTakeTurns) {
  const auto stays = [](std::vector<std::string> overrides, int nodes, plan::Machine machine) {
    overrides.push_back("generate.tensor_parallel=2");
    const plan::Ledger ledger =
        plan::memory_of_rank(job_of(overrides, nodes, 4, std::move(machine)).job(), 0);
    for (const auto& entry : ledger.entries()) {
      if (entry.owner == "generator" && entry.what == "weights")
        return (entry.phases & plan::phase_bit(plan::Phase::backward)) != 0;
    }
    return false;
  };
  EXPECT_FALSE(stays({}, 1, gpu()));
  EXPECT_FALSE(stays({}, 2, gpu()));
  EXPECT_FALSE(stays({"weightsync.shared_memory=never"}, 1, gpu())) << "no deltas of a GPU's";
  EXPECT_TRUE(stays({"train.async_depth=1"}, 1, gpu())) << "they write while trainers learn";
  EXPECT_TRUE(stays({}, 1, host()));
  const plan::Ledger ledger = plan::memory_of_rank(job_of({}, 1, 4, gpu()).job(), 0);
  for (const auto& entry : ledger.entries()) {
    if (entry.owner != "generator" || entry.what != "weights") continue;
    const auto there = [&](plan::Phase phase) {
      return (entry.phases & plan::phase_bit(phase)) != 0;
    };
    for (const auto phase : {plan::Phase::start, plan::Phase::rollout, plan::Phase::reward,
                             plan::Phase::sync, plan::Phase::save})
      EXPECT_TRUE(there(phase));
    for (const auto phase :
         {plan::Phase::log_probs, plan::Phase::forward, plan::Phase::head, plan::Phase::step})
      EXPECT_FALSE(there(phase));
  }
}

TEST(SyncWays, FollowRolesDevicesAndTheDeck) {
  using enum plan::SyncWay;
  const config::RoleMap together{{0, 1, 2, 3}, {1, 2}, {0}}, apart{{0, 1}, {2, 3}, {0}},
      overlap{{2, 0}, {2, 1}, {3}};
  config::Options options;
  EXPECT_EQ(plan::sync_way(options, together, true, false), gathers);
  EXPECT_EQ(plan::sync_way(options, together, true, true), gathers);
  EXPECT_EQ(plan::sync_way(options, together, false, false), buckets);
  for (const auto& roles : {apart, overlap}) {
    EXPECT_EQ(plan::sync_way(options, roles, true, false), messages);
    EXPECT_EQ(plan::sync_way(options, roles, true, true), buckets);
    EXPECT_EQ(plan::sync_way(options, roles, false, false), buckets);
  }
  EXPECT_EQ(plan::sync_ranks(overlap), (std::vector<int>{0, 1, 2}));
  for (const auto shared : {config::SharedMemory::buckets, config::SharedMemory::never}) {
    options.weightsync.shared_memory = shared;
    EXPECT_EQ(plan::sync_way(options, together, true, false), buckets);
    EXPECT_EQ(plan::sync_way(options, apart, true, false), buckets);
  }
}

TEST(Communicators, OfTheSameRanksShareTheirConnections) {
  const auto nccl = [](const std::vector<std::string>& overrides, int nodes, int per_node = 4) {
    return bytes_of(plan::memory_of_rank(job_of(overrides, nodes, per_node, gpu()).job(), 0),
                    "process", "NCCL communicators");
  };
  // Actor, critic and reference, all of all ranks.
  EXPECT_EQ(nccl({}, 1), own_communicator + 2 * split_communicator);
  // What the kernels of a symmetric window send through: 2 MiB of two ranks, and a little.
  constexpr int64_t window = int64_t{4} << 20;
  EXPECT_EQ(nccl({"generate.tensor_parallel=2"}, 1),
            2 * own_communicator + 2 * split_communicator + window)
      << "replicas of half a node";
  EXPECT_EQ(nccl({"generate.tensor_parallel=2", "generate.fused_operators=false"}, 1),
            2 * own_communicator + 2 * split_communicator);
  EXPECT_EQ(nccl({"generate.tensor_parallel=2"}, 2, 1), own_communicator + 3 * split_communicator)
      << "of two nodes, whose GPUs do not see each other's memory";
  // A group of four, for actor, critic and reference, and what joins it with the other, twice.
  EXPECT_EQ(nccl({"train.shard_group=4"}, 2), 2 * own_communicator + 3 * split_communicator);
  EXPECT_EQ(nccl({"train.shard_group=4", "generate.tensor_parallel=2"}, 2),
            3 * own_communicator + 3 * split_communicator + window);
  EXPECT_EQ(
      nccl({"train.shard_group=4", "ranks.trainer=0-7", "ranks.generator=0-7", "ranks.reward=0-5"},
           2),
      3 * own_communicator + 2 * split_communicator)
      << "a reference of six ranks, which four do not divide";
  const std::vector<std::string> apart{"ranks.trainer=0-1", "ranks.reward=2-3",
                                       "ranks.generator=2-3"};
  EXPECT_EQ(nccl(apart, 1), 2 * own_communicator + split_communicator)
      << "a trainer has the actor's and the critic's, and that to the generators";
  auto buckets = apart;
  buckets.emplace_back("weightsync.shared_memory=buckets");
  EXPECT_EQ(nccl(buckets, 1), own_communicator + split_communicator) << "by the host";
  auto taught = apart;
  taught.insert(taught.end(), {"algo.distill.coef=1", "algo.distill.policy=distribution"});
  EXPECT_EQ(nccl(taught, 1), 2 * own_communicator + 2 * split_communicator)
      << "and that of a teacher in the steps";
}

// Of products of decoding: rows of the largest recorded step.
TEST(SumWindows, HoldTheProductsOfRecordedSteps) {
  const auto window = [](const std::vector<std::string>& overrides) {
    return bytes_of(plan::memory_of_rank(job_of(overrides, 1, 4, gpu()).job(), 0), "generator",
                    "window of sums over the replica's ranks");
  };
  constexpr int64_t granule = int64_t{2} << 20;
  EXPECT_EQ(window({}), 0) << "one rank a replica";
  EXPECT_EQ(window({"generate.tensor_parallel=2"}), granule);
  // 90,000 rows of 8 bf16 values are 1.44 MB, 150,000 2.4.
  EXPECT_EQ(window({"generate.tensor_parallel=2", "generate.max_batch=60000"}), granule);
  EXPECT_EQ(window({"generate.tensor_parallel=2", "generate.max_batch=100000"}), 2 * granule);
}

TEST(GeneratorSteps, TakeMemoryOfTheDeviceWhileAnswersAreWritten) {
  const std::string what = "activations of a step",
                    gathered = "keys and values that a layer gathers";
  const SmallJob job = job_of(
      {"rollout.batch_size=4", "rollout.n_samples_per_prompt=1", "data.max_len=100"}, 1, 4, gpu());
  const plan::Ledger ledger = plan::memory_of_rank(job.job(), 0);
  // One sequence of 101 positions, in pages of 16: 112 rows of a block, with the keys and values
  // that attention gathered before, in bf16; logits of 10 ids.
  const auto step = [&](const plan::Ledger& of) {
    return bytes_of(of, "generator", what) + bytes_of(of, "generator", gathered) +
           bytes_of(of, "generator", "logits of a step");
  };
  EXPECT_EQ(step(ledger), 2 * 112 * (2 * 8 + 16 + 3 * 16)) << "while the gate is computed";
  EXPECT_EQ(bytes_of(ledger, "generator", gathered), 2 * 112 * 2 * 8);
  EXPECT_EQ(bytes_of(ledger, "generator", "logits of a step"), 2 * 10);
  for (const auto& entry : ledger.entries()) {
    if (entry.what != what) continue;
    EXPECT_EQ(entry.phases, plan::phase_bit(plan::Phase::rollout));
  }
  // Slices of two ranks; draws from the likeliest ids gather the logits of both, and find the mass
  // of 256 segments.
  const SmallJob slices =
      job_of({"rollout.batch_size=4", "rollout.n_samples_per_prompt=1", "data.max_len=100",
              "generate.tensor_parallel=2", "rollout.top_p=0.9"},
             1, 4, gpu());
  const plan::Ledger both = plan::memory_of_rank(slices.job(), 0);
  EXPECT_EQ(step(both), 2 * 2 * 112 * (2 * 8 + 4 * 16 / 2 + 2 * 8 / 2))
      << "while rows of a prompt attend to what is gathered, beside one that decodes";
  EXPECT_EQ(bytes_of(both, "generator", "logits of a step"), 2 * 2 * 4)
      << "this rank has 4 of the 10 ids, the other 6";
  const SmallJob whole = job_of({"rollout.batch_size=4", "rollout.n_samples_per_prompt=1",
                                 "data.max_len=100", "generate.tensor_parallel=2"},
                                1, 4, gpu());
  const std::string draws = "scratch memory of draws";
  EXPECT_EQ(bytes_of(both, "generator", draws) -
                bytes_of(plan::memory_of_rank(whole.job(), 0), "generator", draws),
            2 * (256 * 8 + 2 * 2 * 6));
  // An operator at a time keeps all that a block made.
  const SmallJob composed = job_of({"rollout.batch_size=4", "rollout.n_samples_per_prompt=1",
                                    "data.max_len=100", "generate.fused_operators=false"},
                                   1, 4, gpu());
  EXPECT_EQ(step(plan::memory_of_rank(composed.job(), 0)),
            2 * 112 * (4 * 8 + 2 * 16 + 2 * 8 + 3 * 16));
  // Prompts that share no pages: no more is gathered than a step reads, and one prompt that was
  // begun before.
  const SmallJob apart =
      job_of({"rollout.batch_size=40", "rollout.n_samples_per_prompt=1", "data.max_len=100",
              "generate.prefix_sharing=false", "generate.max_batch_tokens=200"},
             1, 4, gpu());
  EXPECT_EQ(bytes_of(plan::memory_of_rank(apart.job(), 0), "generator", gathered),
            (200 + 112) * 2 * 2 * 8);
}

}  // namespace
}  // namespace trireme::test
