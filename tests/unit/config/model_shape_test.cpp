#include "trireme/config/model_shape.hpp"

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trireme/base/files.hpp"
#include "trireme/config/checkpoints.hpp"
#include "trireme/config/refused_keys.hpp"
#include "unit/config/damage.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

std::string source_dir() {
  const char* dir = std::getenv("TRIREME_SOURCE_DIR");
  return dir ? dir : ".";
}
std::string parity_dir() {
  const char* dir = std::getenv("TRIREME_PARITY_DIR");
  return dir ? dir : source_dir() + "/tests/gold/parity";
}

Json small() {
  return Json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 256, "bos_token_id": 1, "eos_token_id": 2})");
}
ModelShape parse(const Json& json) { return parse_model_shape(json.dump(), "config.json"); }
std::string refusal(const Json& json) {
  return error_of(ExitCode::bad_data, [&] { parse(json); });
}
Json with(const char* key, Json value) {
  Json json = small();
  json[key] = std::move(value);
  return json;
}

TEST(ModelShape, PublishedModelsGoThroughBothDirections) {
  for (const char* name : {"llama3-8b", "llama3-70b", "smollm2-135m", "smollm2-360m",
                           "smollm2-1.7b", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b"}) {
    const ModelShape shape = load_model_shape(source_dir() + "/inputs/models/" + name);
    EXPECT_EQ(parse_model_shape(to_config_json(shape)), shape) << name;
  }
}

TEST(ModelShape, ParityModelsInBothSpellings) {
  const ModelShape untied = load_model_shape(parity_dir() + "/models/llama_untied");
  EXPECT_EQ(untied.head_dim, 16);
  EXPECT_EQ(untied.rope_theta, 10000);
  EXPECT_FALSE(untied.tied);
  EXPECT_EQ(untied.bos_id, 1);
  EXPECT_THAT(untied.eos_ids, ElementsAre(2));
  EXPECT_EQ(untied.pad_id, 0);
  EXPECT_EQ(untied.norm_eps, 1e-5);

  const ModelShape tied = load_model_shape(parity_dir() + "/models/llama_tied");
  EXPECT_TRUE(tied.tied);
  EXPECT_EQ(tied.norm_eps, 1e-6);
  EXPECT_EQ(tied.dtype, "float32");

  const ModelShape rope3 = load_model_shape(parity_dir() + "/models/llama_rope3");
  EXPECT_EQ(rope3.rope_scaling, (RopeScaling{RopeKind::llama3, 8, 1, 4, 64}));
  EXPECT_EQ(rope3.rope_theta, 500000);

  const ModelShape reward = load_model_shape(parity_dir() + "/models/reward_model");
  EXPECT_TRUE(reward.score_head);
  EXPECT_EQ(reward.score_mean, 0.3);
  EXPECT_EQ(reward.score_std, 1.7);
  EXPECT_EQ(reward.value_head_prefix, "score");
  for (const ModelShape& shape : {untied, tied, rope3, reward})
    EXPECT_EQ(parse_model_shape(to_config_json(shape)), shape);
}

TEST(ModelShape, RopeParametersOfTransformers5) {
  Json json = small();
  json["rope_parameters"] = {{"rope_theta", 500000.0},  {"rope_type", "llama3"},
                             {"factor", 32.0},          {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const ModelShape shape = parse(json);
  EXPECT_EQ(shape.rope_theta, 500000);
  EXPECT_EQ(shape.rope_scaling, (RopeScaling{RopeKind::llama3, 32, 1, 4, 8192}));
  EXPECT_EQ(parse(with("rope_scaling", {{"type", "linear"}, {"factor", 2.0}})).rope_scaling.kind,
            RopeKind::linear);
}

TEST(ModelShape, EndTokens) {
  EXPECT_THAT(parse(with("eos_token_id", {2, 7, 9})).eos_ids, ElementsAre(2, 7, 9));
  EXPECT_TRUE(parse(with("eos_token_id", nullptr)).eos_ids.empty());
  EXPECT_EQ(parse(with("pad_token_id", -1)).pad_id, std::nullopt);
  EXPECT_THAT(refusal(with("eos_token_id", 256)), HasSubstr("eos_token_id is 256"));
}

TEST(ModelShape, BiasesFollowTheArchitecture) {
  EXPECT_TRUE(parse(with("attention_bias", true)).o_bias);
  EXPECT_TRUE(parse(with("mlp_bias", true)).mlp_bias);
  Json qwen = small();
  qwen["architectures"] = {"Qwen2ForCausalLM"};
  qwen["model_type"] = "qwen2";
  const ModelShape shape = parse(qwen);
  EXPECT_TRUE(shape.qkv_bias);
  EXPECT_FALSE(shape.o_bias);
}

TEST(ModelShape, Qwen3HasHeadsOfItsOwnWidth) {
  Json qwen = small();
  qwen["architectures"] = {"Qwen3ForCausalLM"};
  qwen["model_type"] = "qwen3";
  qwen.erase("head_dim");
  EXPECT_EQ(parse(qwen).head_dim, 128);  // as transformers, whatever the hidden size
  EXPECT_FALSE(parse(qwen).qkv_bias);
  qwen["head_dim"] = 24;
  qwen["attention_bias"] = true;
  const ModelShape shape = parse(qwen);
  EXPECT_EQ(shape.head_dim, 24);
  EXPECT_TRUE(shape.qkv_bias && shape.o_bias);
  EXPECT_EQ(parse_model_shape(to_config_json(shape)), shape);
}

Json of(const char* architecture) { return with("architectures", {architecture}); }

TEST(ModelShape, WindowsOfEachArchitecture) {
  Json mistral = of("MistralForCausalLM");
  EXPECT_EQ(parse(mistral).window_of(1), 4096);  // transformers' default when the key is absent
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(parse(mistral).window_of(1), 0);
  mistral["sliding_window"] = 7;
  EXPECT_EQ(parse(mistral).window_of(0), 7);
  mistral["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_THAT(refusal(mistral), HasSubstr("layer_types"));

  Json qwen = of("Qwen3ForCausalLM");
  qwen["sliding_window"] = 7;
  EXPECT_TRUE(parse(qwen).windowed.empty());
  qwen["use_sliding_window"] = true;
  EXPECT_TRUE(parse(qwen).windowed.empty()) << "max_window_layers is 28";
  qwen["max_window_layers"] = 1;
  EXPECT_THAT(parse(qwen).windowed, ElementsAre(false, true));
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_THAT(parse(qwen).windowed, ElementsAre(true, false));
  qwen["use_sliding_window"] = false;
  EXPECT_THAT(refusal(qwen), HasSubstr("use_sliding_window is false"));
  qwen["layer_types"] = {"chunked_attention", "full_attention"};
  EXPECT_THAT(refusal(qwen), HasSubstr("chunked_attention"));

  Json gemma = of("Gemma3ForCausalLM");
  gemma["sliding_window_pattern"] = 2;
  EXPECT_THAT(parse(gemma).windowed, ElementsAre(true, false));
  EXPECT_EQ(parse(gemma).window, 4096);
  gemma["sliding_window"] = nullptr;
  EXPECT_THAT(refusal(gemma), HasSubstr("sliding_window is null"));
  EXPECT_THAT(parse(of("Cohere2ForCausalLM")).without_rope, ElementsAre(false, false));
  EXPECT_THAT(parse(of("Gemma2ForCausalLM")).windowed, ElementsAre(true, false));
}

TEST(ModelShape, TheTextModelOfOneThatSeesImages) {
  const Json wrapped = Json::parse(
      R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
          "vision_config": {"hidden_size": 1152}, "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
          "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})");
  const ModelShape shape = parse(wrapped);
  EXPECT_EQ(shape.architecture, Architecture::gemma3);
  EXPECT_EQ(shape.heads, 8);
  EXPECT_EQ(shape.vocab, 262208);
  EXPECT_THAT(shape.eos_ids, ElementsAre(1, 106));
  EXPECT_EQ(parse(Json::parse(text_model_config(wrapped.dump()))), shape);
  Json other = wrapped;
  other["text_config"]["model_type"] = "llama4_text";
  EXPECT_THAT(refusal(other), HasSubstr("llama4_text"));
}

TEST(ModelShape, RotationsInBothSpellings) {
  Json old = of("Gemma3ForCausalLM"), fresh = old;
  old.update(Json::parse(R"({"rope_theta": 7e5, "rope_local_base_freq": 3e4,
                             "rope_scaling": {"rope_type": "linear", "factor": 8.0}})"));
  fresh["rope_parameters"] = Json::parse(
      R"({"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 7e5},
          "sliding_attention": {"rope_type": "default", "rope_theta": 3e4}})");
  EXPECT_EQ(parse(old), parse(fresh));
  EXPECT_EQ(parse(old).local_rope->theta, 3e4);
  fresh["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_THAT(refusal(fresh), HasSubstr("full_attention and sliding_attention"));

  Json phi = of("Phi3ForCausalLM");
  phi.update(Json::parse(R"({"partial_rotary_factor": 0.5, "max_position_embeddings": 131072,
      "rope_scaling": {"type": "su", "short_factor": [1, 1, 2, 2], "long_factor": [1, 2, 3, 4]}})"));
  EXPECT_EQ(parse(phi).rotary_dims, 8);
  EXPECT_EQ(parse(phi).rope_scaling.original_max_positions, 4096);
  EXPECT_NEAR(parse(phi).rope_scaling.attention_factor, 1.190238,
              1e-6);  // sqrt(1 + ln 32 / ln 4096)
  phi["rope_scaling"]["long_factor"] = {1, 2};
  EXPECT_THAT(refusal(phi), HasSubstr("long_factor, a list of 4"));

  EXPECT_EQ(parse(of("ApertusForCausalLM")).rope_scaling.factor, 8);
  const ModelShape ministral = parse(of("Ministral3ForCausalLM"));
  EXPECT_EQ(ministral.rope_scaling.kind, RopeKind::yarn);
  EXPECT_EQ(ministral.rope_scaling.attention_factor, 1);
  EXPECT_EQ(ministral.position_scale->period, 16384);
}

TEST(ModelShape, RefusesByName) {
  EXPECT_THAT(refusal(with("architectures", {"MixtralForCausalLM"})),
              HasSubstr("MixtralForCausalLM is not supported (supported: LlamaForCausalLM"));
  EXPECT_THAT(refusal(with("hidden_act", "gelu")), HasSubstr("hidden_act gelu"));
  EXPECT_THAT(refusal(with("rope_scaling", {{"rope_type", "ntk"}, {"factor", 2}})),
              HasSubstr("rope type 'ntk'"));
  EXPECT_THAT(refusal(with("quantization_config", {{"bits", 4}})), HasSubstr("quantised"));
  EXPECT_THAT(refusal(with("quantization_config",
                           {{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}})),
              HasSubstr("weight_block_size has 0"));
  EXPECT_THAT(refusal(with("quantization_config", {{"quant_method", "fp8"}, {"fmt", "e5m2"}})),
              HasSubstr("only e4m3"));
  EXPECT_THAT(refusal(with("num_local_experts", 8)), HasSubstr("mixtures of experts"));
  EXPECT_THAT(refusal(with("attention_dropout", 0.1)), HasSubstr("attention_dropout"));
  EXPECT_THAT(refusal(with("torch_dtype", "float8_e4m3fn")), HasSubstr("float8_e4m3fn"));
  EXPECT_THAT(refusal(with("layer_types", {"full_attention", "sliding_attention"})),
              HasSubstr("sliding_attention"));
  EXPECT_THAT(refusal(with("use_sliding_window", true)), HasSubstr("use_sliding_window"));
  EXPECT_THAT(refusal(with("partial_rotary_factor", 0.5)), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refusal(with("rope_interleaved", true)), HasSubstr("rope_interleaved"));
  Json classifier = with("architectures", {"LlamaForSequenceClassification"});
  classifier["id2label"] = {{"0", "A"}, {"1", "B"}};
  EXPECT_THAT(refusal(classifier), HasSubstr("2 labels"));
}

// What stands in the config.json files of published models beside the sizes; small() has those.
TEST(ModelShape, PublishedFamiliesThatAreKnown) {
  const std::vector<std::pair<const char*, const char*>> families{
      {"Llama 2",
       R"({"pretraining_tp": 1, "rope_scaling": null, "pad_token_id": 0, "torch_dtype": "float16", "use_cache": true})"},
      {"Llama 3.2",
       R"({"head_dim": 16, "tie_word_embeddings": true, "eos_token_id": [2, 8, 9], "rope_theta": 500000.0,
          "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})"},
      {"TinyLlama",
       R"({"pretraining_tp": 1, "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float32", "attention_bias": false})"},
      {"SmolLM2",
       R"({"is_llama_config": true, "rope_interleaved": false, "tie_word_embeddings": true, "transformers.js_config": {"kv_cache_dtype": {}}})"},
      {"deepseek-coder",
       R"({"rope_scaling": {"factor": 4.0, "type": "linear"}, "rope_theta": 100000})"},
      {"Yi", R"({"head_dim": null, "pad_token_id": null, "attention_dropout": 0.0})"},
      {"Mistral 7B v0.3",
       R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": null, "max_position_embeddings": 32768})"},
      {"Mistral 7B v0.1",
       R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 4096})"},
      {"Mistral Nemo",
       R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": null, "head_dim": 24})"},
      {"Qwen2.5",
       R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": false, "sliding_window": 131072,
          "max_window_layers": 28, "use_mrope": false, "attention_dropout": 0.0})"},
      {"Qwen2.5 of transformers 5",
       R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "dtype": "bfloat16", "layer_types": ["full_attention", "full_attention"],
          "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}})"},
      {"Qwen3 (dense)",
       R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "use_sliding_window": false, "sliding_window": null,
          "max_window_layers": 28, "rope_scaling": null, "rope_theta": 1000000, "attention_bias": false, "tie_word_embeddings": true})"},
      {"SmolLM3",
       R"({"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "no_rope_layers": [1, 0], "no_rope_layer_interval": 4,
          "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28, "rope_theta": 5000000.0, "rope_scaling": null,
          "layer_types": ["full_attention", "full_attention"], "mlp_bias": false, "pretraining_tp": 2})"},
      {"Granite 3 (dense)",
       R"({"architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
          "logits_scaling": 8.0, "residual_multiplier": 0.22, "rope_theta": 5000000.0, "attention_bias": false, "tie_word_embeddings": true})"},
      {"OLMo 2",
       R"({"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "attention_bias": false, "rope_scaling": null, "rope_theta": 500000,
          "tie_word_embeddings": false})"},
      {"OLMo 3",
       R"({"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "rope_theta": 500000, "sliding_window": 4096,
          "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "attention_factor": 1.2079, "beta_fast": 32, "beta_slow": 1}})"},
      {"Gemma 2",
       R"({"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "query_pre_attn_scalar": 24, "attn_logit_softcapping": 50.0,
          "final_logit_softcapping": null, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"})"},
      {"Gemma 3",
       R"({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 512})"},
      {"GLM-4-9B",
       R"({"architectures": ["GlmForCausalLM"], "model_type": "glm", "partial_rotary_factor": 0.5, "attention_bias": true, "head_dim": 128,
          "rms_norm_eps": 1.5625e-07, "eos_token_id": [2, 8, 9], "pad_token_id": 2})"},
      {"GLM-4-0414",
       R"({"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "partial_rotary_factor": 0.5, "attention_bias": false})"},
      {"Phi-3 mini",
       R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": 2047, "max_position_embeddings": 4096,
          "original_max_position_embeddings": 4096, "rope_scaling": null, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_bias": false})"},
      {"Phi-4",
       R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": null, "max_position_embeddings": 16384,
          "original_max_position_embeddings": 16384, "partial_rotary_factor": 1.0, "rope_scaling": null, "rope_theta": 250000})"},
      {"Phi-4-mini",
       R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "partial_rotary_factor": 0.75, "sliding_window": 262144,
          "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
          "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1], "long_factor": [1, 2, 3, 4, 5, 6]}})"},
      {"Command R7B",
       R"({"architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "logit_scale": 0.25, "sliding_window_pattern": 2})"},
      {"Apertus",
       R"({"architectures": ["ApertusForCausalLM"], "model_type": "apertus", "hidden_act": "xielu", "qk_norm": true, "post_norm": false})"},
      {"Ministral 3",
       R"({"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "head_dim": 16})"},
      {"dynamic NTK", R"({"rope_scaling": {"type": "dynamic", "factor": 4.0}})"},
  };
  std::map<std::string, Architecture> read;
  for (const auto& [name, text] : families) {
    Json json = small();
    json.update(Json::parse(text));
    SCOPED_TRACE(name);
    ModelShape shape;
    ASSERT_NO_THROW(shape = parse(json));
    EXPECT_EQ(parse_model_shape(to_config_json(shape)), shape);
    read[name] = shape.architecture;
  }
  // docs/user/models.md names no other checkpoint.
  for (const ArchitectureTraits& known : architecture_table) {
    std::istringstream names{std::string(checkpoints_of(known.architecture))};
    int count = 0;
    for (std::string name; std::getline(names >> std::ws, name, ','); ++count) {
      ASSERT_TRUE(read.contains(name)) << name << " of " << known.word << " is not read here";
      EXPECT_EQ(read[name], known.architecture) << name;
    }
    EXPECT_GT(count, 0) << known.word;
  }
}

