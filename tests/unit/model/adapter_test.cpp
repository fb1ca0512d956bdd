#include "torch/torch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "scratch.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/adapter_files.hpp"

namespace trireme::model {
namespace {

using test::error_of;
using test::Scratch;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

config::ModelShape shape_of(bool tied = false, bool bias = false) {
  config::ModelShape shape;
  shape.vocab = 40;
  shape.hidden = 24;
  shape.layers = 2;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 6;
  shape.ffn = 32;
  shape.tied = tied;
  shape.qkv_bias = bias;
  return shape;
}

config::ModelShape fused_shape() {
  config::ModelShape shape = shape_of();
  shape.architecture = config::Architecture::phi3;
  return shape;
}

Adapter adapter_with(std::vector<std::string> targets, int64_t rank = 4) {
  Adapter out;
  out.rank = rank;
  out.alpha = 8;
  out.targets = std::move(targets);
  return out;
}

std::vector<std::string> trained(const ModelSpec& spec) {
  std::vector<std::string> out;
  for (const Parameter& p : spec.parameters) {
    if (p.trainable) out.push_back(p.spec.name);
  }
  return out;
}

ModelSpec adapted_model(const Adapter& adapter, const config::ModelShape& shape = shape_of(),
                        HeadKind head = HeadKind::language) {
  return with_adapter(describe(shape, head), adapter, "actor.lora");
}

std::string refusal(const Adapter& adapter, const config::ModelShape& shape = shape_of(),
                    HeadKind head = HeadKind::language) {
  return error_of(ExitCode::configuration, [&] { adapted_model(adapter, shape, head); });
}

TEST(WithAdapter, keeps_the_base_where_it_is_and_frozen) {
  const ModelSpec base = describe(shape_of(), HeadKind::language),
                  spec = adapted_model(adapter_with({"all-linear"}));
  ASSERT_EQ(spec.parameters.size(), base.parameters.size() + 2 * 7 * 2);
  for (size_t p = 0; p < base.parameters.size(); ++p) {
    EXPECT_EQ(spec.parameters[p].spec.name, base.parameters[p].spec.name);
    EXPECT_FALSE(spec.parameters[p].trainable);
  }
  EXPECT_EQ(spec.head_parameter(), base.head_parameter());
  for (size_t s = 0; s < base.stages.size(); ++s) {
    EXPECT_EQ(spec.stages[s].base_operations().size(), base.stages[s].operations.size());
    EXPECT_EQ(spec.stages[s].result(), base.stages[s].result());
  }
}

TEST(WithAdapter, takes_targets_as_peft_does) {
  auto adapter = adapter_with({"q_proj", "layers.1.mlp.down_proj"});
  adapter.excluded = {"layers.0.self_attn.q_proj"};
  EXPECT_THAT(trained(adapted_model(adapter)),
              ElementsAre("model.layers.1.self_attn.q_proj.lora_A.weight",
                          "model.layers.1.self_attn.q_proj.lora_B.weight",
                          "model.layers.1.mlp.down_proj.lora_A.weight",
                          "model.layers.1.mlp.down_proj.lora_B.weight"));
  auto pattern = adapter_with({});
  pattern.target_pattern = R"(.*\.0\..*_proj)";
  EXPECT_EQ(trained(adapted_model(pattern)).size(), 14u);
  auto all_but = adapter_with({"q_proj", "v_proj"});
  all_but.strict = false;  // a file's: no v_proj is left
  all_but.excluded_pattern = R"(.*\.0\..*|.*v_proj)";
  EXPECT_THAT(trained(adapted_model(all_but)),
              ElementsAre("model.layers.1.self_attn.q_proj.lora_A.weight",
                          "model.layers.1.self_attn.q_proj.lora_B.weight"));
  auto layers = adapter_with({"all-linear"});
  layers.layers = {1};
  EXPECT_EQ(trained(adapted_model(layers)).size(), 14u);
  auto named = adapter_with({"q_proj", "model.layers.0.mlp.up_proj"});
  named.layers = {1};
  EXPECT_THAT(trained(adapted_model(named)),
              ElementsAre("model.layers.0.mlp.up_proj.lora_A.weight",
                          "model.layers.0.mlp.up_proj.lora_B.weight",
                          "model.layers.1.self_attn.q_proj.lora_A.weight",
                          "model.layers.1.self_attn.q_proj.lora_B.weight"));
}

TEST(WithAdapter, has_ranks_and_scales_of_its_own_for_modules) {
  auto adapter = adapter_with({"q_proj", "v_proj"});
  adapter.rank_pattern = {{"layers.1.self_attn.q_proj", 2}, {"q_proj", 3}};
  adapter.alpha_pattern = {{"v_proj", 1}};
  const ModelSpec spec = adapted_model(adapter);
  const auto rank = [&](int layer) {
    return spec.parameters[spec.index_of(adapter_role(Role::q, Part::lora_a), layer)].spec.rows();
  };
  EXPECT_EQ(rank(0), 3);
  EXPECT_EQ(rank(1), 2);
  EXPECT_EQ(adapter.scale_of("model.layers.1.self_attn.q_proj"), 4);
  EXPECT_EQ(adapter.scale_of("model.layers.1.self_attn.v_proj"), 0.25);
  adapter.rslora = true;
  EXPECT_EQ(adapter.scale_of("model.layers.0.self_attn.k_proj"), 4);
}

TEST(WithAdapter, takes_embedding_head_and_whole_modules) {
  auto adapter = adapter_with({"embed_tokens", "lm_head"});
  adapter.modules_to_save = {"model.norm"};
  const ModelSpec spec = adapted_model(adapter);
  EXPECT_THAT(trained(spec), ElementsAre("model.embed_tokens.lora_embedding_A",
                                         "model.embed_tokens.lora_embedding_B",
                                         "model.norm.modules_to_save.weight",
                                         "lm_head.lora_A.weight", "lm_head.lora_B.weight"));
  EXPECT_EQ(spec.parameters[spec.head_parameter()].role, Role::lm_head);
  ASSERT_TRUE(spec.head_low_position(AdapterUse::applied));
  EXPECT_FALSE(spec.head_low_position(AdapterUse::disabled));

  auto saved = adapter_with({"q_proj"});
  saved.modules_to_save = {"lm_head", "embed_tokens", "v_proj"};
  const ModelSpec whole = adapted_model(saved, shape_of(false, true));
  EXPECT_EQ(trained(whole).size(), 1u + 1 + 2 * 2 + 2 * 2);  // head, embedding, q, v with its bias
  EXPECT_EQ(whole.parameters[whole.head_parameter()].spec.name, "lm_head.modules_to_save.weight");
  const auto& head = whole.stages.back().parameters;
  EXPECT_EQ(whole.parameters[head[whole.head_position(AdapterUse::disabled)]].spec.name,
            "lm_head.weight");
}

// One A, and B in the parts of the weight, whole again in files.
TEST(WithAdapter, takes_a_fused_weight_as_one_module) {
  auto adapter = adapter_with({"qkv_proj"});
  adapter.layers = {0};
  const ModelSpec spec = adapted_model(adapter, fused_shape());
  EXPECT_THAT(trained(spec), ElementsAre("model.layers.0.self_attn.qkv_proj.lora_A.weight",
                                         "model.layers.0.self_attn.v_proj.lora_B.weight",
                                         "model.layers.0.self_attn.k_proj.lora_B.weight",
                                         "model.layers.0.self_attn.q_proj.lora_B.weight"));
  const Parameter& b = spec.parameters[spec.index_of(adapter_role(Role::k, Part::lora_b), 0)];
  EXPECT_EQ(b.file_tensor().name, "model.layers.0.self_attn.qkv_proj.lora_B.weight");
  EXPECT_THAT(b.file_tensor().shape, ElementsAre(48, 4));
  EXPECT_EQ(b.in_file({0, 12, 0, 4}).row, 24);
  const ModelSpec all = adapted_model(adapter_with({"all-linear"}), fused_shape());
  EXPECT_EQ(trained(all).size(), 2u * (4 + 3 + 2 + 2));
  EXPECT_THAT(refusal(adapter_with({"q_proj"}), fused_shape()), HasSubstr("no module \"q_proj\""));
}

TEST(WithAdapter, refuses_what_does_not_fit) {
  for (const char* pattern : {".*+q_proj|.*v_proj", "\\A.*q_proj\\Z", ".*(?<!k)_proj"}) {
    Adapter python = adapter_with({});
    python.target_pattern = pattern;
    EXPECT_THAT(refusal(python), HasSubstr("is not a regular expression that this program reads"));
  }
  EXPECT_THAT(refusal(adapter_with({"q_proj", "wq"})), HasSubstr("no module \"wq\""));
  EXPECT_THAT(refusal(adapter_with({"q_proj"}, 25)),
              HasSubstr("rank = 25 is more than a dimension of model.layers.0.self_attn.q_proj"));
  EXPECT_THAT(refusal(adapter_with({"k_proj"}, 13)), HasSubstr("12 or less"));
  EXPECT_THAT(refusal(adapter_with({"q_proj"}, 0)), HasSubstr("rank = 0"));
  EXPECT_THAT(refusal(adapter_with({"input_layernorm"})), HasSubstr("not linear"));
  EXPECT_THAT(refusal(adapter_with({"lm_head"}), shape_of(true)), HasSubstr("are one"));
  EXPECT_THAT(refusal(adapter_with({"embed_tokens"}), shape_of(true)), HasSubstr("are one"));
  auto both = adapter_with({"q_proj"});
  both.modules_to_save = {"q_proj"};
  EXPECT_THAT(refusal(both), HasSubstr("name it once"));
  EXPECT_THAT(refusal(adapter_with({"q_proj", "score"}), shape_of(), HeadKind::score),
              HasSubstr("modules_to_save"));
  auto dropped = adapter_with({"q_proj"});
  dropped.dropout = 1;
  EXPECT_THAT(refusal(dropped), HasSubstr("dropout = 1"));
  auto biased = adapter_with({"q_proj"});
  biased.bias = "all";
  EXPECT_THAT(refusal(biased, shape_of(false, true)), HasSubstr("bias = \"all\""));
  EXPECT_EQ(trained(adapted_model(biased)).size(), 4u);  // no bias to train
  // Words of other models in a file of peft's.
  auto lenient = adapter_with({"q_proj", "query_key_value"});
  lenient.strict = false;
  EXPECT_EQ(trained(adapted_model(lenient)).size(), 4u);
  lenient.targets = {"query_key_value"};
  EXPECT_THAT(refusal(lenient), HasSubstr("query_key_value"));
}

void write_config(const std::filesystem::path& folder, const nlohmann::json& changes) {
  nlohmann::json config{{"peft_type", "LORA"},
                        {"r", 4},
                        {"lora_alpha", 8},
                        {"target_modules", {"q_proj"}},
                        {"base_model_name_or_path", ""},
                        {"task_type", "CAUSAL_LM"}};
  config.update(changes);
  base::write_file_atomically(folder / adapter_config_name, config.dump());
}

TEST(AdapterConfig, refuses_by_key_what_computes_something_else) {
  const Scratch scratch;
  const auto refused = [&](const nlohmann::json& changes) {
    write_config(scratch.path(), changes);
    return error_of(ExitCode::bad_data, [&] { load_adapter_config(scratch.path()); });
  };
  for (const nlohmann::json& changes :
       std::vector<nlohmann::json>{{{"use_dora", true}},
                                   {{"peft_type", "IA3"}},
                                   {{"lora_bias", true}},
                                   {{"init_lora_weights", "pissa"}},
                                   {{"layer_replication", {{0, 1}}}},
                                   {{"target_parameters", {"x"}}},
                                   {{"trainable_token_indices", {1}}},
                                   {{"loftq_config", {{"loftq_bits", 4}}}},
                                   {{"r", "four"}}}) {
    EXPECT_THAT(refused(changes), HasSubstr(changes.begin().key())) << changes;
  }
  write_config(scratch.path(), {{"use_dora", false},
                                {"bias", "none"},
                                {"layer_replication", nullptr},
                                {"loftq_config", nlohmann::json::object()},
                                {"init_lora_weights", "gaussian"},
                                {"lora_dropout", 0.05},
                                {"target_modules", ".*q_proj"},
                                {"rank_pattern", {{"v_proj", 2}}},
                                {"layers_to_transform", 1},
                                {"modules_to_save", {"score", "classifier", "score"}}});
  const Adapter got = load_adapter_config(scratch.path());
  EXPECT_EQ(got.target_pattern, ".*q_proj");
  EXPECT_THAT(got.targets, IsEmpty());
  EXPECT_THAT(got.layers, ElementsAre(1));
  EXPECT_THAT(got.modules_to_save, ElementsAre("score", "classifier"));
  EXPECT_EQ(got.dropout, 0.05);
}

// Writes an adapter through the export; element e of parameter p is p + e / 64.
void export_adapter(const std::filesystem::path& folder, const ModelSpec& spec) {
  ModelExport out(folder, spec, {});
  out.create();
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (!out.has(p)) continue;
    const auto& tensor = spec.parameters[p].spec;
    std::vector<float> values;
    for (int64_t e = 0; e < tensor.elements(); ++e)
      values.push_back(static_cast<float>(p) + static_cast<float>(e) / 64);
    out.write(p, {0, tensor.rows(), 0, tensor.columns()}, values.data());
  }
  out.sync();
  out.commit();
}

TEST(AdapterFolder, has_the_words_and_values_that_were_exported) {
  const Scratch scratch;
  auto adapter = adapter_with({"all-linear", "embed_tokens"});
  adapter.rslora = true;
  adapter.rank_pattern = {{"o_proj", 2}};
  adapter.modules_to_save = {"lm_head"};
  const ModelSpec spec = adapted_model(adapter);
  export_adapter(scratch.path(), spec);
  const AdapterFolder got = open_adapter(scratch.path());
  const ModelSpec again = adapted_model(got.adapter);
  EXPECT_EQ(trained(again), trained(spec));
  EXPECT_TRUE(got.adapter.rslora);
  EXPECT_TRUE(got.weights->contains("base_model.model.lm_head.weight"));
  EXPECT_EQ(got.weights->type_name("base_model.model.lm_head.weight"), "F32");
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (!spec.parameters[p].trainable) continue;
    float value = 0;
    got.weights->read(exported_adapter_name(spec.parameters[p]), {0, 1, 1, 1}, &value);
    EXPECT_EQ(value, static_cast<float>(p) + 1.0f / 64);
  }
}

