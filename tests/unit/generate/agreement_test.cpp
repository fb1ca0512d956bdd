// Rollout log-probs against those of the trainer's own path (zero::ShardedModel, packed
// micro-batches, the chunked head): the same bits, in fp32 and bf16, at any batch, packing,
// micro-batch size and number of ranks.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "support/golden.hpp"
#include "support/published_models.hpp"
#include "support/world.hpp"
#include "tiny_model.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/log_sum_exp.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/model/stored_type.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::Engine;

struct TestModel {
  model::ModelSpec spec;
  zero::ReadRows read;
};

TestModel golden_model(const std::filesystem::path& folder) {
  const model::ModelFolder files = model::open_model(folder);
  model::ModelSpec spec = model::describe(files.shape, model::HeadKind::language);
  return {spec,
          [spec, weights = files.weights](size_t parameter, const base::Block& block, float* out) {
            model::load_parameter(spec, parameter, block, *weights, 0, out);
          }};
}

// Random weights of a shape, wide enough that attention and logits are far from flat.
TestModel random_model(const model::ModelSpec& spec) {
  return {
      spec, [spec](size_t parameter, const base::Block& block, float* out) {
        const auto& about = spec.parameters[parameter].spec;
        const bool norm = about.shape.size() == 1 && about.name.find("norm") != std::string::npos;
        const float width = 2 / std::sqrt(static_cast<float>(about.columns()));
        for (int64_t i = 0; i < block.elements(); ++i) {
          const auto at = static_cast<uint32_t>((block.row + i / block.columns) * about.columns() +
                                                block.column + i % block.columns);
          const float u = base::uniform(1, base::Stream::test, parameter, at) * 2 - 1;
          out[i] = norm ? 1 + 0.2f * u : width * u;
        }
      }};
}

TestModel random_model(const config::ModelShape& shape) {
  return random_model(model::describe(shape, model::HeadKind::language));
}

config::ModelShape shape_of(int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t ffn, int64_t vocab) {
  config::ModelShape s;
  s.hidden = hidden;
  s.layers = layers;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = head_dim;
  s.ffn = ffn;
  s.vocab = vocab;
  s.norm_eps = 1e-5;
  s.tied = true;
  s.max_positions = 1024;
  return s;
}

generate::GeneratorWeights weights_of(const TestModel& m, DType dtype) {
  generate::GeneratorWeights weights(m.spec, dtype);
  const auto storage = weights.storage();
  std::vector<float> values;
  for (size_t p = 0; p < storage.size(); ++p) {
    values.resize(static_cast<size_t>(weights.block(p).elements()));
    m.read(p, weights.block(p), values.data());
    model::from_float(dtype == DType::bf16 ? model::StoredType::bf16 : model::StoredType::f32,
                      values.data(), values.size(), storage[p]);
  }
  return weights;
}

struct Text {
  std::vector<int32_t> ids;
  size_t prompt = 0;
  std::vector<float> log_probs;  // of ids[prompt ..]
};

// `count` texts of different lengths, some of them samples of one prompt, written by this rank.
std::vector<Text> write_texts(const TestModel& m, DType dtype, int64_t count, int64_t new_tokens,
                              double temperature) {
  const generate::GeneratorWeights weights = weights_of(m, dtype);
  generate::EngineOptions options;
  options.kv_bytes = int64_t{64} << 20;
  options.max_batch = 64;
  options.prefill_chunk_tokens = 70;
  options.threads = 1;
  Engine engine(m.spec, weights, options);
  const auto reasons = engine.differences_from_training();
  if (!reasons.empty()) return {};
  std::vector<generate::Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    generate::Request r;
    r.id = static_cast<uint64_t>(i);
    const int64_t prompt = i - i % 3;  // three samples of each
    r.prompt =
        tiny_prompt(1 + prompt * 7 % 60, 10 + static_cast<uint64_t>(prompt), m.spec.shape.vocab);
    r.sampling.temperature = temperature;
    r.sampling.max_new_tokens = new_tokens - i % 5;
    r.sampling.top_p = i % 4 == 3 ? 0.9 : 1;
    r.sampling.seed = 11 + static_cast<uint64_t>(world().rank());
    requests.push_back(std::move(r));
  }
  std::vector<Text> texts(requests.size());
  for (const generate::Request& r : requests) texts[r.id] = {r.prompt, r.prompt.size(), {}};
  for (const auto& [id, result] : run_all(engine, std::move(requests))) {
    texts[id].ids.insert(texts[id].ids.end(), result.output_ids.begin(), result.output_ids.end());
    texts[id].log_probs = result.log_probs;
  }
  return texts;
}

