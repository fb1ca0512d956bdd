// Generation by the paths of a GPU, on the made-up one: replicas of 1, 2 and 4 tensor-parallel ranks against the host's.
#include "torch/torch.hpp"

#include <gmock/gmock.h>

#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "support/world.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "unit/generate/tiny_model.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::Engine;
using generate::GeneratorWeights;
using generate::Place;

constexpr int64_t vocab = 1201;

// Four KV heads: one for each rank of the largest replica.
model::ModelSpec four_groups() {
  auto shape = tiny_spec(vocab).shape;
  shape.hidden = 64;
  shape.heads = 8;
  shape.kv_heads = 4;
  shape.head_dim = 8;
  return model::describe(shape, model::HeadKind::language);
}

generate::EngineOptions options() {
  generate::EngineOptions o;
  o.kv_bytes = int64_t{1} << 20;
  o.max_batch = 6;
  o.prefill_chunk_tokens = 30;
  o.threads = 1;
  o.backend = generate::BackendKind::torch;
  return o;
}

struct Texts {
  Results results;
  generate::EngineCounters counters;
  int64_t draws = 0;         // steps that gave tokens
  int64_t hidden_waits = 0;  // operators that wait for a GPU
};

Texts generate_on(const model::ModelSpec& spec, const GeneratorWeights& weights, const comm::CommView& replica) {
  Engine engine(spec, weights, options(), replica);
  Texts out;
  for (generate::Request& request : mixed_requests(vocab)) engine.submit(std::move(request));
  while (!engine.idle()) {
    generate::StepOutput step = engine.step();
    out.draws += !step.tokens.empty();
    for (generate::Result& result : step.finished) out.results[result.id] = std::move(result);
  }
  out.counters = engine.counters();
  out.hidden_waits = HostAsDevice::hidden_waits();
  return out;
}

Texts on_host(const model::ModelSpec& spec, DType type, const comm::CommView& replica) {
  return generate_on(spec, tiny_weights(spec, type, replica.rank(), replica.size()), replica);
}

Texts on_device(const model::ModelSpec& spec, DType type, const comm::CommView& replica, bool own_kernels = true) {
  const auto host = tiny_weights(spec, type, replica.rank(), replica.size());
  const HostAsDevice device;
  if (!own_kernels) kernels::set_device_kernels(nullptr);
  GeneratorWeights weights(spec, type, replica.rank(), replica.size(), Place::device);
  for (size_t p = 0; p < spec.parameters.size(); ++p) weights.tensor(p).copy_(host.tensor(p));
  return generate_on(spec, weights, replica);
}

class DeviceGeneration : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    fakegpu::set_delays({.seed = static_cast<unsigned>(7 + world().rank()), .legacy_us = 20, .others_us = 20});
  }
};

TEST(HostAsDevice, CountsWhatWaitsForAGpu) {
  own_device();
  const HostAsDevice device;
  const at::Tensor values = at::ones({3});
  EXPECT_EQ(HostAsDevice::hidden_waits(), 0);
  EXPECT_EQ(values.sum().item<float>(), 3);
  EXPECT_EQ(HostAsDevice::hidden_waits(), 1);
}

// One copy of a step's indices, one call of attention a layer, and one wait of the host where tokens were drawn; none that an operator hides.
TEST_P(DeviceGeneration, TheHostWaitsOnceAStep) {
  own_device();
  const auto spec = four_groups();
  const Texts texts = on_device(spec, GetParam(), world());
  EXPECT_EQ(texts.counters.device_waits, texts.draws);
  EXPECT_GE(texts.draws, texts.counters.decode_steps);
  EXPECT_EQ(texts.counters.uploads, texts.counters.steps);
  EXPECT_LE(texts.counters.attention_calls, texts.counters.steps * spec.shape.layers);
  EXPECT_GE(texts.counters.attention_calls, texts.counters.decode_steps * spec.shape.layers);
  EXPECT_EQ(texts.hidden_waits, 0);
}

// The made-up NCCL adds in the order of ranks, as ours does: same bits.
TEST_P(DeviceGeneration, SumsOnTheDeviceGiveTheTextsOfTheHost) {
  own_device();
  const auto spec = four_groups();
  const Texts want = on_host(spec, GetParam(), world()), got = on_device(spec, GetParam(), world());
  expect_same(want.results, got.results);
  expect_agreement(got.results);
  EXPECT_EQ(got.counters.sum_bytes > 0, world().size() > 1);
  EXPECT_EQ(got.counters.sum_host_bytes, 0);
  EXPECT_EQ(want.counters.sum_host_bytes, want.counters.sum_bytes);
}

TEST_P(DeviceGeneration, GivesTheTextsOfOneRank) {
  if (GetParam() == DType::bf16) GTEST_SKIP() << "partial results are rounded to bf16 before they are added";
  own_device();
  const auto spec = four_groups();
  expect_close(on_host(spec, GetParam(), {}).results, on_device(spec, GetParam(), world()).results, 2e-5);
}

TEST_P(DeviceGeneration, TheHostDrawsWhereTheKernelsForDevicesArePutAside) {
  own_device();
  const auto spec = four_groups();
  expect_same(on_host(spec, GetParam(), world()).results, on_device(spec, GetParam(), world(), false).results);
}

TEST_P(DeviceGeneration, RanksThatShareADeviceGoThroughHostMemory) {
  one_device_for_all();
  const auto spec = four_groups();
  const Texts want = on_host(spec, GetParam(), world()), got = on_device(spec, GetParam(), world());
  expect_same(want.results, got.results);
  EXPECT_EQ(got.counters.sum_host_bytes, got.counters.sum_bytes);
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceGeneration, testing::Values(DType::fp32, DType::bf16),
                         [](const auto& tested) { return tested.param == DType::fp32 ? "fp32" : "bf16"; });

}  // namespace
}  // namespace trireme::test