TEST(ModelShape, EachRefusedKeyIsNamed) {
  for (const RefusedKey& refused : refused_keys) {
    Json json = with(refused.key, refused.when == RefusedKey::When::yes  ? Json(true)
                                  : refused.when == RefusedKey::When::no ? Json(false)
                                                                         : Json(1));
    if (refused.when == RefusedKey::When::no) json["architectures"] = {"ApertusForCausalLM"};
    EXPECT_THAT(refusal(json), HasSubstr(std::string(refused.key) + " is not supported ("));
  }
}

// Everything else must be refused, and with the word that says why.
TEST(ModelShape, PublishedFamiliesThatAreNot) {
  for (const char* architecture :
       {"GPT2LMHeadModel", "GPTNeoXForCausalLM", "OPTForCausalLM", "FalconForCausalLM",
        "GemmaForCausalLM", "Gemma3ForConditionalGeneration", "PhiForCausalLM",
        "Qwen2MoeForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen3MoeForCausalLM",
        "MixtralForCausalLM", "DeepseekV3ForCausalLM", "CohereForCausalLM", "StableLmForCausalLM",
        "Llama4ForConditionalGeneration", "MllamaForConditionalGeneration",
        "LlamaForTokenClassification", "llamaforcausallm"}) {
    EXPECT_THAT(refusal(with("architectures", {architecture})),
                HasSubstr(std::string("architecture ") + architecture + " is not supported"));
  }
  const std::vector<std::pair<const char*, const char*>> variants{
      {R"({"rope_scaling": {"rope_type": "dynamic"}})", "needs factor"},
      {R"({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}})",
       "short_factor, a list of 8"},
      {R"({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e6}})",
       "rope type 'proportional'"},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "default"}, "rope_type": "default", "partial_rotary_factor": 0.75}})",
       "partial_rotary_factor"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}})",
       "high_freq_factor must be larger"},
      {R"({"rope_scaling": {"rope_type": "linear"}})", "needs factor"},
      {R"({"rope_scaling": [8.0]})", "rope_scaling must be an object"},
      {R"({"architectures": ["LlamaForCausalLM", "LlamaForSequenceClassification"]})",
       "list of one name"},
      {R"({"architectures": [], "model_type": "llama"})", "list of one name"},
      {R"({"architectures": null, "model_type": "gemma"})", "model_type 'gemma'"},
      {R"({"architectures": ["LlamaForSequenceClassification"], "num_labels": 3})", "3 labels"},
      {R"({"bos_token_id": 256})", "bos_token_id is 256"},
      {R"({"eos_token_id": "</s>"})", "eos_token_id"},
      {R"({"n_routed_experts": 64})", "n_routed_experts"},
      {R"({"quantization_config": {"quant_method": "gptq"}})", "quantised"},
      {R"({"quantization_config": {}})", "quantised"},
      {R"({"quantization_config": []})", "must be an object"},
      {R"({"hidden_act": "gelu_pytorch_tanh"})", "gelu_pytorch_tanh"},
      {R"({"rope_theta": 0})", "rope_theta"},
      {R"({"rope_theta": "10000"})", "rope_theta"},
      {R"({"tie_word_embeddings": "yes"})", "tie_word_embeddings"},
  };
  for (const auto& [text, expected] : variants) {
    Json json = small();
    json.update(Json::parse(text));
    EXPECT_THAT(refusal(json),
                testing::AllOf(testing::StartsWith("config.json"), HasSubstr(expected)))
        << text;
  }
}

