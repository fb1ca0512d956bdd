#include "torch/torch.hpp"

#include "tiny_model.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "support/world.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/forward.hpp"

namespace trireme::test {

using generate::GeneratorWeights;

model::ModelSpec tiny_spec(int64_t vocab, bool tied, bool qkv_bias) {
  config::ModelShape s;
  s.vocab = vocab;
  s.hidden = 96;
  s.layers = 2;
  s.heads = 6;
  s.kv_heads = 3;
  s.head_dim = 16;
  s.ffn = 160;
  s.norm_eps = 1e-5;
  s.tied = tied;
  s.qkv_bias = qkv_bias;
  s.max_positions = 700;
  return model::describe(s, model::HeadKind::language);
}

namespace {

constexpr const char* family_configs[] = {
    R"("Olmo3", "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"],
       "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64})",
    R"("Olmo2")",
    R"("SmolLM3", "no_rope_layers": [1, 0])",
    R"("Granite", "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.4,
       "logits_scaling": 0.7)",
    R"("Qwen3", "head_dim": 24, "attention_bias": true)",
    R"("Mistral", "sliding_window": 7)",
    R"("Mistral", "sliding_window": 40, "head_dim": 20)",
    R"("Ministral3", "rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 1e6,
       "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.3})",
    R"("Qwen2", "use_sliding_window": true, "sliding_window": 6, "max_window_layers": 1)",
    R"("Gemma2", "sliding_window": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0,
       "query_pre_attn_scalar": 24)",
    R"("Gemma3", "sliding_window": 8, "sliding_window_pattern": 2)",
    R"("Glm")",
    R"("Glm4", "attention_bias": false, "head_dim": 24)",
    R"("Phi3", "partial_rotary_factor": 0.75)",
    R"("Phi3", "sliding_window": 8, "original_max_position_embeddings": 200,
       "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1.1, 1.2, 1, 2, 2, 3],
                        "long_factor": [1, 1.3, 1.9, 2.6, 3.5, 4, 4.6, 5]})",
    R"("Cohere2", "sliding_window": 8, "sliding_window_pattern": 2)",
    R"("Apertus")",
    R"("Llama", "mlp_bias": true, "attention_bias": true, "rope_scaling": {"type": "dynamic", "factor": 2})"};

// Element e of parameter p: uniform, wide enough that attention and logits are far from flat.
float value_of(size_t parameter, int64_t element, bool norm, uint64_t salt) {
  const float u =
      base::uniform(salt, base::Stream::test, parameter, static_cast<uint32_t>(element)) * 2 - 1;
  return norm ? 1 + 0.2f * u : 0.25f * u;
}

}  // namespace

std::vector<SmallFamily> small_families(int64_t kv_heads) {
  const int64_t heads = 2 * kv_heads;
  std::vector<SmallFamily> out;
  for (const std::string config : family_configs) {
    const size_t quote = config.find('"', 1);
    const bool has_head_dim = config.find("head_dim") != std::string::npos;
    out.push_back({config, config::parse_model_shape(base::text(
                               R"({"architectures": [)", config.substr(0, quote),
                               R"(ForCausalLM"])", config.substr(quote + 1),
                               has_head_dim ? "" : R"(, "head_dim": 16)", R"(, "hidden_size": )",
                               16 * heads, R"(, "num_hidden_layers": 2, "num_attention_heads": )",
                               heads, R"(, "num_key_value_heads": )", kv_heads,
                               R"(, "intermediate_size": 96, "vocab_size": 300,
                                  "max_position_embeddings": 256})"))});
  }
  return out;
}

GeneratorWeights tiny_weights(const model::ModelSpec& spec, config::DType dtype, int rank,
                              int degree, uint64_t salt) {
  GeneratorWeights weights(spec, dtype, rank, degree);
  const auto storage = weights.storage();
  for (size_t p = 0; p < storage.size(); ++p) {
    const base::Block b = weights.block(p);
    const int64_t columns = spec.parameters[p].spec.columns();
    const bool norm = spec.parameters[p].spec.shape.size() == 1 &&
                      spec.parameters[p].spec.name.find("norm") != std::string::npos;
    for (int64_t r = 0; r < b.rows; ++r) {
      for (int64_t c = 0; c < b.columns; ++c) {
        const float v = value_of(p, (b.row + r) * columns + b.column + c, norm, salt);
        const int64_t at = r * b.columns + c;
        if (dtype == config::DType::f32) {
          reinterpret_cast<float*>(storage[p])[at] = v;
        } else {
          reinterpret_cast<uint16_t*>(storage[p])[at] = c10::BFloat16(v).x;
        }
      }
    }
  }
  return weights;
}

