// The ledger of a device against what is allocated there outside of training: by a generator that
// writes, and by models that score.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "support/world.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/device_bytes.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/plan/pass_bytes.hpp"
#include "trireme/zero/sharded_model.hpp"
#include "unit/generate/tiny_model.hpp"
#include "unit/plan/layouts.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

using config::DType;
using plan::Phase;

// A rollout of `sequences` answers of one replica. Here the host's products pad what has fewer than
// 96 rows, which a GPU's do not: where logits are the larger part, as many are drawn from in every
// step. Prompts and max_batch_tokens are such that the fullest step is as full as the plan takes
// it.
struct Rollout {
  int64_t hidden, heads, kv_heads, ffn, vocab, prompt, answer, sequences, max_batch,
      max_batch_tokens;
  DType type;
  double top_p = 1;
  int64_t shared = 0;  // tokens with which all prompts begin, whose pages they share
  bool graphs = false, fused = true;
};

model::ModelSpec generating(const Rollout& r) {
  return model::describe(shape_of({.layers = 2,
                                   .hidden = r.hidden,
                                   .heads = r.heads,
                                   .kv_heads = r.kv_heads,
                                   .ffn = r.ffn,
                                   .vocab = r.vocab}),
                         model::HeadKind::language);
}

config::Options deck_of(const Rollout& r) {
  config::Options options;
  options.data.max_len = r.prompt + r.answer;
  options.rollout.batch_size = r.sequences;
  options.rollout.max_new_tokens = r.answer;
  options.rollout.top_p = r.top_p;
  options.rollout.min_new_tokens = 0;
  options.generate.prefix_sharing =
      r.shared > 0;  // a prompt that shares pages has fewer rows than positions
  options.generate.max_batch = r.max_batch;
  options.generate.graphs = r.graphs;
  options.generate.fused_operators = r.fused;
  options.generate.max_batch_tokens = r.max_batch_tokens;
  options.generate.tensor_parallel = world().size();
  options.generate.kv_memory = {0, int64_t{1} << 40};  // as much as is of use
  return options;
}

// Of a rank's generator in a phase, on its device.
int64_t planned_for_generator(const config::Options& options, const model::ModelSpec& spec,
                              DType type, Phase phase) {
  config::RoleMap roles;
  for (int rank = 0; rank < world().size(); ++rank) {
    roles.trainer.push_back(rank);
    roles.generator.push_back(rank);
  }
  const std::vector<int> nodes(static_cast<size_t>(world().size()), 0);
  plan::JobModels models;
  models.actor = layout(spec);
  models.slices = model::tensor_parallel_layout(spec, world().size());
  const plan::Job job{
      options,
      roles,
      nodes,
      models,
      {.name = "gpu", .device_bytes = int64_t{1} << 50, .host_bytes = int64_t{1} << 50},
      type};
  int64_t sum = 0;
  const plan::Ledger ledger = plan::memory_of_rank(job, world().rank());
  for (const auto& entry : ledger.entries()) {
    if (entry.place == plan::Place::device && entry.owner == "generator" &&
        (entry.phases & plan::phase_bit(phase)) != 0)
      sum += entry.bytes;
  }
  return sum;
}

// The most that a device has while answers are written, and what it has when KV pages and weights
// were given back.
struct CountedRollout {
  int64_t most = 0, after = 0;
};

