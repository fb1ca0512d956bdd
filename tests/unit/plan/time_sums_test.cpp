// The time model on figures that are worked out by hand: its formulas as docs/dev and the header
// say them, without the code.
#include <gtest/gtest.h>

#include "small_jobs.hpp"
#include "trireme/plan/time_model.hpp"

namespace trireme::test {
namespace {

plan::Machine slow() {
  return {.name = "slow",
          .device_bytes = 1000,
          .flops = 100,
          .memory_speed = 10,
          .node_link = 20,
          .network = 5};
}
constexpr plan::ModelWork tiny{
    .parameters = 50, .layers = 2, .hidden = 4, .attention = 4, .kv_bytes = 8};

plan::TrainingWork work(int ranks, bool recompute = true) {
  return {.model = tiny,
          .length = 10,
          .tokens = 3,
          .ranks = ranks,
          .per_node = 8,
          .recompute = recompute};
}

// Half of the blocks, of which a quarter's weights: backward goes through half, the optimizer and
// gradients on their way have a quarter.
TEST(TimeSums, CountWhatIsTrained) {
  plan::TrainingWork part = work(1);
  part.model.trainable = 0.25;
  part.model.backward = {.inputs = 0.5, .weights = 0.25};
  EXPECT_DOUBLE_EQ(plan::pass_seconds(slow(), part), (1 + 2 * 0.5 + 0.25) * 420 * 3 / 59);
  EXPECT_DOUBLE_EQ(plan::optimizer_seconds(slow(), part.model, 4), 0.25 * 28 * 50.0 / 4 / 10);
  const auto several = [](bool trained) {
    plan::TrainingWork one = work(4);
    one.tokens = 0;
    if (!trained) one.model.trainable = one.model.backward.inputs = one.model.backward.weights = 0;
    return plan::pass_seconds(slow(), one);
  };
  EXPECT_LT(several(false), several(true));
  EXPECT_DOUBLE_EQ(plan::forward_seconds(slow(), part), plan::forward_seconds(slow(), work(1)));
}

// (2 x 50 + 4 x 2 x 4 x 10) operations for each of 3 tokens.
TEST(TimeSums, OfOneRankAreItsOperations) {
  constexpr double once = 420 * 3;
  EXPECT_DOUBLE_EQ(plan::forward_seconds(slow(), work(1)), once / 59);
  EXPECT_DOUBLE_EQ(plan::forward_seconds(slow(), work(1, false)), once / 59)
      << "one pass keeps nothing";
  EXPECT_DOUBLE_EQ(plan::pass_seconds(slow(), work(1)), 4 * once / 59);
  EXPECT_DOUBLE_EQ(plan::pass_seconds(slow(), work(1, false)), 3 * once / 50);
  EXPECT_DOUBLE_EQ(plan::optimizer_seconds(slow(), tiny, 4), 28 * 50.0 / 4 / 10);
}

// Half of the shorter of compute and communication is exposed.
TEST(TimeSums, HideSumsOverCopiesBehindAPass) {
  plan::TrainingWork last = work(1);
  const double compute = 4 * 420.0 * 3 / 59;
  last.messages = compute / 4;
  EXPECT_DOUBLE_EQ(plan::pass_seconds(slow(), last), compute + compute / 8);
  last.messages = 2 * compute;
  EXPECT_DOUBLE_EQ(plan::pass_seconds(slow(), last), 2 * compute + compute / 2);
}

TEST(TimeSums, OfAnOptimizerWhoseStateLiesOnTheHostItsCopies) {
  plan::Machine machine = slow();
  machine.host_link = 2;
  EXPECT_DOUBLE_EQ(plan::optimizer_seconds(machine, tiny, 4, true),
                   28 * 50.0 / 4 / 10 + 24 * 50.0 / 4 / 1.6);
  EXPECT_DOUBLE_EQ(plan::optimizer_seconds(machine, tiny, 4, false), 28 * 50.0 / 4 / 10);
}

TEST(TimeSums, HalfOfTheShorterOfWorkAndExchangeShows) {
  // Two ranks of a node exchange half of 2 x 50 bytes over 16 bytes/s, with a latency for each of
  // three stages.
  const double near = 50.0 / 16 + 4e-6 * 3, far = 100.0 * 15 / 16 / 16 + 4e-6 * 15 * 3;
  EXPECT_DOUBLE_EQ(plan::forward_seconds(slow(), work(2)), 1260.0 / 59 + near / 2);
  EXPECT_DOUBLE_EQ(plan::forward_seconds(slow(), work(16)), 1260.0 / 59 + far / 2)
      << "the node's links, which are slower than eight networks";
  plan::Machine behind_a_wire = slow();
  behind_a_wire.network = 0.01;
  const double wire = 100.0 * 15 / 16 / (0.08 * 0.8) + 4e-6 * 15 * 3;
  EXPECT_DOUBLE_EQ(plan::forward_seconds(behind_a_wire, work(16)), wire + 1260.0 / 59 / 2);
  EXPECT_DOUBLE_EQ(plan::forward_seconds(behind_a_wire, work(8)),
                   plan::forward_seconds(slow(), work(8)))
      << "inside a node no network";
}

TEST(TimeSums, OfGenerationStepByStep) {
  plan::GenerationWork generates{
      .model = tiny, .input = 10, .output = 20, .cache_bytes = 8 * (10 + 10) * 5};
  const auto step = [](double batch, double context, double coming) {
    return 50 * 2 / 8.0 + 2 * 50 * batch / 60 + batch * context * 8 / 8.0 +
           coming * (100 + 2 * 2 * 4 * 10) / 60;
  };
  const plan::Generation full = plan::generation(slow(), generates);
  EXPECT_DOUBLE_EQ(full.batch, 5);
  EXPECT_DOUBLE_EQ(full.step, step(5, 20, 2.5));
  EXPECT_DOUBLE_EQ(full.tokens_per_second, 5 / step(5, 20, 2.5));
  // Ten sequences in batches of five, then the longest one alone.
  EXPECT_DOUBLE_EQ(plan::rollout_seconds(slow(), generates, 10, 25),
                   40 * step(5, 20, 2.5) + 5 * step(1, 35, 0));
  EXPECT_DOUBLE_EQ(plan::rollout_seconds(slow(), generates, 2, 20), 20 * step(2, 20, 1))
      << "fewer than the batch";
  generates.max_batch = 3;
  EXPECT_DOUBLE_EQ(plan::generation(slow(), generates).batch, 3);
  generates.cache_bytes = 1;
  EXPECT_DOUBLE_EQ(plan::generation(slow(), generates).batch, 1) << "one sequence always runs";
  generates.cache_bytes = 0;
  EXPECT_DOUBLE_EQ(plan::generation(slow(), generates).batch, 1) << "weights that leave no cache";
}

TEST(TimeSums, OfASyncTheSlowerSideCounts) {
  EXPECT_DOUBLE_EQ(plan::sync_seconds(slow(), 100, 4, 2, 8), 25 / 4.0) << "four trainers send";
  EXPECT_DOUBLE_EQ(plan::sync_seconds(slow(), 100, 64, 2, 8), 12.5 / 4)
      << "a node of eight receives";
  EXPECT_DOUBLE_EQ(plan::sync_seconds(slow(), 100, 64, 16, 8), 6.25 / 4)
      << "a replica of sixteen receives";
}

TEST(TimeSums, OfASyncFromGpuToGpuBytesCrossTheLinkThatIsSlowest) {
  const auto seconds = [](double sent, double network, double link, double packed) {
    const double moves = std::max(sent / 4, std::max(network / 4, link / 16)),
                 copies = 2 * packed / 8;
    return std::max(moves, copies) + plan::overlap_loss * std::min(moves, copies);
  };
  const auto sync = [](const plan::DeviceSync& how) {
    return plan::device_sync_seconds(slow(), 160, how);
  };
  EXPECT_DOUBLE_EQ(sync({.trainers = 4, .tensor_parallel = 2, .replicas = 2}),
                   seconds(0, 0, 2 * 40, 80 + 80))
      << "a node: each trainer sends its shard to two replicas";
  const plan::DeviceSync far{.trainers = 4,
                             .tensor_parallel = 2,
                             .replicas = 8,
                             .trainer_nodes = 2,
                             .generator_nodes = 2,
                             .one_node = false};
  EXPECT_DOUBLE_EQ(sync(far), seconds(2 * 40, 160 / 8.0, 80 - 20, 80 + 80))
      << "to two nodes, that pass it on";
  plan::DeviceSync relay = far;
  relay.generator_nodes = 4;
  EXPECT_DOUBLE_EQ(sync(relay), seconds(40, 160 / 4.0, 80 - 40, 40 + 80)) << "once";
}

TEST(TimeSums, OfASyncByGathersWholeWeightsComeToEachRank) {
  const double gathers = 160 * 3 / 4.0 / 16 + 4 * 3 * plan::collective_latency, copies = 160 / 8.0;
  EXPECT_DOUBLE_EQ(plan::gathered_sync_seconds(slow(), 160, 4, 4, 2, 8),
                   copies + plan::overlap_loss * gathers);
}

// 64 sequences in steps of 16: four steps of actor and critic, which have about as many elements.
TEST(IterationTime, HasTheCopiesOfAnOffloadedOptimizerAndTheShareOfBlocksThatAreKept) {
  config::Options options;
  options.data.max_len = 512;
  options.rollout.batch_size = 64;
  options.train.batch_size = 16;
  const auto timed = [&] {
    return plan::iteration_time(
        SmallJob(options, small_shape(4, 4, 2), 1, 8, *plan::known_machine("h100")).job());
  };
  const plan::IterationTime plain = timed();
  options.train.optimizer_offload = true;
  const plan::IterationTime copied = timed();
  const SmallJob job(options, small_shape(4, 4, 2), 1, 8, *plan::known_machine("h100"));
  const auto parameters =
      static_cast<double>(plan::elements(job.models.actor) + plan::elements(*job.models.critic));
  EXPECT_NEAR(copied.train - plain.train, 4 * 24 * parameters / 8 / (64e9 * 0.8),
              1e-6 * plain.train);
  EXPECT_DOUBLE_EQ(copied.rollout, plain.rollout);
  options.train.optimizer_offload = false;
  const auto with = [&](int64_t recompute) {
    options.train.recompute = recompute;
    return timed().train;
  };
  EXPECT_DOUBLE_EQ(with(4), plain.train);
  EXPECT_DOUBLE_EQ(with(9), plain.train);
  EXPECT_LT(with(0), plain.train);
  EXPECT_NEAR(with(1), 0.75 * with(0) + 0.25 * plain.train, 1e-9 * plain.train)
      << "one block of four";
}

TEST(IterationTime, ARewardModelsOwnBudgetCounts) {
  config::Options options;
  options.data.max_len = 512;
  options.rollout.batch_size = 64;
  config::RewardSource source;
  source.kind = config::RewardKind::model;
  options.reward.source = {source};
  const auto timed = [&](int64_t tokens) {
    options.reward.source.front().batch_tokens = tokens;
    SmallJob job(options, small_shape(2, 4, 2), 1, 8, *plan::known_machine("h100"));
    job.models.reward_models = {*job.models.critic};
    return plan::iteration_time(job.job()).reward;
  };
  EXPECT_GT(timed(512), timed(0)) << "more passes of fewer tokens, each with its latencies";
}

TEST(IterationTime, IsTheSumOfItsPhasesOrTheLongerOfTwo) {
  config::Options options;
  options.data.max_len = 512;
  options.rollout.batch_size = 64;
  options.train.batch_size = 16;
  const auto timed = [&](int nodes) {
    return plan::iteration_time(
        SmallJob(options, small_shape(2, 4, 2), nodes, 8, *plan::known_machine("h100")).job());
  };
  const auto sum = [](const plan::IterationTime& t) {
    return t.rollout + t.reward + t.log_probs + t.train + t.sync;
  };
  const plan::IterationTime together = timed(1);
  EXPECT_DOUBLE_EQ(together.total, sum(together));
  EXPECT_DOUBLE_EQ(together.tokens_per_second, 64 * 512 / together.total);
  for (const double phase :
       {together.rollout, together.reward, together.log_probs, together.train, together.sync})
    EXPECT_GT(phase, 0);
  options.train.max_epochs = 3;
  EXPECT_DOUBLE_EQ(timed(1).train, 3 * together.train);
  options.train.max_epochs = 1;
  options.ranks.trainer = "4";
  options.ranks.generator = "4";
  const plan::IterationTime turns = timed(1);
  EXPECT_DOUBLE_EQ(turns.total, sum(turns));
  options.train.async_depth = 1;
  const plan::IterationTime ahead = timed(1);
  EXPECT_DOUBLE_EQ(ahead.total, ahead.reward + ahead.sync +
                                    std::max(ahead.rollout, ahead.log_probs + ahead.train));
  EXPECT_LE(ahead.total, turns.total);
}

}  // namespace
}  // namespace trireme::test
