// What a sharded model holds is what `plan` says, byte for byte: all exchanges, trained, trained in
// part and frozen, with and without an average.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "support/world.hpp"
#include "tiny_model.hpp"
#include "trireme/plan/model_bytes.hpp"
#include "unit/plan/layouts.hpp"

namespace trireme::test {
namespace {

enum class Trained : uint8_t { all, some, stage, none };

model::ModelSpec spec_of(Tied tied, model::HeadKind head, Trained trained) {
  model::ModelSpec spec = model::describe(tiny_shape(tied), head);
  if (trained == Trained::none) return model::frozen(spec);
  if (trained == Trained::some)
    model::freeze(spec, {"model.embed_tokens.*", "*norm.weight", "*.1.*_proj.weight"}, "freeze");
  if (trained == Trained::stage)
    model::freeze(spec, {"model.embed_tokens.*", "model.layers.{0..1}.*", "model.norm.weight"},
                  "freeze");
  return spec;
}

struct PlannedRun {
  Tied tied;
  model::HeadKind head;
  config::DType compute;
  Trained training;
  comm::ExchangeKind exchange;
  config::DType reduce = config::DType::f32;
  bool reduce_once = false;
};

const std::map<comm::ExchangeKind, plan::Exchange> planned_as{
    {comm::ExchangeKind::windows, plan::Exchange::windows},
    {comm::ExchangeKind::mpi_ring, plan::Exchange::host_ring}};

void expect_planned_bytes(const PlannedRun& s) {
  const auto spec = spec_of(s.tied, s.head, s.training);
  const comm::CommView& ranks = world();
  zero::ShardedModelOptions options;
  options.compute = s.compute;
  options.exchange = s.exchange;
  options.reduce = s.reduce;
  options.reduce_once = s.reduce_once;
  zero::ShardedModel model(spec, ranks, std::nullopt, at::kCPU, options);
  const bool trained = s.training != Trained::none;
  if (trained) model.enable_average(0.9);
  const auto want = plan::sharded_model_bytes(
      layout(spec), config::bytes_per_element(s.compute), trained,
      {planned_as.at(s.exchange), ranks.size(), comm::discover(ranks).local_size,
       config::bytes_per_element(s.reduce)});
  const zero::MemoryUse got = model.memory();
  EXPECT_EQ(got.weights, want.weights_own + want.weights_ring);
  EXPECT_EQ(got.exchange, want.gradient_slots + want.receive);
  EXPECT_EQ(got.master, want.master);
  EXPECT_EQ(got.gradients, want.gradients);
  EXPECT_EQ(got.moments, want.moments);
  EXPECT_EQ(got.average, want.average);
  EXPECT_EQ(got.sums,
            s.reduce_once && trained ? plan::gradient_sum_bytes(layout(spec), ranks.size()) : 0);
}

TEST(MemoryOfAShardedModel, IsWhatPlanSays) {
  for (const Tied tied : {Tied::no, Tied::yes}) {
    for (const auto head : {model::HeadKind::language, model::HeadKind::score}) {
      for (const auto compute : {config::DType::f32, config::DType::bf16}) {
        for (const auto training : {Trained::none, Trained::some, Trained::stage, Trained::all}) {
          for (const auto exchange : exchanges_here()) {
            SCOPED_TRACE(testing::Message()
                         << "tied " << static_cast<int>(tied) << " head " << static_cast<int>(head)
                         << " type " << config::to_string(compute) << " training "
                         << static_cast<int>(training) << " exchange "
                         << static_cast<int>(exchange));
            expect_planned_bytes({tied, head, compute, training, exchange});
            expect_planned_bytes(
                {tied, head, compute, training, exchange, config::DType::bf16, true});
          }
        }
      }
    }
  }
}

// Models that run one after the other: one ring, as large as the largest.
TEST(MemoryOfAShardedModel, WithOneRingForAll) {
  const auto actor = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  const auto critic = model::describe(tiny_shape(Tied::no), model::HeadKind::score);
  const auto rings = std::make_shared<comm::RingMemory>();
  const comm::CommView& ranks = world();
  const auto planned = [&](const model::ModelSpec& spec) {
    return plan::sharded_model_bytes(layout(spec), 2, false,
                                     {plan::Exchange::host_ring, ranks.size()});
  };
  const auto make = [&](const model::ModelSpec& spec) {
    zero::ShardedModelOptions options;
    options.exchange = comm::ExchangeKind::mpi_ring;
    options.rings = rings;
    return zero::ShardedModel(spec, ranks, std::nullopt, at::kCPU, options);
  };
  const auto reference = make(model::frozen(actor));
  EXPECT_EQ(rings->bytes(), planned(model::frozen(actor)).weights_ring);
  const auto second = make(critic);
  const auto first = make(actor);
  const auto want = planned(actor);
  EXPECT_EQ(rings->bytes(comm::RingMemory::weights), want.weights_ring);
  EXPECT_EQ(rings->bytes(comm::RingMemory::gradients), want.gradient_slots);
  EXPECT_EQ(rings->bytes(comm::RingMemory::received), want.receive);
  EXPECT_EQ(first.memory().weights, want.weights_own);
  EXPECT_EQ(first.memory().exchange, 0);
  EXPECT_EQ(second.memory().weights, planned(critic).weights_own);
}

// Of a critic that is an adapter on the actor's base: its own parameters.
TEST(MemoryOfAShardedModel, OnTheBaseOfAnother) {
  const comm::CommView& ranks = world();
  model::Adapter adapter;
  adapter.rank = 2;
  adapter.alpha = 4;
  adapter.targets = {"q_proj", "down_proj"};
  for (const Tied tied : {Tied::no, Tied::yes}) {
    const auto actor = model::with_adapter(
        model::describe(tiny_shape(tied), model::HeadKind::language), adapter, "actor.lora");
    adapter.modules_to_save = {"score"};
    const auto critic = model::with_adapter(
        model::describe(tiny_shape(tied), model::HeadKind::score), adapter, "critic.lora");
    adapter.modules_to_save.clear();
    for (const auto exchange : exchanges_here()) {
      zero::ShardedModelOptions options;
      options.exchange = exchange;
      const zero::ShardedModel base(actor, ranks, std::nullopt, at::kCPU, options);
      options.base = &base;
      const zero::ShardedModel model(critic, ranks, std::nullopt, at::kCPU, options);
      const auto want = plan::sharded_model_bytes(
          layout(critic, &actor), 2, false,
          {planned_as.at(exchange), ranks.size(), comm::discover(ranks).local_size});
      EXPECT_EQ(model.memory().weights, want.weights_own + want.weights_ring);
      EXPECT_EQ(model.memory().exchange, want.gradient_slots + want.receive);
      EXPECT_EQ(model.memory().moments, want.moments);
      EXPECT_LT(4 * model.memory().weights, base.memory().weights);
    }
  }
}

}  // namespace
}  // namespace trireme::test
