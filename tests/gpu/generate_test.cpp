// Generation on a GPU against the same backend on the CPU.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include "gpu/device.hpp"
#include "unit/generate/tiny_model.hpp"

namespace trireme::test {
namespace {

using generate::GeneratorWeights;

GeneratorWeights on_gpu(const model::ModelSpec& spec, const GeneratorWeights& host) {
  GeneratorWeights weights(spec, host.dtype(), 0, 1, generate::Place::device);
  for (size_t p = 0; p < spec.parameters.size(); ++p) weights.tensor(p).copy_(host.tensor(p));
  return weights;
}

// Three prompts, two samples each, so that pages are shared and copied on write.
std::vector<generate::Request> greedy_requests() {
  std::vector<generate::Request> out;
  for (uint64_t prompt = 0; prompt < 3; ++prompt) {
    for (uint64_t sample = 0; sample < 2; ++sample) {
      generate::Request request;
      request.id = 10 * prompt + sample;
      request.prompt = tiny_prompt(5 + 18 * static_cast<int64_t>(prompt), prompt);
      request.sampling.temperature = 0;
      request.sampling.max_new_tokens = 24;
      out.push_back(std::move(request));
    }
  }
  return out;
}

struct Paths {
  bool fused_operators = true, paged_attention = true, graphs = true;
};

Results run(const model::ModelSpec& spec, const GeneratorWeights& weights, Paths paths = {}) {
  generate::EngineOptions options;
  options.kv_bytes = int64_t{8} << 20;
  options.max_batch = 4;
  options.threads = 1;
  options.backend = generate::BackendKind::torch;
  options.fused_operators = paths.fused_operators;
  options.paged_attention = paths.paged_attention;
  options.graphs = paths.graphs;
  generate::Engine engine(spec, weights, options);
  Results results = run_all(engine, greedy_requests());
  const bool on_device = weights.place() == generate::Place::device;
  EXPECT_EQ(engine.counters().paged_attention_calls > 0, paths.paged_attention && on_device)
      << "put aside at the start";
  EXPECT_EQ(engine.counters().graph_steps > 0, paths.paged_attention && paths.graphs && on_device)
      << "put aside, or not recorded";
  return results;
}

TEST(GpuGeneration, GreedyFp32TextsEqualThoseOfTheCpu) {
  const at::NoGradGuard no_gradients;
  const auto spec = tiny_spec();
  const auto host = tiny_weights(spec, config::DType::f32);
  const Results want = run(spec, host), got = run(spec, on_gpu(spec, host));
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, expected] : want) {
    const auto& result = got.at(id);
    EXPECT_EQ(result.output_ids, expected.output_ids) << "request " << id;
    ASSERT_EQ(result.log_probs.size(), expected.log_probs.size());
    for (size_t t = 0; t < expected.log_probs.size(); ++t)
      EXPECT_NEAR(result.log_probs[t], expected.log_probs[t], 1e-3);
  }
}

TEST(GpuGeneration, AttentionOverPagesGivesTheTextsOfGatheredOnes) {
  const at::NoGradGuard no_gradients;
  const auto spec = tiny_spec();
  const GeneratorWeights weights = on_gpu(spec, tiny_weights(spec, config::DType::f32));
  expect_close(run(spec, weights, {.paged_attention = false}), run(spec, weights), 1e-3);
}

TEST(GpuGeneration, FusedOperatorsGiveTheTextsOfOneAtATime) {
  const at::NoGradGuard no_gradients;
  const auto spec = tiny_spec();
  const GeneratorWeights weights = on_gpu(spec, tiny_weights(spec, config::DType::f32));
  expect_close(run(spec, weights, {.fused_operators = false}), run(spec, weights), 1e-3);
}

TEST(GpuGeneration, RecordedStepsGiveTheTextsOfKernelsOneByOne) {
  const at::NoGradGuard no_gradients;
  const auto spec = tiny_spec();
  const GeneratorWeights weights = on_gpu(spec, tiny_weights(spec, config::DType::f32));
  expect_close(run(spec, weights, {.graphs = false}), run(spec, weights), 1e-3);
}

}  // namespace
}  // namespace trireme::test