std::vector<float> values_of(const ModelSpec& spec, size_t parameter, const WeightSource& from) {
  const auto& tensor = spec.parameters[parameter].spec;
  std::vector<float> out(static_cast<size_t>(tensor.elements()));
  load_parameter(spec, parameter, {0, tensor.rows(), 0, tensor.columns()}, from, 0, out.data());
  return out;
}

TEST(AdaptedWeights, are_read_and_merged_where_the_base_is_fused) {
  const Scratch scratch;
  export_adapter(scratch / "base", describe(fused_shape(), HeadKind::language));
  auto adapter = adapter_with({"qkv_proj"});
  adapter.modules_to_save = {"gate_up_proj"};
  export_adapter(scratch / "adapter", adapted_model(adapter, fused_shape()));
  const AdapterFolder folder = open_adapter(scratch / "adapter");
  for (const char* name : {"self_attn.qkv_proj.lora_B.weight", "mlp.gate_up_proj.weight"})
    EXPECT_TRUE(folder.weights->contains(base::text("base_model.model.model.layers.0.", name)));
  const ModelSpec spec = adapted_model(folder.adapter, fused_shape());
  const auto weights =
      adapted_weights(spec, std::make_shared<SafetensorsSource>(scratch / "base"), &folder);
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (!spec.parameters[p].trainable) continue;
    const std::vector<float> got = values_of(spec, p, *weights);
    for (size_t e = 0; e < got.size(); ++e)
      ASSERT_EQ(got[e], static_cast<float>(p) + static_cast<float>(e) / 64)
          << spec.parameters[p].spec.name;
  }

  const ModelSpec whole = without_adapter(spec);
  const auto merged = merged_weights(spec, weights);
  const size_t k = whole.index_of(Role::k, 1);
  const auto before = values_of(spec, k, *weights), after = values_of(whole, k, *merged);
  const auto of = [&](Role role, Part part) {
    return values_of(spec, spec.index_of(adapter_role(role, part), 1), *weights);
  };
  const auto a = of(Role::v, Part::lora_a), b = of(Role::k, Part::lora_b);
  constexpr size_t rank = 4, inputs = 24, outputs = 12;
  ASSERT_EQ(after.size(), outputs * inputs);
  for (size_t row = 0; row < outputs; ++row) {
    for (size_t column = 0; column < inputs; ++column) {
      double product = 0;
      for (size_t r = 0; r < rank; ++r)
        product += double{b[row * rank + r]} * double{a[r * inputs + column]};
      const size_t at = row * inputs + column;
      EXPECT_FLOAT_EQ(after[at], static_cast<float>(double{before[at]} + 2 * product));
    }
  }
  EXPECT_EQ(values_of(whole, whole.index_of(Role::up, 1), *merged), of(Role::up, Part::saved));
}

TEST(AdaptedWeights, refuse_another_base) {
  const Scratch scratch;
  export_adapter(scratch / "base", describe(shape_of(), HeadKind::language));
  export_adapter(scratch / "adapter", adapted_model(adapter_with({"q_proj"})));
  const AdapterFolder folder = open_adapter(scratch / "adapter");
  const auto weights = [&](config::ModelShape shape) {
    const ModelSpec spec = with_adapter(describe(shape, HeadKind::language), folder.adapter, "x");
    return adapted_weights(spec, std::make_shared<SafetensorsSource>(scratch / "base"), &folder);
  };
  EXPECT_TRUE(weights(shape_of())->contains("model.layers.1.self_attn.q_proj.lora_B.weight"));
  auto wider = shape_of();
  wider.hidden = 32;
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { weights(wider); }), HasSubstr("another base"));
  auto deeper = shape_of();
  deeper.layers = 3;
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { weights(deeper); }),
              HasSubstr("has no model.layers.2.self_attn.q_proj.lora_A.weight"));
  auto flatter = shape_of();
  flatter.layers = 1;
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { weights(flatter); }),
              HasSubstr("does not belong"));
}

}  // namespace
}  // namespace trireme::model