namespace {

at::Tensor full_hidden(const model::ModelSpec& spec, const GeneratorWeights& weights,
                       const std::vector<int32_t>& ids) {
  at::NoGradGuard no_grad;
  const std::vector<std::span<const int32_t>> sequences{ids};
  const model::PackedBatch batch = model::pack(sequences, at::kCPU);
  model::Strategy plain;
  const auto parameters = [&](const model::Stage& stage) {
    std::vector<at::Tensor> out;
    for (const size_t p : stage.parameters) out.push_back(weights.tensor(p));
    return out;
  };
  model::Ropes ropes = model::make_ropes(spec, spec.shape.longest(), at::kCPU);
  model::fit_ropes(spec, batch, ropes);
  at::Tensor x;
  for (const model::Stage& stage : spec.stages)
    x = model::run_stage({spec, stage, parameters(stage), batch, ropes, plain}, x);
  return x;
}

at::Tensor head_of(const model::ModelSpec& spec, const GeneratorWeights& weights) {
  return weights.tensor(spec.head_parameter());
}

}  // namespace

at::Tensor full_logits(const model::ModelSpec& spec, const GeneratorWeights& weights,
                       const std::vector<int32_t>& ids) {
  at::NoGradGuard no_grad;
  return at::linear(full_hidden(spec, weights, ids), head_of(spec, weights));
}

std::vector<float> full_log_probs(const model::ModelSpec& spec, const GeneratorWeights& weights,
                                  const std::vector<int32_t>& ids, double temperature) {
  at::NoGradGuard no_grad;
  const int64_t n = static_cast<int64_t>(ids.size()) - 1;
  const at::Tensor hidden = full_hidden(spec, weights, ids).narrow(0, 0, n);
  const std::vector<int64_t> targets(ids.begin() + 1, ids.end());
  const auto out = kernels::token_log_probs(hidden, head_of(spec, weights),
                                            at::tensor(at::ArrayRef<int64_t>(targets)), temperature,
                                            kernels::Entropy::skip);
  const float* data = out.log_probs.const_data_ptr<float>();
  return {data, data + n};
}

std::vector<int32_t> tiny_prompt(int64_t length, uint64_t salt, int64_t vocab) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < length; ++i) {
    const float u = base::uniform(salt, base::Stream::test, 77, static_cast<uint32_t>(i));
    out.push_back(static_cast<int32_t>(u * static_cast<float>(vocab)));
  }
  return out;
}

std::vector<generate::Request> mixed_requests(int64_t vocab) {
  std::vector<generate::Request> out;
  for (uint64_t i = 0; i < 10; ++i) {
    generate::Request r;
    r.id = i;
    r.prompt = tiny_prompt(5 + 9 * static_cast<int64_t>(i % 5), i % 5, vocab);
    r.sampling.temperature = i % 3 == 0 ? 0 : 1;
    r.sampling.top_p = i % 4 == 1 ? 0.9 : 1;
    r.sampling.top_k = i % 4 == 2 ? 30 : 0;
    r.sampling.max_new_tokens = 24;
    r.sampling.seed = 3;
    if (i % 2 == 1) {
      for (int32_t id = 0; id < vocab; id += 2) r.sampling.stop_ids.push_back(id);
      r.sampling.min_new_tokens = 5;
    }
    if (i % 5 >= 3)
      r.sampling.logit_bias = {{1, 2.5f},
                               {2, 4},
                               {static_cast<int32_t>(vocab / 2), 3},
                               {static_cast<int32_t>(vocab) - 1, -2}};
    out.push_back(std::move(r));
  }
  return out;
}

Results run_all(generate::Engine& engine, std::vector<generate::Request> requests) {
  Results out;
  engine.run(std::move(requests), [&](generate::Result r) { out[r.id] = std::move(r); });
  return out;
}

void expect_same(const Results& a, const Results& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [id, x] : a) {
    ASSERT_TRUE(b.contains(id));
    const generate::Result& y = b.at(id);
    EXPECT_EQ(x.output_ids, y.output_ids) << "request " << id;
    EXPECT_EQ(x.finish_reason, y.finish_reason) << "request " << id;
    ASSERT_EQ(x.log_probs.size(), y.log_probs.size());
    EXPECT_EQ(
        std::memcmp(x.log_probs.data(), y.log_probs.data(), x.log_probs.size() * sizeof(float)), 0)
        << "request " << id;
    EXPECT_EQ(x.sample_log_probs, y.sample_log_probs) << "request " << id;
  }
}

void expect_close(const Results& want, const Results& got, double tolerance) {
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [id, a] : want) {
    const auto& b = got.at(id);
    ASSERT_EQ(a.output_ids, b.output_ids) << "request " << id;
    for (size_t i = 0; i < a.log_probs.size(); ++i)
      EXPECT_NEAR(a.log_probs[i], b.log_probs[i], tolerance) << "request " << id;
    ASSERT_EQ(a.sample_log_probs.size(), b.sample_log_probs.size());
    for (size_t i = 0; i < a.sample_log_probs.size(); ++i)
      EXPECT_NEAR(a.sample_log_probs[i], b.sample_log_probs[i], tolerance);
  }
}

void expect_agreement(const Results& mine) {
  std::string bytes;
  for (const auto& [id, r] : mine) {
    bytes.append(reinterpret_cast<const char*>(r.output_ids.data()),
                 r.output_ids.size() * sizeof(int32_t));
    bytes.append(reinterpret_cast<const char*>(r.log_probs.data()),
                 r.log_probs.size() * sizeof(float));
  }
  for (const std::string& other : world().all_gather(bytes)) EXPECT_EQ(other, bytes);
}

}  // namespace trireme::test