// Tokens whose log-probs are not the same bits, and the largest difference.
struct Difference {
  int64_t tokens = 0;
  int64_t unequal = 0;
  float largest = 0;
};

// One packed micro-batch: the texts' log-probs as the trainer computes them. Collective.
void score(zero::ShardedModel& model, const std::vector<Text>& texts,
           const std::vector<int64_t>& which, double temperature, Difference& out) {
  std::vector<std::span<const int32_t>> sequences;
  std::vector<int64_t> rows, targets;
  std::vector<float> want;
  int64_t first = 0;
  for (const int64_t i : which) {
    const Text& text = texts[static_cast<size_t>(i)];
    sequences.emplace_back(text.ids);
    for (size_t t = text.prompt; t < text.ids.size(); ++t) {
      rows.push_back(first + static_cast<int64_t>(t) - 1);
      targets.push_back(text.ids[t]);
      want.push_back(text.log_probs[t - text.prompt]);
    }
    first += static_cast<int64_t>(text.ids.size());
  }
  const model::PackedBatch batch = model::pack(sequences, at::kCPU);
  model.forward(batch, [&](const at::Tensor& hidden, const kernels::HeadWeight& head) {
    const auto as_tensor = [](const std::vector<int64_t>& v) {
      return at::tensor(at::ArrayRef<int64_t>(v));
    };
    const at::Tensor got =
        kernels::token_log_probs(hidden.index_select(0, as_tensor(rows)), head, as_tensor(targets),
                                 temperature > 0 ? temperature : 1, kernels::Entropy::skip)
            .log_probs;
    for (size_t i = 0; i < want.size(); ++i) {
      const float mine = got.const_data_ptr<float>()[i];
      ++out.tokens;
      out.unequal += std::bit_cast<uint32_t>(mine) != std::bit_cast<uint32_t>(want[i]);
      out.largest = std::max(out.largest, std::abs(mine - want[i]));
    }
  });
}

Difference compare(const TestModel& m, DType dtype, const std::vector<Text>& texts,
                   int64_t micro_batch_tokens, double temperature) {
  zero::ShardedModelOptions options;
  options.compute = dtype;
  zero::ShardedModel model(model::frozen(m.spec), world(), std::nullopt, at::kCPU, options);
  model.load(m.read);
  std::vector<int64_t> lengths;
  for (const Text& text : texts) lengths.push_back(static_cast<int64_t>(text.ids.size()));
  auto bins = ppo::micro_batches(lengths, micro_batch_tokens, 1);
  bins.resize(static_cast<size_t>(world().max(static_cast<int64_t>(bins.size()))));
  Difference out;
  for (const auto& which : bins) score(model, texts, which, temperature, out);
  return out;
}

class Agreement : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  // Skips (on every rank) where the program itself says that bits may differ.
  void expect_equal(const char* name, const TestModel& m, int64_t count, int64_t new_tokens,
                    double temperature, const std::vector<int64_t>& micro_batch_tokens) {
    const auto texts = write_texts(m, GetParam(), count, new_tokens, temperature);
    if (world().max(static_cast<int64_t>(texts.empty())) > 0)
      GTEST_SKIP() << "this machine adds in other orders";
    for (const int64_t tokens : micro_batch_tokens) {
      const Difference found = compare(m, GetParam(), texts, tokens, temperature);
      EXPECT_GT(found.tokens, 0);
      EXPECT_EQ(found.unequal, 0) << name << ", " << count << " texts, micro-batches of " << tokens
                                  << ": of " << found.tokens << " log-probs, largest difference "
                                  << found.largest;
    }
  }
};

TEST_P(Agreement, GoldenModels) {
  for (const char* folder : {"llama_tied", "llama_untied", "llama_rope3"}) {
    const TestModel m = golden_model(Golden::folder() / "models" / folder);
    for (const int64_t count : {1, 2, 5, 64})
      expect_equal(folder, m, count, 20, 1, {40, 300, 100000});
    expect_equal(folder, m, 9, 20, 0.7, {200});
    expect_equal(folder, m, 9, 20, 0, {200});
  }
}

