// What only several ranks show: NCCL's kernels, its communicators under a watchdog, replicas that
// are compared, tensor-parallel steps that are recorded. tests/gpu/run.sh runs it on one GPU, where
// each rank has its own NCCL_HOSTID; without a GPU it runs on the fake one (fakegpu_ranks).
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/weight_bridge.hpp"
#include "gpu/device.hpp"
#include "plan/groups.hpp"
#include "support/nccl_soak.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/learn/sharded_models.hpp"
#include "trireme/zero/replica_check.hpp"
#include "unit/generate/tiny_model.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

using generate::GeneratorWeights;

at::TensorOptions gpu_floats() { return at::TensorOptions().dtype(at::kFloat).device(gpu()); }

class SeveralRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "one rank";
    if (ranks_share_a_gpu()) GTEST_SKIP() << "NCCL takes ranks on one GPU with NCCL_HOSTID only";
  }
};

TEST_F(SeveralRanks, SumWhileAWatchdogLooksEveryMillisecond) {
  at::Tensor values = at::zeros({64}, gpu_floats());
  nccl_soak({.data = values.mutable_data_ptr<float>(),
             .count = values.numel(),
             .fill = [&](float value) { values.fill_(value); },
             .first = [&] { return values[0].item<float>(); }},
            10, 50);
}

// Shares of one KV head each, as many as there are ranks.
model::ModelSpec spec_for_ranks(int ranks) {
  auto shape = tiny_spec().shape;
  shape.head_dim = 16;
  shape.kv_heads = ranks;
  shape.heads = 2 * ranks;
  shape.hidden = shape.heads * shape.head_dim;
  return model::describe(shape, model::HeadKind::language);
}

struct RankTexts {
  Results results;
  generate::EngineCounters counters;
  std::string description;
};

RankTexts generate_texts(const model::ModelSpec& spec, const comm::CommView& replica,
                         bool records) {
  const at::NoGradGuard no_gradients;
  const auto host = tiny_weights(spec, config::DType::f32, replica.rank(), replica.size());
  GeneratorWeights weights(spec, config::DType::f32, replica.rank(), replica.size(),
                           generate::Place::device);
  for (size_t p = 0; p < spec.parameters.size(); ++p) weights.tensor(p).copy_(host.tensor(p));
  generate::EngineOptions options;
  options.kv_bytes = int64_t{2} << 20;
  options.max_batch = 4;
  options.threads = 1;
  options.backend = generate::BackendKind::torch;
  options.graphs = records;
  generate::Engine engine(spec, weights, options, replica);
  std::vector<generate::Request> requests;
  for (uint64_t i = 0; i < 3; ++i) {
    auto& request = requests.emplace_back();
    request.id = i;
    request.prompt = tiny_prompt(5 + 7 * static_cast<int64_t>(i), i);
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = 16;
  }
  RankTexts out;
  out.results = run_all(engine, std::move(requests));
  out.counters = engine.counters();
  out.description = engine.describe().front();
  return out;
}

TEST_F(SeveralRanks, RecordTensorParallelSteps) {
  const auto spec = spec_for_ranks(world().size());
  const RankTexts alone = generate_texts(spec, {}, false),
                  one_by_one = generate_texts(spec, world(), false),
                  recorded = generate_texts(spec, world(), true);
  EXPECT_GT(recorded.counters.graph_steps, 0);
  EXPECT_EQ(one_by_one.counters.graph_steps, 0);
  expect_close(alone.results, one_by_one.results, 1e-3);
  expect_close(one_by_one.results, recorded.results, 1e-3);
  expect_agreement(recorded.results);
}

// Where NCCL takes the ranks for those of one machine: with the text of other memory.
TEST_F(SeveralRanks, SumProductsInASymmetricWindow) {
  const auto spec = spec_for_ranks(world().size());
  const RankTexts want = [&] {
    const char* given = std::getenv("NCCL_WIN_ENABLE");
    const std::string before = given == nullptr ? "" : given;
    setenv("NCCL_WIN_ENABLE", "0", 1);
    RankTexts texts = generate_texts(spec, world(), true);
    given == nullptr ? unsetenv("NCCL_WIN_ENABLE") : setenv("NCCL_WIN_ENABLE", before.c_str(), 1);
    return texts;
  }();
  const RankTexts got = generate_texts(spec, world(), true);
  if (world().rank() == 0) std::printf("%s\n", got.description.c_str());
  EXPECT_NE(want.description.find("without a symmetric window (NCCL_WIN_ENABLE is 0)"),
            std::string::npos)
      << want.description;
  expect_close(want.results, got.results, 1e-3);
  expect_agreement(got.results);
  EXPECT_EQ(got.counters.graph_steps, want.counters.graph_steps);
  EXPECT_EQ(got.counters.sum_bytes, want.counters.sum_bytes);
  EXPECT_EQ(want.counters.sum_window_bytes, 0);
  // At least those of the steps that were recorded, whose rows are few.
  const int64_t row = 2 * spec.shape.layers * spec.shape.hidden * int64_t{sizeof(float)};
  const bool windows = got.description.find("in a symmetric window of") != std::string::npos;
  if (windows) EXPECT_GE(got.counters.sum_window_bytes, got.counters.graph_steps * row);
  else EXPECT_EQ(got.counters.sum_window_bytes, 0);
}

