// Generators have the trainers' weights after each sync, however these travel, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "driver/weight_bridge.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "trireme/plan/decisions.hpp"
#include "unit/driver/tiny_actor.hpp"

namespace trireme::driver {
namespace {

using test::world;

// All ranks' rows of a trained parameter.
at::Tensor whole_of(TinyActor& actor, size_t parameter) {
  const int64_t count = actor.model->own(parameter).elements();
  const float* values = actor.model->master(parameter).host();
  const auto all =
      world().all_gather<float>(std::span(values, static_cast<size_t>(values ? count : 0)));
  const auto& shape = actor.spec.parameters[parameter].spec.shape;
  return at::tensor(at::ArrayRef<float>(all)).reshape(shape);
}

void expect_equal_weights(TinyActor& actor, const generate::GeneratorWeights& weights) {
  for (size_t p = 0; p < actor.spec.parameters.size(); ++p) {
    EXPECT_TRUE(at::equal(weights.tensor(p), whole_of(actor, p)))
        << actor.spec.parameters[p].spec.name;
  }
}

config::Options options_with(config::SharedMemory how, bool delta) {
  config::Options options;
  options.model.dtype = config::ComputeType::fp32;
  options.weightsync.shared_memory = how;
  options.weightsync.delta = delta;
  return options;
}

TEST(WeightBridge, CopiesFollowTheTrainers) {
  for (const auto how : {config::SharedMemory::never, config::SharedMemory::buckets}) {
    for (const bool delta : {false, true}) {
      const config::Options options = options_with(how, delta);
      TinyActor actor(options, plan::sends_deltas(options, false, true));
      generate::GeneratorWeights weights(actor.spec, config::DType::f32);
      WeightBridge bridge(options, actor.roles, actor.spec, at::kCPU, false);
      for (int64_t version = 1; version <= 3; ++version) {
        if (version > 1) actor.learn(static_cast<uint64_t>(version));
        const auto counters = bridge.run(version, actor.model.get(), &weights);
        EXPECT_EQ(counters.version, version);
        EXPECT_EQ(weights.version(), version);
        EXPECT_GT(bridge.totals(counters).seconds, 0);
        expect_equal_weights(actor, weights);
      }
      EXPECT_EQ(bridge.healed(), 0);
    }
  }
}

// Frozen weights move once; what is trained moves at each sync.
TEST(WeightBridge, FrozenWeightsAreSentOnce) {
  for (const auto how : {config::SharedMemory::never, config::SharedMemory::buckets}) {
    config::Options options = options_with(how, false);
    options.actor.freeze = {"model.embed_tokens.*", "model.layers.*"};
    TinyActor actor(options);
    generate::GeneratorWeights weights(actor.spec, config::DType::f32);
    WeightBridge bridge(options, actor.roles, actor.spec, at::kCPU, false);
    std::vector<int64_t> moved;
    for (int64_t version = 1; version <= 3; ++version) {
      if (version > 1) actor.learn(static_cast<uint64_t>(version));
      const auto counters = bridge.run(version, actor.model.get(), &weights);
      moved.push_back(counters.bytes_local + counters.bytes_received);
      EXPECT_EQ(weights.version(), version);
      for (size_t p = 0; p < actor.spec.parameters.size(); ++p) {
        if (!actor.spec.parameters[p].trainable) continue;
        EXPECT_TRUE(at::equal(weights.tensor(p), whole_of(actor, p)));
      }
    }
    const int64_t bytes = int64_t{sizeof(float)};
    EXPECT_EQ(moved[0], actor.spec.elements() * bytes);
    EXPECT_EQ(moved[1], actor.spec.trainable_elements() * bytes);
    EXPECT_EQ(moved[2], moved[1]);
  }
}

// Memory of a generator that went wrong between two syncs is noticed where only changes are sent,
// and everything is sent again.
TEST(WeightBridge, MemoryThatWentWrongIsHealed) {
  const config::Options options = options_with(config::SharedMemory::never, true);
  TinyActor actor(options, plan::sends_deltas(options, false, true));
  generate::GeneratorWeights weights(actor.spec, config::DType::f32);
  WeightBridge bridge(options, actor.roles, actor.spec, at::kCPU, false);
  bridge.run(1, actor.model.get(), &weights);
  if (world().rank() == world().size() - 1) {
    for (size_t p = 0; p < actor.spec.parameters.size(); ++p) weights.tensor(p).fill_(17);
  }
  bridge.run(2, actor.model.get(), &weights);
  expect_equal_weights(actor, weights);
  EXPECT_EQ(bridge.healed(), world().size() > 1 ? 1 : 0) << "on every rank; alone it copies all";
  bridge.run(3, actor.model.get(), &weights);
  EXPECT_EQ(bridge.healed(), world().size() > 1 ? 1 : 0);
}

TEST(WeightBridge, TotalsAreThoseOfAllRanks) {
  const config::Options options = options_with(config::SharedMemory::never, false);
  TinyActor actor(options);
  generate::GeneratorWeights weights(actor.spec, config::DType::f32);
  WeightBridge bridge(options, actor.roles, actor.spec, at::kCPU, false);
  const auto counters = bridge.run(5, actor.model.get(), &weights);
  const auto totals = bridge.totals(counters);
  EXPECT_EQ(totals.version, 5);
  EXPECT_EQ(totals.weights, actor.spec.elements() * int64_t{sizeof(float)});
  EXPECT_EQ(totals.local, world().sum(counters.bytes_local));
  EXPECT_EQ(totals.seconds, world().max(counters.seconds));
  EXPECT_TRUE(totals.moved());
}

// Where all ranks share memory the generators read the trainers' weights in place: a sync moves no
// byte and is a new version all the same.
TEST(WeightBridge, WeightsInPlaceAreTheTrainersOwn) {
  const config::Options options = options_with(config::SharedMemory::automatic, true);
  TinyActor actor(options);
  const auto shared = shared_weights(options, actor.roles, actor.model.get());
  EXPECT_EQ(world().all(!shared.empty()), world().max(int32_t{!shared.empty()}) > 0)
      << "all ranks do the same";
  if (shared.empty()) GTEST_SKIP() << "these ranks share no memory";
  auto weights = generate::GeneratorWeights::aliasing(actor.spec, config::DType::f32);
  weights.alias(shared);
  WeightBridge bridge(options, actor.roles, actor.spec, at::kCPU, true);
  for (int64_t version = 1; version <= 2; ++version) {
    if (version > 1) actor.learn(7);
    const auto counters = bridge.run(version, actor.model.get(), &weights);
    EXPECT_EQ(counters.bytes_local + counters.bytes_received, 0);
    EXPECT_EQ(weights.version(), version);
    expect_equal_weights(actor, weights);
  }
}

TEST(WeightBridge, OtherDecksReadNothingInPlace) {
  const config::Options options = options_with(config::SharedMemory::buckets, true);
  TinyActor actor(options);
  EXPECT_TRUE(shared_weights(options, actor.roles, actor.model.get()).empty());
}

}  // namespace
}  // namespace trireme::driver