CountedRollout count_rollout(const Rollout& r, const model::ModelSpec& spec,
                             const config::Options& options) {
  const auto host = tiny_weights(spec, r.type, world().rank(), world().size());
  const HostAsDevice device;
  generate::GeneratorWeights weights(spec, r.type, world().rank(), world().size(),
                                     generate::Place::device);
  for (size_t p = 0; p < spec.parameters.size(); ++p) weights.tensor(p).copy_(host.tensor(p));
  generate::EngineOptions chosen;
  chosen.page_size = options.generate.page_size;
  chosen.kv_bytes = plan::kv_cache_bytes(
      options.generate.kv_memory,
      plan::kv_bytes_per_token(spec.shape, world().size(), config::bytes_per_element(r.type)),
      r.max_batch, options.max_len(), int64_t{1} << 50);
  chosen.max_batch = r.max_batch;
  chosen.graphs = options.generate.graphs;
  chosen.fused_operators = options.generate.fused_operators;
  chosen.prefix_sharing = options.generate.prefix_sharing;
  chosen.prefill_chunk_tokens = r.max_batch_tokens;
  chosen.backend = generate::BackendKind::torch;
  generate::Engine engine(spec, weights, chosen, world());
  for (int64_t i = 0; i < r.sequences; ++i) {
    generate::Request request;
    request.id = static_cast<uint64_t>(i);
    request.prompt = tiny_prompt(r.shared, 1, r.vocab);
    const auto own = tiny_prompt(r.prompt - r.shared, static_cast<uint64_t>(2 + i), r.vocab);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.sampling.max_new_tokens = r.answer;
    request.sampling.top_p = r.top_p;
    engine.submit(std::move(request));
  }
  static_cast<void>(HostAsDevice::take_tensor_peak());
  while (!engine.idle()) static_cast<void>(engine.step());
  CountedRollout out;
  out.most = HostAsDevice::take_tensor_peak() + comm::device_bytes().held;
  engine.release();
  weights.release();
  static_cast<void>(HostAsDevice::take_tensor_peak());
  out.after = HostAsDevice::take_tensor_peak() + comm::device_bytes().held;
  return out;
}

constexpr int64_t scored_tokens = 512;

int64_t planned_for_scoring(const Rollout& r, const model::ModelSpec& spec) {
  const auto bytes =
      plan::sharded_model_bytes(plan::frozen(layout(spec)), config::bytes_per_element(r.type),
                                false, {plan::Exchange::device_ring, world().size()});
  const plan::ModelLayout model = layout(spec);
  const plan::PassWork work{.model = model,
                            .tokens = scored_tokens,
                            .head_rows = 1,
                            .element_bytes = config::bytes_per_element(r.type)};
  return bytes.weights_own + bytes.weights_ring +
         plan::rotation_bytes(spec.shape, scored_tokens / 4) + plan::scoring_pass_bytes(work);
}

int64_t count_scoring(const Rollout& r, const model::ModelSpec& spec) {
  const HostAsDevice device;
  zero::ShardedModelOptions options;
  options.compute = r.type;
  zero::ShardedModel model(model::frozen(spec), world(), std::nullopt, at::kCPU, options);
  model.load([](size_t, const base::Block& block, float* out) {
    std::fill(out, out + block.elements(), 0.01f);
  });
  static_cast<void>(HostAsDevice::take_tensor_peak());
  const auto batch = tiny_batch(spec.shape, 3, std::vector<int64_t>(4, scored_tokens / 4));
  model.forward(batch, [](const at::Tensor& hidden, const at::Tensor& head_weight) {
    static_cast<void>(at::linear(hidden.to(at::kFloat), head_weight.to(at::kFloat)));
  });
  return comm::device_bytes().held + HostAsDevice::take_tensor_peak();
}

// No more is counted than planned, and at most 3 % less.
void expect_planned(int64_t plan, int64_t bytes, const std::string& what) {
  constexpr double small = 1 << 17;  // numbers per row, workspaces of the kernels' teams
  EXPECT_GE(plan, bytes) << what;
  EXPECT_LE(static_cast<double>(plan), 1.03 * static_cast<double>(bytes) + small) << what;
  if (world().rank() != 0) return;
  std::printf(
      "  %s: MB counted %s, more planned %s %%\n", what.c_str(),
      base::fixed(1e-6 * static_cast<double>(bytes), 3).c_str(),
      base::fixed(100.0 * (static_cast<double>(plan) / static_cast<double>(bytes) - 1), 1).c_str());
}

class RolloutLedger : public testing::TestWithParam<Rollout> {};

TEST_P(RolloutLedger, CountsAnswersThatAreWritten) {
  own_device();
  fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
  const Rollout& r = GetParam();
  if (r.type == DType::bf16 && !kernels::multiplies_bf16(at::kCPU))
    GTEST_SKIP() << "here products of bf16 go through fp32 copies, which a GPU's do not";
  const auto spec = generating(r);
  const config::Options options = deck_of(r);
  const CountedRollout counted = count_rollout(r, spec, options);
  const std::string shape = base::text(r.hidden, " ffn ", r.ffn, ", vocabulary ", r.vocab, ", ",
                                       r.sequences, " x ", r.prompt, " + ", r.answer);
  expect_planned(planned_for_generator(options, spec, r.type, Phase::rollout), counted.most,
                 shape + ": rollout");
  for (const Phase phase : {Phase::log_probs, Phase::backward, Phase::step}) {
    expect_planned(planned_for_generator(options, spec, r.type, phase), counted.after,
                   shape + ": " + plan::to_string(phase));
  }
}

