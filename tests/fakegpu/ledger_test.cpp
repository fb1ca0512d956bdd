// The ledger of a device against what is allocated there: the program's own memory and that of LibTorch's operators, counted by the made-up device while
// a model is made, trained and scored by the paths of a GPU.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "support/world.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/zero/sharded_model.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

using plan::Phase;

struct Shape {
  int64_t layers, hidden, heads, kv_heads, ffn, vocab, tokens;
  config::DType type;
  int64_t recompute;
};

config::ModelShape model_shape(const Shape& s) {
  config::ModelShape shape;
  shape.layers = s.layers;
  shape.hidden = s.hidden;
  shape.heads = s.heads;
  shape.kv_heads = s.kv_heads;
  shape.head_dim = s.hidden / s.heads;
  shape.ffn = s.ffn;
  shape.vocab = s.vocab;
  shape.max_positions = 4096;
  return shape;
}

plan::ModelLayout layout(const model::ModelSpec& spec) {
  plan::ModelLayout out{spec.shape, spec.tensors(), {}};
  for (const auto& stage : spec.stages) out.stages.push_back(stage.parameters);
  return out;
}

// Supervised training of the model by all ranks, one micro-batch of `tokens` on each.
plan::Ledger ledger_of(const Shape& s, const model::ModelSpec& spec) {
  config::Options options;
  options.data.max_len = s.tokens / 4;
  options.train.batch_size = 4 * world().size();
  options.train.micro_batch_tokens = s.tokens;
  options.train.recompute = s.recompute;
  config::RoleMap roles;
  for (int rank = 0; rank < world().size(); ++rank) roles.trainer.push_back(rank);
  const std::vector<int> nodes(static_cast<size_t>(world().size()), 0);
  plan::JobModels models;
  models.actor = layout(spec);
  const plan::Job job{options, roles, nodes, models, {.name = "gpu", .device_bytes = int64_t{1} << 40, .host_bytes = int64_t{1} << 40}, s.type,
                      config::Command::sft};
  return plan::memory_of_rank(job, world().rank());
}

// Without the process: a made-up device has no context and no communicators.
int64_t planned(const plan::Ledger& ledger, std::initializer_list<Phase> phases) {
  int64_t most = 0;
  for (const Phase phase : phases) {
    int64_t sum = 0;
    for (const auto& entry : ledger.entries()) {
      if (entry.place == plan::Place::device && entry.owner != "process" && (entry.phases & plan::phase_bit(phase)) != 0) sum += entry.bytes;
    }
    most = std::max(most, sum);
  }
  return most;
}

struct Counted {
  int64_t start = 0, pass = 0, step = 0;
};

Counted count(const Shape& s, const model::ModelSpec& spec) {
  const HostAsDevice device;
  zero::ShardedModelOptions options;
  options.compute = s.type;
  options.recompute = s.recompute;
  const auto before = static_cast<int64_t>(fakegpu::device_bytes());
  const auto most = [before] { return static_cast<int64_t>(fakegpu::take_peak_bytes()) - before; };
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  Counted out;
  out.start = static_cast<int64_t>(fakegpu::device_bytes()) - before;
  const auto batch = tiny_batch(spec.shape, 3 + static_cast<uint64_t>(world().rank()), std::vector<int64_t>(4, s.tokens / 4));
  const at::Tensor rows = at::arange(batch.tokens() - 1), targets = batch.ids.narrow(0, 1, batch.tokens() - 1).contiguous();
  for (int pass = 0; pass < 2; ++pass) {
    static_cast<void>(most());
    model.forward_backward(batch, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      return kernels::token_log_probs(hidden.index_select(0, rows), head_weight, targets, 1.0, kernels::Entropy::skip).log_probs.sum().mul(-1e-3);
    });
    out.pass = most();
    model.step({.lr = 1e-3});
    out.step = most();
  }
  return out;
}

class DeviceLedger : public testing::TestWithParam<Shape> {};

TEST_P(DeviceLedger, CountsWhatIsAllocated) {
  own_device();
  fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
  const Shape& s = GetParam();
  const auto spec = model::describe(model_shape(s), model::HeadKind::language);
  const plan::Ledger ledger = ledger_of(s, spec);
  const Counted counted = count(s, spec);
  const int64_t start = planned(ledger, {Phase::start}), pass = planned(ledger, {Phase::forward, Phase::head, Phase::backward}),
                step = planned(ledger, {Phase::step});
  if (world().rank() == 0) {
    std::printf("  %lld x %lld ffn %lld, vocabulary %lld, %lld tokens, %s, recompute %lld: MB counted of planned: start %.3f of %.3f, pass %.3f of %.3f"
                " (%+.1f %%), step %.3f of %.3f\n",
                static_cast<long long>(s.layers), static_cast<long long>(s.hidden), static_cast<long long>(s.ffn), static_cast<long long>(s.vocab),
                static_cast<long long>(s.tokens), std::string(config::to_string(s.type)).c_str(), static_cast<long long>(s.recompute),
                1e-6 * static_cast<double>(counted.start), 1e-6 * static_cast<double>(start), 1e-6 * static_cast<double>(counted.pass),
                1e-6 * static_cast<double>(pass), 100.0 * (static_cast<double>(pass) / static_cast<double>(counted.pass) - 1),
                1e-6 * static_cast<double>(counted.step), 1e-6 * static_cast<double>(step));
  }
  const auto of = [](int64_t planned_bytes, int64_t counted_bytes) { return static_cast<double>(planned_bytes) / static_cast<double>(counted_bytes); };
  EXPECT_EQ(start, counted.start);
  constexpr double counters = 1 << 17;  // of changed values, by the kernel's teams
  EXPECT_NEAR(static_cast<double>(step), static_cast<double>(counted.step), 0.03 * static_cast<double>(counted.step) + counters);
  // From above: activations are estimated for LibTorch's operators, which keep more than the program's kernels.
  EXPECT_GE(of(pass, counted.pass), 1);
}

using config::DType;
INSTANTIATE_TEST_SUITE_P(Shapes, DeviceLedger,
                         testing::Values(Shape{2, 128, 4, 2, 352, 1000, 512, DType::bf16, -1}, Shape{4, 128, 4, 4, 352, 500, 1024, DType::bf16, -1},
                                         Shape{4, 128, 4, 4, 352, 500, 1024, DType::bf16, 0}, Shape{3, 128, 8, 2, 384, 500, 1024, DType::bf16, -1},
                                         Shape{3, 128, 8, 2, 384, 500, 1024, DType::f32, -1}, Shape{2, 64, 4, 2, 176, 4500, 512, DType::bf16, -1},
                                         Shape{2, 64, 4, 4, 256, 4500, 512, DType::f32, -1}, Shape{6, 64, 4, 1, 176, 500, 2048, DType::bf16, -1},
                                         Shape{6, 64, 4, 1, 176, 500, 2048, DType::bf16, 3}, Shape{1, 256, 8, 8, 704, 500, 512, DType::bf16, -1},
                                         Shape{8, 64, 4, 2, 192, 1000, 768, DType::f32, 0}, Shape{2, 96, 6, 3, 256, 2500, 256, DType::bf16, -1}));

}  // namespace
}  // namespace trireme::test
