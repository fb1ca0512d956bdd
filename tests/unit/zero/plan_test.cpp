// What a sharded model holds is what `plan` says, byte for byte: both exchanges, trained and
// frozen, with and without an average.
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

struct PlannedRun {
  Tied tied;
  model::HeadKind head;
  config::DType compute;
  zero::Training training;
  comm::ExchangeKind exchange;
  config::DType reduce = config::DType::f32;
  bool reduce_once = false;
};

const std::map<comm::ExchangeKind, plan::Exchange> planned_as{
    {comm::ExchangeKind::shared_window, plan::Exchange::window},
    {comm::ExchangeKind::node_windows, plan::Exchange::node_windows},
    {comm::ExchangeKind::mpi_ring, plan::Exchange::host_ring}};

void expect_planned_bytes(const PlannedRun& s) {
  const auto spec = model::describe(tiny_shape(s.tied), s.head);
  const comm::CommView& ranks = world();
  zero::ShardedModelOptions options;
  options.compute = s.compute;
  options.training = s.training;
  options.exchange = s.exchange;
  options.reduce = s.reduce;
  options.reduce_once = s.reduce_once;
  zero::ShardedModel model(spec, ranks, std::nullopt, at::kCPU, options);
  const bool trained = s.training == zero::Training::trainable;
  if (trained) model.enable_average(0.9);
  const auto want = plan::sharded_model_bytes(
      layout(spec), ranks.size(), config::bytes_per_element(s.compute),
      trained ? plan::Training::trainable : plan::Training::frozen, trained,
      planned_as.at(s.exchange), comm::discover(ranks).local_size,
      config::bytes_per_element(s.reduce));
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
        for (const auto training : {zero::Training::frozen, zero::Training::trainable}) {
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
  const auto planned = [&](const model::ModelSpec& spec, plan::Training training) {
    return plan::sharded_model_bytes(layout(spec), ranks.size(), 2, training, false,
                                     plan::Exchange::host_ring);
  };
  const auto make = [&](const model::ModelSpec& spec, zero::Training training) {
    zero::ShardedModelOptions options;
    options.training = training;
    options.exchange = comm::ExchangeKind::mpi_ring;
    options.rings = rings;
    return zero::ShardedModel(spec, ranks, std::nullopt, at::kCPU, options);
  };
  const auto frozen = make(actor, zero::Training::frozen);
  EXPECT_EQ(rings->bytes(), planned(actor, plan::Training::frozen).weights_ring);
  const auto second = make(critic, zero::Training::trainable);
  const auto first = make(actor, zero::Training::trainable);
  const auto want = planned(actor, plan::Training::trainable);
  EXPECT_EQ(rings->bytes(comm::RingMemory::weights), want.weights_ring);
  EXPECT_EQ(rings->bytes(comm::RingMemory::gradients), want.gradient_slots);
  EXPECT_EQ(rings->bytes(comm::RingMemory::received), want.receive);
  EXPECT_EQ(first.memory().weights, want.weights_own);
  EXPECT_EQ(first.memory().exchange, 0);
  EXPECT_EQ(second.memory().weights, planned(critic, plan::Training::trainable).weights_own);
}

}  // namespace
}  // namespace trireme::test
