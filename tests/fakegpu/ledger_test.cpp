// The ledger of a device against what is allocated there: the program's own memory and that of
// LibTorch's operators, counted by the fake device while a model is made, trained and scored by
// the paths of a GPU.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "support/world.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/device_bytes.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/adapter.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/zero/sharded_model.hpp"
#include "unit/plan/layouts.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

using plan::Phase;

struct Shape {
  int64_t layers, hidden, heads, kv_heads, ffn, vocab, tokens;
  config::DType type;
  int64_t recompute;
  config::HeadType head = config::HeadType::model;
  bool exact = true;     // train.exact_products
  bool offload = false;  // train.optimizer_offload
  bool once = false;     // train.reduce_once, the second step in two micro-batches
  int64_t rank = 0;      // actor.lora.rank
  std::vector<std::string> targets = {"all-linear"};
};

config::ModelShape model_shape(const Shape& s) {
  return shape_of({s.layers, s.hidden, s.heads, s.kv_heads, s.ffn, s.vocab});
}

model::ModelSpec described(const Shape& s) {
  model::ModelSpec spec = model::describe(model_shape(s), model::HeadKind::language);
  spec.head_type = s.head;
  if (s.rank == 0) return spec;
  model::Adapter adapter;
  adapter.rank = s.rank;
  adapter.alpha = 2 * static_cast<double>(s.rank);
  adapter.targets = s.targets;
  return model::with_adapter(spec, adapter, "actor.lora");
}

// PPO's trainers, one micro-batch of `tokens` on each, who score as many at a time.
plan::Ledger ledger_of(const Shape& s, const model::ModelSpec& spec) {
  config::Options options;
  options.data.max_len = s.tokens / 4;
  options.train.batch_size = 4 * world().size();
  options.train.micro_batch_tokens = s.tokens;
  options.rollout.micro_batch_tokens = s.tokens;
  options.train.recompute = s.recompute;
  options.model.head_dtype = s.head;
  options.train.exact_products = s.exact;
  options.train.optimizer_offload = s.offload;
  options.train.reduce_once = s.once;
  config::RoleMap roles;
  for (int rank = 0; rank < world().size(); ++rank) roles.trainer.push_back(rank);
  const std::vector<int> nodes(static_cast<size_t>(world().size()), 0);
  plan::JobModels models;
  models.actor = layout(spec);
  const plan::Job job{
      options,
      roles,
      nodes,
      models,
      {.name = "gpu", .device_bytes = int64_t{1} << 40, .host_bytes = int64_t{1} << 40},
      s.type};
  return plan::memory_of_rank(job, world().rank());
}

// Without the process: a fake device has no context and no communicators.
int64_t planned(const plan::Ledger& ledger, Phase phase) {
  int64_t sum = 0;
  for (const auto& entry : ledger.entries()) {
    if (entry.place == plan::Place::device && entry.owner != "process" &&
        (entry.phases & plan::phase_bit(phase)) != 0)
      sum += entry.bytes;
  }
  return sum;
}

int64_t planned_at_start(const plan::Ledger& ledger, plan::Kind kind) {
  int64_t sum = 0;
  for (const auto& entry : ledger.entries()) {
    if (entry.place == plan::Place::device && entry.kind == kind &&
        (entry.phases & plan::phase_bit(Phase::start)) != 0)
      sum += entry.bytes;
  }
  return sum;
}

using Counted = std::map<Phase, int64_t>;

Counted count(const Shape& s, const model::ModelSpec& spec, const plan::Ledger& ledger) {
  const HostAsDevice device;
  zero::ShardedModelOptions options;
  options.compute = s.type;
  options.recompute = s.recompute;
  options.offload = s.offload;
  options.reduce_once = s.once;
  kernels::use_exact_products(s.exact);
  const auto most = [] { return comm::device_bytes().held + HostAsDevice::take_tensor_peak(); };
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  Counted out;
  out[Phase::start] = static_cast<int64_t>(fakegpu::device_bytes());
  EXPECT_EQ(comm::device_bytes().held, planned_at_start(ledger, plan::Kind::exchanges))
      << "as the program itself counts them";
  EXPECT_EQ(out[Phase::start] - comm::device_bytes().held,
            planned_at_start(ledger, plan::Kind::tensors));
  const auto batch = tiny_batch(spec.shape, 3 + static_cast<uint64_t>(world().rank()),
                                std::vector<int64_t>(4, s.tokens / 4));
  const at::Tensor rows = at::arange(batch.tokens()),
                   targets = batch.ids.flip(
                       {0});  // as many as there are tokens: the most that the plan counts with
  const auto log_probs = [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
    return kernels::token_log_probs(hidden.index_select(0, rows), head_weight, targets, 1.0,
                                    kernels::Entropy::skip)
        .log_probs;
  };
  for (int pass = 0; pass < 2; ++pass) {
    static_cast<void>(most());
    model.forward(batch, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      static_cast<void>(log_probs(hidden, head_weight));
    });
    out[Phase::log_probs] = most();
    model.forward_backward(
        batch,
        [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
          out[Phase::forward] = most();
          hidden.register_hook([&](const at::Tensor&) {
            out[Phase::head] = most();
          });  // its gradient is there: the head is through
          return log_probs(hidden, head_weight).sum().mul(-1e-3);
        },
        s.once && pass > 0 ? zero::Reduce::later : zero::Reduce::now);
    if (s.once && pass > 0)
      model.forward_backward(batch, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
        return log_probs(hidden, head_weight).sum();
      });
    out[Phase::backward] = most();
    model.step({.lr = 1e-3});
    out[Phase::step] = most();
  }
  EXPECT_EQ(HostAsDevice::products_added() > 0, s.exact && s.type == config::DType::bf16);
  kernels::use_exact_products(true);
  return out;
}