// Each rank is a shard group of its own.
TEST_F(SeveralRanks, CompareReplicas) {
  const auto alone = comm::Comm::split(world(), world().rank(), 0, "alone");
  const auto spec = spec_for_ranks(2);
  zero::ShardedModelOptions options;
  options.compute = config::DType::bf16;
  zero::ShardedModel model(spec, alone, world(), gpu(), options);
  model.load(initial_reader(spec));
  const auto compare = [&] {
    zero::require_equal_replicas(world(), world().rank(), "actor", model);
  };
  EXPECT_NO_THROW(compare());
  const int64_t count = model.own(0).elements();
  const auto moments = at::from_blob(model.moment2(0).address(), {count}, gpu_floats());
  if (world().rank() == 1) moments[count - 1].fill_(1e-30);
  EXPECT_THROW(compare(), UserError);
}

// The actor's weights come to generators by the trainers' gathers: whole at each rank, or cut over
// all of them.
TEST_F(SeveralRanks, BringWeightsByTheTrainersGathers) {
  const auto spec = spec_for_ranks(world().size());
  for (const int degree : {1, world().size()}) {
    config::Options options;
    options.model.dtype = config::ComputeType::bf16;
    options.generate.tensor_parallel = degree;
    const auto roles = comm::make_roles(options, world());
    const auto actor = learn::make_sharded(roles.trainers, spec, gpu(),
                                           {.compute = config::DType::bf16, .rings = roles.rings});
    generate::GeneratorWeights weights(spec, config::DType::bf16,
                                       roles.generators.place(comm::Axis::tensor), degree,
                                       generate::Place::device);
    driver::WeightBridge bridge(options, roles, spec, gpu(), false);
    for (int64_t version = 1; version <= 2; ++version) {
      const auto scale = static_cast<float>(version);
      actor->load([&](size_t p, const base::Block& block, float* out) {
        initial_rows(spec, p, block, out);
        for (int64_t i = 0; i < block.elements(); ++i) out[i] *= scale;
      });
      const auto totals = bridge.totals(bridge.run(version, actor.get(), &weights));
      EXPECT_EQ(weights.version(), version);
      EXPECT_EQ(totals.messages, 0);
      EXPECT_EQ(totals.in_node + totals.network, 0);
      EXPECT_GT(totals.gathered, 0);
      const auto whole = whole_parameters(spec);
      for (size_t p = 0; p < whole.size(); ++p) {
        const base::Block block = weights.block(p);
        at::Tensor slice = whole[p].mul(scale).to(at::kBFloat16).narrow(0, block.row, block.rows);
        if (slice.dim() > 1) slice = slice.narrow(1, block.column, block.columns);
        EXPECT_TRUE(at::equal(weights.tensor(p).to(at::kCPU), slice))
            << spec.parameters[p].spec.name << ", degree " << degree << ", version " << version;
      }
      EXPECT_EQ(weights.release() > 0, true) << "they come again with the next sync";
    }
  }
}

struct Apart {
  const char *trainers, *generators;
  int degree = 1;
  bool freezes = false;
};
std::vector<Apart> apart(int ranks) {
  if (ranks < 4) return {{"0-0", "1-1"}, {"1-1", "0-0", 1, true}};
  return {{"0-0", "1-3"}, {"0-2", "3-3"}, {"0-1", "1-2", 2}, {"3-3", "0-1", 2, true}};
}

std::string name_of(const Apart& a) {
  return base::text("trainers ", a.trainers, ", generators ", a.generators, ", degree ", a.degree);
}

// A rank's weights in a job with these roles; null where it lacks the role.
struct RankApart {
  RankApart(const Apart& a, config::SharedMemory shared) : spec(spec_for_ranks(2)) {
    for (size_t p = 0; a.freezes && p + 2 < spec.parameters.size(); ++p)
      spec.parameters[p].trainable = false;
    options.model.dtype = config::ComputeType::bf16;
    options.ranks.trainer = a.trainers;
    options.ranks.generator = options.ranks.reward = a.generators;
    options.generate.tensor_parallel = a.degree;
    options.weightsync.shared_memory = shared;
    options.weightsync.bucket_bytes.count = 3000;
    roles.emplace(comm::make_roles(options, world()));
    if (roles->trainer)
      actor = learn::make_sharded(roles->trainers, spec, gpu(),
                                  {.compute = config::DType::bf16, .rings = roles->rings});
    if (roles->generator)
      weights.emplace(spec, config::DType::bf16, roles->generators.place(comm::Axis::tensor),
                      a.degree, generate::Place::device);
    bridge.emplace(options, *roles, spec, gpu(), false);
  }
  weightsync::SyncTotals sync(int64_t version) {
    const auto scale = static_cast<float>(version);
    if (actor) {
      actor->load([&](size_t p, const base::Block& block, float* out) {
        initial_rows(spec, p, block, out);
        for (int64_t i = 0; i < block.elements(); ++i) out[i] *= scale;
      });
    }
    return bridge->totals(bridge->run(version, actor.get(), weights ? &*weights : nullptr));
  }
  // Bytes of its slices that another rank may have to send; all of them where it does not train.
  int64_t slice_bytes(bool all) const {
    int64_t bytes = 0;
    for (size_t p = 0; weights && p < spec.parameters.size(); ++p) {
      if (all || spec.parameters[p].trainable) bytes += 2 * weights->block(p).elements();
    }
    return bytes;
  }