TEST_P(Agreement, ShapesAsTheyOccur) {
  if (world().size() > 2)
    GTEST_SKIP() << "what depends on the shape does not depend on the number of ranks";
  // The vocabularies leave parts of a chunk of the head; 256 inputs lie between one and two of the
  // library's fp32 blocks.
  expect_equal("25M", random_model(shape_of(384, 2, 6, 2, 64, 1024, 4200)), 6, 24, 1, {60, 100000});
  expect_equal("256", random_model(shape_of(256, 2, 4, 1, 64, 688, 5000)), 6, 24, 1, {60, 100000});
  expect_equal("135M", random_model(shape_of(576, 2, 9, 3, 64, 1536, 4608)), 4, 12, 1, {100000});
  auto qwen3 = shape_of(128, 2, 4, 2, 48, 256, 700);
  qwen3.architecture = config::Architecture::qwen3;
  expect_equal("Qwen3", random_model(qwen3), 6, 24, 1, {60, 100000});
  expect_equal("long", random_model(shape_of(128, 2, 4, 2, 32, 256, 300)), 2, 600, 1, {100000});
}

// A small model of each family, with windows smaller than a text, soft caps and every rotation, and
// with an adapter.
TEST_P(Agreement, FamiliesOfModels) {
  if (world().size() > 2)
    GTEST_SKIP() << "what depends on the shape does not depend on the number of ranks";
  for (const SmallFamily& family : small_families(2)) {
    expect_equal(family.config.c_str(), random_model(family.shape), 7, 40, 1, {60, 100000});
    model::Adapter adapter;
    adapter.rank = 4;
    adapter.alpha = 8;
    adapter.targets = {"all-linear"};
    const model::ModelSpec adapted = model::with_adapter(
        model::describe(family.shape, model::HeadKind::language), adapter, "this test");
    expect_equal(base::text("adapter of ", family.config).c_str(), random_model(adapted), 5, 20, 1,
                 {60, 100000});
  }
}

// Logits in fp32 (model.head_dtype), also where a block of the library's fp32 sums is no multiple
// of what the bf16 kernel takes at a time.
TEST_P(Agreement, WideHead) {
  if (world().size() > 2)
    GTEST_SKIP() << "what depends on the shape does not depend on the number of ranks";
  for (const auto& shape :
       {shape_of(384, 2, 6, 2, 64, 1024, 4200), shape_of(576, 2, 9, 3, 64, 1536, 4608),
        shape_of(128, 2, 4, 2, 32, 256, 300)}) {
    TestModel m = random_model(shape);
    const auto narrow = write_texts(m, GetParam(), 5, 20, 1);
    m.spec.head_type = config::HeadType::fp32;
    expect_equal("wide head", m, 5, 20, 1, {60, 100000});
    const auto wide = write_texts(m, GetParam(), 5, 20, 1);
    if (narrow.empty() || wide.empty()) continue;
    EXPECT_EQ(narrow[0].log_probs[0] == wide[0].log_probs[0], GetParam() == DType::f32)
        << "nothing was wider";
  }
}

// An adapter beside the weights: ranks below and above a kernel's least number of outputs, ranks
// that differ between modules, the embedding and the head, logits in fp32 and capped.
TEST_P(Agreement, Adapters) {
  if (world().size() > 2)
    GTEST_SKIP() << "what depends on the shape does not depend on the number of ranks";
  for (const int64_t rank : {1, 16}) {
    auto shape = shape_of(384, 2, 6, 2, 64, 1024, 4200);
    model::Adapter adapter;
    adapter.rank = rank;
    adapter.alpha = 16;
    adapter.rslora = rank == 16;
    adapter.targets = {"all-linear"};
    const TestModel m = random_model(model::with_adapter(
        model::describe(shape, model::HeadKind::language), adapter, "this test"));
    expect_equal(base::text("rank ", rank).c_str(), m, 5, 20, 1, {60, 100000});
    shape.tied = false;
    shape.logit_cap = 4;
    adapter.targets = {"q_proj", "down_proj", "embed_tokens", "lm_head"};
    adapter.rank_pattern = {{"layers.1.mlp.down_proj", 2 * rank}};
    for (const auto head : {config::HeadType::model, config::HeadType::fp32}) {
      TestModel all = random_model(model::with_adapter(
          model::describe(shape, model::HeadKind::language), adapter, "this test"));
      all.spec.head_type = head;
      expect_equal(base::text("all of rank ", rank).c_str(), all, 5, 20, 1, {60, 100000});
    }
  }
}

TEST_P(Agreement, PublishedModel) {
  const auto folder = published_models() / "SmolLM2-135M-Instruct";
  if (!std::filesystem::exists(folder / "model.safetensors"))
    GTEST_SKIP() << "no model in " << folder << ": ./bootstrap.sh model gets it";
  expect_equal("SmolLM2-135M", golden_model(folder), 4, 16, 1, {90, 100000});
}

INSTANTIATE_TEST_SUITE_P(Types, Agreement, testing::Values(DType::f32, DType::bf16),
                         [](const auto& tested) {
                           return tested.param == DType::f32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