// Where prompts share pages a step reads the few tokens that are left of many, and gathers all
// positions of each: the plan takes all that run for such, which is never less than what they are;
// the plan without sharing is.
TEST(SharedPrompts, StayWithinThePlan) {
  own_device();
  fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
  const Rollout r{.hidden = 128,
                  .heads = 8,
                  .kv_heads = 8,
                  .ffn = 256,
                  .vocab = 500,
                  .prompt = 115,
                  .answer = 8,
                  .sequences = 96,
                  .max_batch = 96,
                  .max_batch_tokens = 512,
                  .type = DType::f32,
                  .shared = 112};
  const auto spec = generating(r);
  const config::Options options = deck_of(r);
  config::Options apart = options;
  apart.generate.prefix_sharing = false;
  const int64_t counted = count_rollout(r, spec, options).most,
                plan = planned_for_generator(options, spec, r.type, Phase::rollout);
  EXPECT_GE(plan, counted);
  if (world().size() <=
      2) {  // of more ranks each has too few KV heads, and rows that are whole take more
    EXPECT_LT(planned_for_generator(apart, spec, r.type, Phase::rollout), counted)
        << "as many as sharing makes possible were read in one step";
  }
  if (world().rank() != 0) return;
  std::printf("  96 prompts that share 112 of 115 tokens: MB counted %s, more planned %s %%\n",
              base::fixed(1e-6 * static_cast<double>(counted), 3).c_str(),
              base::fixed(100.0 * (static_cast<double>(plan) / static_cast<double>(counted) - 1), 1)
                  .c_str());
}

// What recorded steps hold is planned from above: for rows that fill up as many as there can be,
// and twice, since LibTorch keeps what a step wrote before it was recorded and while it was. What
// CUDA takes itself is not there.
TEST(RecordedSteps, StayWithinThePlan) {
  own_device();
  fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
  const Rollout r{.hidden = 128,
                  .heads = 8,
                  .kv_heads = 4,
                  .ffn = 512,
                  .vocab = 4000,
                  .prompt = 8,
                  .answer = 16,
                  .sequences = 96,
                  .max_batch = 96,
                  .max_batch_tokens = 512,
                  .type = DType::f32,
                  .graphs = true};
  const auto spec = generating(r);
  const config::Options options = deck_of(r);
  constexpr int64_t of_cuda = int64_t{32} * 8 << 20;
  const int64_t counted = count_rollout(r, spec, options).most,
                plan = planned_for_generator(options, spec, r.type, Phase::rollout) - of_cuda;
  EXPECT_GE(plan, counted);
  if (world().rank() != 0) return;
  std::printf("  96 sequences, recorded steps: MB counted %s, more planned %s %%\n",
              base::fixed(1e-6 * static_cast<double>(counted), 3).c_str(),
              base::fixed(100.0 * (static_cast<double>(plan) / static_cast<double>(counted) - 1), 1)
                  .c_str());
}

// A reward model scores a micro-batch at a time, its head one number a row.
TEST_P(RolloutLedger, CountsAModelThatScores) {
  own_device();
  const Rollout& r = GetParam();
  if (r.type == DType::bf16 && !kernels::multiplies_bf16(at::kCPU))
    GTEST_SKIP() << "here products of bf16 go through fp32 copies, which a GPU's do not";
  const auto spec = model::describe(generating(r).shape, model::HeadKind::score);
  expect_planned(planned_for_scoring(r, spec), count_scoring(r, spec), "a model that scores");
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RolloutLedger,
    testing::Values(Rollout{128, 4, 4, 512, 1000, 64, 16, 96, 96, 512, DType::bf16},
                    Rollout{128, 8, 4, 704, 500, 64, 16, 192, 96, 512, DType::bf16, 1, 0, false,
                            false},
                    Rollout{64, 4, 4, 128, 24000, 16, 3, 96, 96, 1536, DType::bf16},
                    Rollout{64, 4, 4, 128, 24000, 16, 3, 96, 96, 1536, DType::bf16, 0.9},
                    Rollout{128, 8, 4, 512, 1000, 48, 16, 96, 96, 480, DType::f32}));

}  // namespace
}  // namespace trireme::test