  model::ModelSpec spec;
  config::Options options;
  std::optional<comm::Roles> roles;
  std::unique_ptr<zero::ShardedModel> actor;
  std::optional<GeneratorWeights> weights;
  std::optional<driver::WeightBridge> bridge;
};

// Roles apart: by NCCL's messages, the bits of the way through the host, the bytes that generators
// take.
TEST_F(SeveralRanks, BringWeightsFromGpuToGpu) {
  for (const Apart& a : apart(world().size())) {
    SCOPED_TRACE(name_of(a));
    RankApart here(a, config::SharedMemory::automatic), there(a, config::SharedMemory::never);
    EXPECT_NE(here.bridge->describe().find("by NCCL"), std::string::npos);
    for (int64_t version = 1; version <= 3; ++version) {
      if (version == 3 && here.weights) here.weights->release();  // frozen ones are sent again
      const auto totals = here.sync(version);
      const auto through_host = there.sync(version);
      const bool all = version != 2;
      EXPECT_EQ(totals.messages, 0);
      EXPECT_GT(through_host.messages, 0);
      EXPECT_EQ(through_host.between_devices, 0);
      EXPECT_EQ(totals.between_devices + totals.local, world().sum(here.slice_bytes(all)));
      for (size_t p = 0; here.weights && p < here.spec.parameters.size(); ++p) {
        if (version == 3 && !here.spec.parameters[p].trainable) continue;  // others, see below
        EXPECT_TRUE(
            at::equal(here.weights->tensor(p).to(at::kCPU), there.weights->tensor(p).to(at::kCPU)))
            << here.spec.parameters[p].spec.name << ", version " << version;
      }
      const auto whole = whole_parameters(here.spec);
      for (size_t p = 0; here.weights && p < whole.size(); ++p) {
        const bool sent = all || here.spec.parameters[p].trainable;
        const base::Block block = here.weights->block(p);
        at::Tensor slice = whole[p]
                               .mul(sent ? static_cast<float>(version) : 1.f)
                               .to(at::kBFloat16)
                               .narrow(0, block.row, block.rows);
        if (slice.dim() > 1) slice = slice.narrow(1, block.column, block.columns);
        EXPECT_TRUE(at::equal(here.weights->tensor(p).to(at::kCPU), slice))
            << here.spec.parameters[p].spec.name << ", version " << version;
      }
    }
  }
}

// Against the ledger (src/plan/groups.hpp).
TEST_F(SeveralRanks, TakeTheLedgersBytesForTheirCommunicators) {
  auto taken = [before = free_gpu_bytes()]() mutable {
    const int64_t now = free_gpu_bytes();
    return std::exchange(before, now) - now;
  };
  at::Tensor values = at::zeros({int64_t{1} << 20}, gpu_floats());
  const auto use = [&](comm::RankSums& sums) {
    sums.add_up(values.mutable_data_ptr(), values.numel(), comm::DType::f32);
    static_cast<void>(values[0].item<float>());
  };
  auto apart = comm::Comm::split(world(), 0, world().rank(), "apart");
  static_cast<void>(taken());
  const auto first = comm::make_rank_sums(apart, true);
  use(*first);
  const int64_t bytes = taken();
  const auto second = comm::make_rank_sums(apart, true);
  use(*second);
  const int64_t more = taken();
  if (world().rank() == 0)
    std::printf("bytes of a communicator %lld, of one that is split off %lld\n",
                static_cast<long long>(bytes), static_cast<long long>(more));
  // All ranks of one GPU take theirs meanwhile.
  EXPECT_LE(bytes, world().size() * plan::nccl_communicator);
  EXPECT_LE(more, world().size() * plan::nccl_split_off);
}

// Of the host's, which has a step's sums to enqueue. Printed; nothing asserts a time.
TEST_F(SeveralRanks, TellHowLongASumIsEnqueued) {
  at::Tensor values = at::zeros({64}, gpu_floats());
  const auto sums = comm::make_rank_sums(world(), true);
  constexpr int count = 100;
  double best = 1;
  for (int i = 0; i < count; ++i) {
    const base::Stopwatch watch;
    sums->add_up(values.mutable_data_ptr(), values.numel(), comm::DType::f32);
    best = std::min(best, watch.seconds());
    static_cast<void>(values[0].item<float>());
  }
  if (world().rank() == 0) std::printf("host time of a sum: %.1f us\n", 1e6 * best);
  EXPECT_EQ(sums->counters().sums, count);
}

}  // namespace
}  // namespace trireme::test
