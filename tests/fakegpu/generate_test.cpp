// Generation by the paths of a GPU, on the fake one: replicas of 1, 2 and 4 tensor-parallel
// ranks against the host's.
#include "torch/torch.hpp"

#include <gmock/gmock.h>

#include <algorithm>

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

// Two of them have more positions than a chunk of attention over pages has.
std::vector<generate::Request> requests() {
  std::vector<generate::Request> out = mixed_requests(vocab);
  for (const int64_t length : {120, 290}) {
    out.push_back(out.front());
    out.back().id = static_cast<uint64_t>(length);
    out.back().prompt = tiny_prompt(length, static_cast<uint64_t>(length), vocab);
  }
  return out;
}

struct Paths {
  bool fused_operators = true, paged_attention = true, graphs = true;
};

Texts generate_on(const model::ModelSpec& spec, const GeneratorWeights& weights,
                  const comm::CommView& replica, Paths paths = {}) {
  generate::EngineOptions chosen = options();
  chosen.fused_operators = paths.fused_operators;
  chosen.paged_attention = paths.paged_attention;
  chosen.graphs = paths.graphs;
  Engine engine(spec, weights, chosen, replica);
  Texts out;
  for (generate::Request& request : requests()) engine.submit(std::move(request));
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

// reference: those that draw, and operators as on the host. Fused operators are with `all` alone:
// on fibers their kernels are most of a test's time.
enum class Kernels : uint8_t {
  all,
  all_but_fused,
  all_but_graphs,
  all_but_attention,
  reference,
  none
};

Texts on_device(const model::ModelSpec& spec, DType type, const comm::CommView& replica,
                Kernels own, Graphs graphs = Graphs::work) {
  const auto host = tiny_weights(spec, type, replica.rank(), replica.size());
  const HostAsDevice device(graphs);
  if (own == Kernels::none) kernels::set_device_kernels(nullptr);
  GeneratorWeights weights(spec, type, replica.rank(), replica.size(), Place::device);
  for (size_t p = 0; p < spec.parameters.size(); ++p) weights.tensor(p).copy_(host.tensor(p));
  const bool reference = own == Kernels::reference;
  return generate_on(spec, weights, replica,
                     {.fused_operators = own == Kernels::all,
                      .paged_attention = own != Kernels::all_but_attention && !reference,
                      .graphs = own != Kernels::all_but_graphs});
}

class DeviceGeneration : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    fakegpu::set_delays(
        {.seed = static_cast<unsigned>(7 + world().rank()), .legacy_us = 20, .others_us = 20});
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

// Each request up to a draw that falls between two orders of sums: the tokens that are the same,
// with log-probs within the tolerance.
int64_t same_tokens(const Results& want, const Results& got, double tolerance) {
  int64_t same = 0;
  for (const auto& [id, a] : want) {
    const generate::Result& b = got.at(id);
    for (size_t t = 0; t < std::min(a.output_ids.size(), b.output_ids.size()) &&
                       a.output_ids[t] == b.output_ids[t];
         ++t, ++same) {
      EXPECT_NEAR(a.log_probs[t], b.log_probs[t], tolerance) << "request " << id << " token " << t;
    }
  }
  return same;
}

// One copy of a step's indices, at most one call of each attention a layer, and one wait of the
// host where tokens were drawn; none that an operator hides, but for one where a recorded step is
// compared, after one for its rehearsal.
TEST_P(DeviceGeneration, TheHostWaitsOnceAStep) {
  own_device();
  const auto spec = four_groups();
  const Texts texts = on_device(spec, GetParam(), world(), Kernels::all);
  EXPECT_EQ(texts.counters.device_waits, texts.draws + 2 * texts.counters.graphs_recorded);
  EXPECT_GE(texts.draws, texts.counters.decode_steps);
  EXPECT_EQ(texts.counters.uploads, texts.counters.steps);
  EXPECT_GE(texts.counters.paged_attention_calls, texts.counters.decode_steps * spec.shape.layers);
  EXPECT_LE(texts.counters.paged_attention_calls, texts.counters.steps * spec.shape.layers);
  EXPECT_LT(texts.counters.attention_calls, texts.counters.paged_attention_calls)
      << "prompts are the smaller part";
  EXPECT_EQ(texts.hidden_waits, texts.counters.graphs_recorded);
}

// A row that fills up changes nothing, so that the bits are the same where the products of the host
// take each row by itself.
TEST_P(DeviceGeneration, RecordedStepsGiveTheTextsOfKernelsOneByOne) {
  own_device();
  const auto spec = four_groups();
  const Texts want = on_device(spec, GetParam(), world(), Kernels::all_but_graphs),
              got = on_device(spec, GetParam(), world(), Kernels::all);
  if (GetParam() == DType::f32) {
    expect_close(want.results, got.results, 2e-5);
  } else {
    EXPECT_GT(same_tokens(want.results, got.results, 0.15), want.counters.generated_tokens / 2);
  }
  expect_agreement(got.results);
  EXPECT_EQ(want.counters.graph_steps, 0);
  EXPECT_GT(got.counters.graphs_recorded, 1);
  EXPECT_GT(got.counters.graph_steps, got.counters.steps / 3);
  if (GetParam() == DType::f32) {
    EXPECT_EQ(got.counters.paged_attention_calls, want.counters.paged_attention_calls);
    EXPECT_GE(got.counters.sum_bytes, want.counters.sum_bytes);
  }
  EXPECT_EQ(got.counters.sum_host_bytes, 0);
}

// On one rank of the replica only, the last.
TEST_P(DeviceGeneration, StepsThatCannotBeRecordedAreComputedAsBefore) {
  own_device();
  const auto spec = four_groups();
  const Texts want = on_device(spec, GetParam(), world(), Kernels::all_but_graphs);
  for (const Graphs failure : {Graphs::refused, Graphs::do_nothing}) {
    const bool here = world().rank() == world().size() - 1;
    if (failure == Graphs::do_nothing && world().size() > 1)
      continue;  // others would wait for its sums
    const Texts got =
        on_device(spec, GetParam(), world(), Kernels::all, here ? failure : Graphs::work);
    if (GetParam() == DType::f32) expect_close(want.results, got.results, 2e-5);
    expect_agreement(got.results);
    EXPECT_EQ(got.counters.graph_steps, 0);
    EXPECT_EQ(got.counters.graphs_recorded, 0);
    EXPECT_EQ(got.counters.device_waits, got.draws + (failure == Graphs::refused ? 1 : 2))
        << "tried once";
  }
}

// What training took meanwhile is not what the weights are afterwards: a sync writes all of them.
TEST_P(DeviceGeneration, WeightsComeBackToADeviceThatTheyWereGivenBackTo) {
  own_device();
  const auto spec = four_groups();
  const auto host = tiny_weights(spec, GetParam(), world().rank(), world().size());
  const auto fill = [&](GeneratorWeights& weights) {
    for (size_t p = 0; p < spec.parameters.size(); ++p) weights.tensor(p).copy_(host.tensor(p));
  };
  const HostAsDevice device;
  GeneratorWeights weights(spec, GetParam(), world().rank(), world().size(), Place::device);
  fill(weights);
  const Texts want = generate_on(spec, weights, world());
  EXPECT_EQ(weights.release(), weights.bytes());
  EXPECT_EQ(weights.release(), 0);
  for (size_t p = 0; p < spec.parameters.size(); ++p) EXPECT_EQ(weights.data(p), nullptr);
  const at::Tensor taken = at::full({weights.bytes()}, 7, at::kByte);
  weights.restore();
  EXPECT_EQ(weights.storage().size(), spec.parameters.size());
  fill(weights);
  const Texts got = generate_on(spec, weights, world());
  for (const auto& [id, result] : want.results)
    EXPECT_EQ(got.results.at(id).output_ids, result.output_ids);
  GeneratorWeights kept = tiny_weights(spec, GetParam(), world().rank(), world().size());
  EXPECT_EQ(kept.release(), 0) << "of the host";
  EXPECT_NE(kept.data(0), nullptr);
}

// Sums in another order: in fp32 the texts are the same, in bf16 a sum that is rounded otherwise
// changes log-probs by hundredths.
TEST_P(DeviceGeneration, AttentionOverPagesGivesTheTextsOfGatheredOnes) {
  own_device();
  const auto spec = four_groups();
  const Texts gathered = on_device(spec, GetParam(), world(), Kernels::all_but_attention),
              paged = on_device(spec, GetParam(), world(), Kernels::all);
  if (GetParam() == DType::f32) {
    expect_close(gathered.results, paged.results, 2e-5);
  } else {
    EXPECT_GT(same_tokens(gathered.results, paged.results, 0.15),
              gathered.counters.generated_tokens / 2);
  }
  expect_agreement(paged.results);
  EXPECT_EQ(gathered.counters.paged_attention_calls, 0);
  EXPECT_GE(gathered.counters.attention_calls, gathered.counters.decode_steps * spec.shape.layers);
  EXPECT_LE(gathered.counters.attention_calls, gathered.counters.steps * spec.shape.layers);
}

// In fp32 the texts are the same; in bf16 a product over other columns at once may be rounded
// otherwise.
TEST_P(DeviceGeneration, FusedOperatorsGiveTheTextsOfOneAtATime) {
  own_device();
  const auto spec = four_groups();
  const Texts one_at_a_time = on_device(spec, GetParam(), world(), Kernels::all_but_fused),
              fused = on_device(spec, GetParam(), world(), Kernels::all);
  if (GetParam() == DType::f32) {
    expect_close(one_at_a_time.results, fused.results, 2e-5);
  } else {
    EXPECT_GT(same_tokens(one_at_a_time.results, fused.results, 0.15),
              one_at_a_time.counters.generated_tokens / 2);
  }
  expect_agreement(fused.results);
  EXPECT_EQ(fused.counters.paged_attention_calls, one_at_a_time.counters.paged_attention_calls);
  EXPECT_EQ(fused.counters.sum_window_bytes > 0, world().size() > 1);
}

// Biases that lie one behind the other are one vector of the product; norms of heads read a part of
// its rows. On four ranks slices of k are 32 bytes, which lie apart.
TEST(FusedOperators, TakeBiasesAndNormsOfHeads) {
  own_device();
  for (const bool biases : {true, false}) {
    auto shape = four_groups().shape;
    shape.qkv_bias = biases;
    if (!biases) shape.architecture = config::Architecture::qwen3;
    const auto spec = model::describe(shape, model::HeadKind::language);
    {
      const HostAsDevice device;
      const GeneratorWeights weights(spec, DType::f32, world().rank(), world().size(),
                                     Place::device);
      const size_t q = spec.index_of(model::Role::q, 1);
      const at::Tensor joint = weights.joint_tensor(q, 3);
      ASSERT_TRUE(joint.defined());
      EXPECT_EQ(joint.size(0), weights.block(q).rows + 2 * weights.block(q + 1).rows);
      EXPECT_EQ(joint.const_data_ptr(), weights.data(q));
      if (biases) {
        EXPECT_EQ(weights.joint_tensor(spec.index_of(model::Role::q_bias, 1), 3).defined(),
                  world().size() < 4);
      }
      EXPECT_FALSE(weights.joint_tensor(spec.index_of(model::Role::up, 1), 2).defined())
          << "of two products";
    }
    const Texts want = on_device(spec, DType::f32, world(), Kernels::all_but_fused),
                got = on_device(spec, DType::f32, world(), Kernels::all);
    expect_close(want.results, got.results, 2e-5);
    expect_agreement(got.results);
  }
}

// The fake NCCL adds in the order of ranks, as ours does: same bits, where LibTorch attends on
// both.
TEST_P(DeviceGeneration, SumsOnTheDeviceGiveTheTextsOfTheHost) {
  own_device();
  const auto spec = four_groups();
  const Texts want = on_host(spec, GetParam(), world()),
              got = on_device(spec, GetParam(), world(), Kernels::reference);
  expect_same(want.results, got.results);
  expect_agreement(got.results);
  EXPECT_EQ(got.counters.sum_bytes > 0, world().size() > 1);
  EXPECT_EQ(got.counters.sum_host_bytes, 0);
  EXPECT_EQ(want.counters.sum_host_bytes, want.counters.sum_bytes);
}

TEST_P(DeviceGeneration, GivesTheTextsOfOneRank) {
  if (GetParam() == DType::bf16)
    GTEST_SKIP() << "partial results are rounded to bf16 before they are added";
  own_device();
  const auto spec = four_groups();
  expect_close(on_host(spec, GetParam(), {}).results,
               on_device(spec, GetParam(), world(), Kernels::all).results, 2e-5);
}

TEST_P(DeviceGeneration, TheHostDrawsWhereTheKernelsForDevicesArePutAside) {
  own_device();
  const auto spec = four_groups();
  expect_same(on_host(spec, GetParam(), world()).results,
              on_device(spec, GetParam(), world(), Kernels::none).results);
}

TEST_P(DeviceGeneration, RanksThatShareADeviceGoThroughHostMemory) {
  one_device_for_all();
  const auto spec = four_groups();
  const Texts want = on_host(spec, GetParam(), world()),
              got = on_device(spec, GetParam(), world(), Kernels::reference);
  expect_same(want.results, got.results);
  EXPECT_EQ(got.counters.sum_host_bytes, got.counters.sum_bytes);
}

// A graph keeps the addresses that it was recorded with.
TEST(RecordedDecoding, IsRecordedAnewWhereMemoryLiesElsewhere) {
  if (world().size() > 2) GTEST_SKIP() << "as on two ranks";
  own_device();
  const auto spec = four_groups();
  const auto host = tiny_weights(spec, DType::f32, world().rank(), world().size());
  const HostAsDevice device;
  GeneratorWeights weights(spec, DType::f32, world().rank(), world().size(), Place::device);
  const auto fill = [&] {
    for (size_t p = 0; p < spec.parameters.size(); ++p) weights.tensor(p).copy_(host.tensor(p));
  };
  fill();
  generate::EngineOptions chosen = options();
  chosen.prefix_sharing = false;  // the same steps each time
  Engine engine(spec, weights, chosen, world());
  const auto short_requests = [] {
    std::vector<generate::Request> out(3);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i].id = i;
      out[i].prompt = tiny_prompt(5, i, vocab);
      out[i].sampling.max_new_tokens = 6;
    }
    return out;
  };
  // Recordings until no step of such runs is new.
  const auto recorded = [&] {
    int64_t before = -1;
    while (before != engine.counters().graphs_recorded) {
      before = engine.counters().graphs_recorded;
      engine.run(short_requests(), [](const generate::Result&) {});
    }
    return before;
  };
  const int64_t first = recorded();
  EXPECT_GT(first, 0);
  weights.release();
  weights.restore();
  fill();
  const int64_t second = recorded();
  EXPECT_EQ(second, 2 * first) << "weights";
  engine.release();
  const int64_t third = recorded();
  EXPECT_EQ(third, 3 * first) << "pages";
  generate::Request longer = short_requests().front();
  longer.sampling.max_new_tokens =
      spec.shape.max_positions;  // more positions than the rotation's tables have
  longer.sampling.stop_ids = {0};
  longer.sampling.logit_bias = {{0, 1000}};
  engine.run({longer}, [](const generate::Result&) {});
  EXPECT_EQ(recorded(), 4 * first) << "tables";
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceGeneration, testing::Values(DType::f32, DType::bf16),
                         [](const auto& tested) {
                           return tested.param == DType::f32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
