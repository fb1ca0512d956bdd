// Models whose layers see a window of the text, or whose rotations depend on how long it is.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include "tiny_model.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::Engine;
using generate::EngineOptions;
using generate::Request;

EngineOptions schedule_of(int64_t batch = 8, int64_t chunk = 64, int64_t kv_bytes = 8 << 20) {
  EngineOptions o;
  o.kv_bytes = kv_bytes;
  o.max_batch = batch;
  o.prefill_chunk_tokens = chunk;
  o.threads = 1;
  return o;
}

// Three samples of each of three prompts with a common beginning.
std::vector<Request> requests(int64_t new_tokens) {
  std::vector<Request> out;
  for (uint64_t i = 0; i < 9; ++i) {
    Request r;
    r.id = i;
    r.prompt = tiny_prompt(70, 9);
    for (const int32_t token : tiny_prompt(static_cast<int64_t>(3 + i / 3 * 20), i / 3))
      r.prompt.push_back(token);
    r.sampling.temperature = 0.8;
    r.sampling.max_new_tokens = new_tokens + static_cast<int64_t>(i);
    r.sampling.seed = 5;
    out.push_back(std::move(r));
  }
  return out;
}

model::ModelSpec windows(int64_t window, std::vector<bool> layers) {
  config::ModelShape shape = tiny_spec().shape;
  shape.window = window;
  shape.windowed = std::move(layers);
  return model::describe(shape, model::HeadKind::language);
}

model::ModelSpec rotated_by_length(config::RopeKind kind) {
  config::ModelShape shape = tiny_spec().shape;
  shape.rope_scaling.kind = kind;
  shape.rope_scaling.factor = 4;
  shape.rope_scaling.original_max_positions = 90;
  shape.rope_scaling.short_factor = {1, 1, 1, 1, 1.1, 1.2, 1.3, 1.4};
  shape.rope_scaling.long_factor = {1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5};
  if (kind == config::RopeKind::dynamic) shape.max_positions = 90;
  return model::describe(shape, model::HeadKind::language);
}

class ByType : public testing::TestWithParam<DType> {};

// However the texts are scheduled, also where memory is short.
void expect_same_under_every_schedule(const model::ModelSpec& spec, DType type,
                                      int64_t new_tokens) {
  const auto weights = tiny_weights(spec, type);
  Engine reference(spec, weights, schedule_of());
  const Results want = run_all(reference, requests(new_tokens));
  for (const EngineOptions& o : {schedule_of(1), schedule_of(3, 7), schedule_of(9, 1000),
                                 schedule_of(9, 64, type == DType::f32 ? 300000 : 150000)}) {
    for (const bool sharing : {false, true}) {
      EngineOptions mine = o;
      mine.prefix_sharing = mine.sample_sharing = sharing;
      mine.speculation_tokens = sharing ? 4 : 0;
      Engine engine(spec, weights, mine);
      expect_same(want, run_all(engine, requests(new_tokens)));
      EXPECT_EQ(engine.counters().pages_used, 0);
    }
  }
}

TEST_P(ByType, WindowsAreTheSameBitsHoweverTextsAreScheduled) {
  expect_same_under_every_schedule(windows(20, {true, true}), GetParam(), 60);
  expect_same_under_every_schedule(windows(33, {false, true}), GetParam(), 60);
}

TEST_P(ByType, PagesThatEveryWindowHasPassedAreGivenBack) {
  for (const bool all : {true, false}) {
    const auto spec = windows(40, {true, all});
    const auto weights = tiny_weights(spec, GetParam());
    EngineOptions options = schedule_of();
    options.page_size = 16;
    Engine engine(spec, weights, options);
    Request request = requests(400)[0];
    request.prompt.resize(64);
    const auto result = run_all(engine, {request}).begin()->second;
    // The window lies in four pages at most.
    if (all) {
      EXPECT_LE(engine.counters().pages_peak, 5);
    } else {
      EXPECT_EQ(engine.counters().pages_peak, (64 + 400 + 15) / 16);
    }
    std::vector<int32_t> ids = request.prompt;
    ids.insert(ids.end(), result.output_ids.begin(), result.output_ids.end());
    const auto want = full_log_probs(spec, weights, ids, 0.8);
    for (size_t i = 0; i < result.log_probs.size(); ++i)
      EXPECT_NEAR(result.log_probs[i], want[63 + i], GetParam() == DType::f32 ? 1e-5 : 1e-1) << i;
  }
}

TEST_P(ByType, LongerTextsAreComputedWithTheirRotation) {
  for (const auto kind : {config::RopeKind::longrope, config::RopeKind::dynamic}) {
    const auto spec = rotated_by_length(kind);
    expect_same_under_every_schedule(spec, GetParam(), 24);
    if (GetParam() != DType::f32) continue;
    const auto weights = tiny_weights(spec, GetParam());
    Engine engine(spec, weights, schedule_of());
    const auto texts = requests(24);
    for (const auto& [id, result] : run_all(engine, texts)) {
      std::vector<int32_t> ids = texts[id].prompt;
      for (size_t i = 0; i < result.output_ids.size(); ++i) {
        // The token after `ids` is drawn from a pass over just these.
        const at::Tensor logits = full_logits(spec, weights, ids);
        const at::Tensor all = at::log_softmax(logits.select(0, logits.size(0) - 1).div(0.8), 0);
        EXPECT_NEAR(result.log_probs[i], all.const_data_ptr<float>()[result.output_ids[i]], 2e-5)
            << id << ", token " << i;
        ids.push_back(result.output_ids[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ByType, testing::Values(DType::f32, DType::bf16),
                         [](const auto& tested) {
                           return tested.param == DType::f32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