class DeviceLedger : public testing::TestWithParam<Shape> {};

TEST_P(DeviceLedger, CountsWhatIsAllocated) {
  own_device();
  fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
  const Shape& s = GetParam();
  if (s.type == config::DType::bf16 && !kernels::multiplies_bf16(at::kCPU))
    GTEST_SKIP() << "here products of bf16 go through fp32 copies, which a GPU's do not";
  const auto spec = described(s);
  const plan::Ledger ledger = ledger_of(s, spec);
  std::string line =
      base::text("  ", s.layers, " x ", s.hidden, " ffn ", s.ffn, ", vocabulary ", s.vocab, ", ",
                 s.tokens, " tokens, ", config::to_string(s.type), ", recompute ", s.recompute,
                 s.exact ? "" : ", gradients rounded", s.offload ? ", offloaded" : "",
                 s.rank > 0 ? ", an adapter" : "", ": MB counted, and more planned:");
  for (const auto& [phase, bytes] : count(s, spec, ledger)) {
    const int64_t plan = planned(ledger, phase);
    line += base::text(
        " ", plan::to_string(phase), " ", base::fixed(1e-6 * static_cast<double>(bytes), 3), " ",
        base::fixed(100.0 * (static_cast<double>(plan) / static_cast<double>(bytes) - 1), 1), " %");
    if (phase == Phase::start) {
      EXPECT_EQ(plan, bytes);
      continue;
    }
    constexpr double small = 1 << 17;  // numbers per token, counters of the kernel's teams
    EXPECT_GE(plan, bytes) << plan::to_string(phase);
    EXPECT_LE(static_cast<double>(plan), 1.03 * static_cast<double>(bytes) + small)
        << plan::to_string(phase);
  }
  if (world().rank() == 0) std::printf("%s\n", line.c_str());
}

using config::DType;
// fp32 products of the host take units of 48 rows, a rest in blocks that a GPU's products do not
// have: tokens are multiples of it.
INSTANTIATE_TEST_SUITE_P(
    Shapes, DeviceLedger,
    testing::Values(
        Shape{2, 128, 4, 2, 352, 1000, 512, DType::bf16, -1},
        Shape{4, 128, 4, 4, 352, 500, 1024, DType::bf16, -1},
        Shape{4, 128, 4, 4, 352, 500, 1024, DType::bf16, 0},
        Shape{3, 128, 8, 2, 384, 500, 1024, DType::bf16, -1},
        Shape{3, 128, 8, 2, 384, 500, 960, DType::f32, -1},
        Shape{2, 64, 4, 2, 176, 4500, 512, DType::bf16, -1},
        Shape{2, 64, 4, 4, 256, 4500, 480, DType::f32, -1},
        Shape{6, 64, 4, 1, 176, 500, 2048, DType::bf16, -1},
        Shape{6, 64, 4, 1, 176, 500, 2048, DType::bf16, 3},
        Shape{1, 256, 8, 8, 704, 500, 512, DType::bf16, -1},
        Shape{8, 64, 4, 2, 192, 1000, 768, DType::f32, 0},
        Shape{2, 96, 6, 3, 256, 2500, 288, DType::bf16, -1, config::HeadType::fp32},
        Shape{2, 128, 4, 2, 352, 1000, 512, DType::bf16, -1, config::HeadType::model, false},
        Shape{2, 64, 4, 2, 176, 4500, 512, DType::bf16, -1, config::HeadType::model, false},
        Shape{3, 128, 8, 2, 384, 500, 1024, DType::bf16, -1, config::HeadType::model, true, true,
              true},
        Shape{8, 64, 4, 2, 192, 1000, 768, DType::f32, 0, config::HeadType::model, true, true},
        Shape{4, 128, 4, 2, 352, 500, 1024, DType::bf16, -1, config::HeadType::model, true, false,
              false, 16},
        Shape{4, 128, 4, 4, 352, 500, 1024, DType::bf16, 0, config::HeadType::model, true, false,
              false, 8},
        Shape{3, 128, 8, 2, 384, 500, 960, DType::f32, -1, config::HeadType::model, true, false,
              false, 8},
        Shape{3,
              128,
              8,
              2,
              384,
              500,
              1024,
              DType::bf16,
              -1,
              config::HeadType::model,
              true,
              false,
              false,
              16,
              {"q_proj", "v_proj"}},
        Shape{3,
              128,
              8,
              8,
              384,
              500,
              1024,
              DType::bf16,
              1,
              config::HeadType::model,
              true,
              false,
              false,
              32,
              {"up_proj", "down_proj"}}));

}  // namespace
}  // namespace trireme::test
