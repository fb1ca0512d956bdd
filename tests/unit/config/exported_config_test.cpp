#include "trireme/config/exported_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/json_edit.hpp"

namespace trireme::config {
namespace {

using testing::HasSubstr;
using testing::Not;

// As a published model has it: keys that the program does not know, numbers in odd forms.
constexpr const char* published = R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "_name_or_path": "some/model",
  "hidden_size": 32, "head_dim": 8, "intermediate_size": 48,
  "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
  "vocab_size": 272, "max_position_embeddings": 256,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "tie_word_embeddings": true,
  "eos_token_id": [258, 256],
  "router": {"a, }\"": [1, 2.50, 1E+2], "deep": {"b": null}},
  "big": 123456789012345678901234567890,
  "pretraining_tp": 1,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.51.0"
}
)";

ModelShape shape_of_source() { return parse_model_shape(published); }

TEST(ExportedConfig, KeepsEveryByteThatTrainingDidNotChange) {
  EXPECT_EQ(exported_config_json(published, shape_of_source()), published);
  ModelShape shape = shape_of_source();
  shape.dtype = "float32";
  std::string wanted = published;
  wanted.replace(wanted.find("\"bfloat16\""), 10, "\"float32\"");
  EXPECT_EQ(exported_config_json(published, shape), wanted);
}

TEST(ExportedConfig, DtypeUnderItsNewNameOrBoth) {
  const auto dtypes = [](const std::string& keys) {
    std::string text = published;
    const std::string old = "\"torch_dtype\": \"bfloat16\",\n  ";
    text.replace(text.find(old), old.size(), keys);
    ModelShape shape = parse_model_shape(text);
    shape.dtype = "float16";
    const auto out = nlohmann::json::parse(exported_config_json(text, shape));
    return std::pair(out.value("dtype", "-"), out.value("torch_dtype", "-"));
  };
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(dtypes("\"dtype\": \"bfloat16\", "), Pair("float16", "-"));
  EXPECT_EQ(dtypes("\"dtype\": \"bfloat16\", \"torch_dtype\": \"bfloat16\", "),
            Pair("float16", "float16"));
  EXPECT_EQ(dtypes(""), Pair("-", "float16"));
  EXPECT_EQ(dtypes("\"dtype\": null, "), Pair("float16", "-"));
}

TEST(ExportedConfig, AScoreHeadChangesArchitectureAndLabels) {
  std::string text = published;
  text.replace(text.find("\"pretraining_tp\""), 0,
               R"("id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}, )");
  ModelShape shape = parse_model_shape(text);
  shape.score_head = true;
  shape.score_mean = 0.25;
  shape.score_std = 2;
  const std::string reward = exported_config_json(text, shape);
  const auto json = nlohmann::json::parse(reward);
  EXPECT_EQ(json.at("architectures").at(0), "LlamaForSequenceClassification");
  EXPECT_EQ(json.at("num_labels"), 1);
  EXPECT_EQ(json.at("id2label").size(), 1u);
  EXPECT_EQ(json.at("label2id").size(), 1u);
  EXPECT_EQ(json.at("mean"), 0.25);
  EXPECT_EQ(json.at("_name_or_path"), "some/model");
  EXPECT_THAT(reward, HasSubstr(R"({"a, }\"": [1, 2.50, 1E+2], "deep": {"b": null}})"));
  EXPECT_THAT(reward, HasSubstr("123456789012345678901234567890"));
  EXPECT_EQ(parse_model_shape(reward), shape);
  // And back: a language model that starts from it has no labels.
  shape.score_head = false;
  const auto back = nlohmann::json::parse(exported_config_json(reward, shape));
  EXPECT_EQ(back.at("architectures").at(0), "LlamaForCausalLM");
  for (const char* key : {"num_labels", "id2label", "label2id", "mean", "std", "value_head_prefix"})
    EXPECT_FALSE(back.contains(key)) << key;
  EXPECT_EQ(back.at("pretraining_tp"), 1);
}

TEST(ExportedConfig, TiedAndSpecialTokens) {
  ModelShape shape = shape_of_source();
  shape.tied = false;
  shape.pad_id = 7;
  shape.eos_ids = {258};
  const auto json = nlohmann::json::parse(exported_config_json(published, shape));
  EXPECT_EQ(json.at("tie_word_embeddings"), false);
  EXPECT_EQ(json.at("pad_token_id"), 7);
  EXPECT_EQ(json.at("eos_token_id"), 258);
  EXPECT_EQ(exported_config_json("", shape), to_config_json(shape));
  const std::string padded = exported_config_json(published, shape);
  shape.pad_id.reset();
  EXPECT_TRUE(
      nlohmann::json::parse(exported_config_json(padded, shape)).at("pad_token_id").is_null());
}

TEST(JsonEdit, SetsAddsAndErasesInAnyLayout) {
  const auto edited = [](const std::string& text, const char* key, const char* value) {
    JsonEdit edit(text);
    if (value != nullptr) edit.set(key, value);
    if (value == nullptr) edit.erase(key);
    return edit.text();
  };
  EXPECT_EQ(edited("{}", "a", "1"), R"({"a": 1})");
  EXPECT_EQ(edited(R"({"a":1})", "b", "2"), R"({"a":1, "b": 2})");
  EXPECT_EQ(edited("{\n \"a\": 1\n}\n", "b", "2"), "{\n \"a\": 1,\n \"b\": 2\n}\n");
  EXPECT_EQ(edited(R"({"a" : [1, "]"] , "b":2})", "a", "0"), R"({"a" : 0 , "b":2})");
  EXPECT_EQ(edited(R"({"a":1,"a":2})", "a", "3"), R"({"a":1,"a":3})") << "the last one counts";
  EXPECT_EQ(edited(R"({"a":1,"b":2,"c":3})", "b", nullptr), R"({"a":1,"c":3})");
  EXPECT_EQ(edited(R"({"a":1,"b":2})", "b", nullptr), R"({"a":1})");
  EXPECT_EQ(edited(R"({"a":1,"a":2})", "a", nullptr), "{}");
  EXPECT_EQ(edited(R"({"x":{"a":1}})", "a", nullptr), R"({"x":{"a":1}})") << "of the object itself";
  EXPECT_EQ(edited(R"({"q\"\\":"\\\"","b":true})", "b", "false"), R"({"q\"\\":"\\\"","b":false})");
}

}  // namespace
}  // namespace trireme::config