TEST(ModelShape, RefusesImpossibleSizes) {
  for (const char* key : {"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size"}) {
    EXPECT_THAT(refusal(with(key, 0)), HasSubstr(key));
    EXPECT_THAT(refusal(with(key, -5)), HasSubstr(key));
    EXPECT_THAT(refusal(with(key, "64")), HasSubstr(key));
    EXPECT_THAT(refusal(with(key, 4611686018427387904)), HasSubstr(key));
    EXPECT_THAT(refusal(with(key, 18446744073709551615u)), HasSubstr(key));
    EXPECT_THAT(refusal(with(key, nullptr)), HasSubstr("is missing"));
  }
  EXPECT_THAT(refusal(with("num_key_value_heads", 3)),
              HasSubstr("not a multiple of num_key_value_heads 3"));
  EXPECT_THAT(refusal(with("num_attention_heads", 6)), HasSubstr("head_dim is not given"));
  EXPECT_THAT(refusal(with("head_dim", 15)), HasSubstr("odd"));
  EXPECT_THAT(refusal(with("rms_norm_eps", 0)), HasSubstr("rms_norm_eps"));
}

TEST(ModelShape, RefusesBrokenFiles) {
  const auto broken = [](std::string_view text) {
    return error_of(ExitCode::bad_data, [&] { parse_model_shape(text, "m/config.json"); });
  };
  EXPECT_THAT(broken(""), HasSubstr("m/config.json: malformed JSON"));
  EXPECT_THAT(broken("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(broken("{\"a\": \xff}"), HasSubstr("malformed JSON"));
  EXPECT_THAT(broken("{\"a\":" + std::string(100000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(broken("{}"), HasSubstr("no architectures"));
  EXPECT_THAT(error_of(ExitCode::input_missing, [] { load_model_shape("/nonexistent"); }),
              HasSubstr("/nonexistent"));
}

// Whatever a damaged file says, it is an error or a shape that writes and reads back.
TEST(ModelShape, DamagedFiles) {
  const std::string text = base::read_file(parity_dir() + "/models/llama_rope3/config.json");
  std::mt19937_64 rng(7);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string damaged = damage(text, rng);
    try {
      const ModelShape shape = parse_model_shape(damaged);
      EXPECT_EQ(parse_model_shape(to_config_json(shape)), shape) << damaged;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data) << damaged;
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace trireme::config
