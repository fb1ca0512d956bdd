#include "torch/torch.hpp"

#include "trireme/model/model_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "scratch.hpp"
#include "trireme/base/files.hpp"

namespace trireme::model {
namespace {

using test::error_of;
using test::Scratch;
using testing::ElementsAre;
using testing::HasSubstr;

config::ModelShape tiny_shape() {
  config::ModelShape shape;
  shape.vocab = 16;
  shape.hidden = 8;
  shape.layers = 1;
  shape.heads = 2;
  shape.kv_heads = 1;
  shape.head_dim = 4;
  shape.ffn = 12;
  shape.eos_ids = {2, 3};
  shape.pad_id = 0;
  return shape;
}

// Writes all of a drawn model through the export.
void export_model(const std::filesystem::path& folder, const ModelSpec& spec,
                  ModelExport::Options options = {}) {
  ModelExport out(folder, spec, options);
  out.create();
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const auto& tensor = spec.parameters[i].spec;
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    const base::Block block{0, tensor.rows(), 0, tensor.columns()};
    initial_values(spec, i, block, 1, values.data());
    out.write(i, block, values.data());
  }
  out.sync();
  out.commit();
}

std::vector<float> drawn(const ModelSpec& spec, size_t parameter) {
  const auto& tensor = spec.parameters[parameter].spec;
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  initial_values(spec, parameter, {0, tensor.rows(), 0, tensor.columns()}, 1, values.data());
  return values;
}

void expect_drawn(const std::filesystem::path& folder, HeadKind head = HeadKind::language) {
  const ModelFolder found = open_model(folder);
  const ModelSpec spec = describe(found.shape, head);
  EXPECT_THAT(check_weights(spec, *found.weights), ElementsAre());
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const auto& tensor = spec.parameters[i].spec;
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    load_parameter(spec, i, {0, tensor.rows(), 0, tensor.columns()}, *found.weights, 0,
                   values.data());
    EXPECT_EQ(values, drawn(spec, i)) << tensor.name;
  }
}

ModelExport::Options in_fp32() {
  ModelExport::Options options;
  options.type = StoredType::f32;
  return options;
}

TEST(ModelExport, weights_of_one_tensor_come_back) {
  const Scratch scratch;
  for (const auto architecture : {config::Architecture::phi3, config::Architecture::glm}) {
    auto shape = tiny_shape();
    shape.architecture = architecture;
    const auto folder = scratch / std::string(config::to_string(architecture));
    export_model(folder, describe(shape, HeadKind::language), in_fp32());
    const ModelFolder found = open_model(folder);
    EXPECT_TRUE(found.weights->contains("model.layers.0.mlp.gate_up_proj.weight"));
    EXPECT_FALSE(found.weights->contains("model.layers.0.mlp.up_proj.weight"));
    EXPECT_EQ(found.weights->contains("model.layers.0.self_attn.qkv_proj.weight"),
              architecture == config::Architecture::phi3);
    expect_drawn(folder);
  }
}

// Names of a text model inside another one, of other programs, and of a model without a head.
TEST(OpenModel, names_with_a_prefix) {
  const Scratch scratch;
  const ModelSpec spec = describe(tiny_shape(), HeadKind::language);
  for (const auto& [model, head] :
       {std::pair<const char*, const char*>{"language_model.model.", "language_model."},
        {"model.language_model.", ""},
        {"module.model.", "module."},
        {"_orig_mod.model.", "_orig_mod."},
        {"", ""}}) {
    SCOPED_TRACE(model);
    const auto folder = scratch / (std::string("of_") + model);
    std::vector<base::TensorSpec> tensors;
    for (const Parameter& parameter : spec.parameters) {
      tensors.push_back(parameter.spec);
      std::string& name = tensors.back().name;
      name = name.starts_with("model.") ? model + name.substr(6) : head + name;
    }
    SafetensorsWriter writer(folder, tensors, StoredType::f32);
    writer.create();
    for (size_t i = 0; i < tensors.size(); ++i)
      writer.write(tensors[i].name, {0, tensors[i].rows(), 0, tensors[i].columns()},
                   drawn(spec, i).data());
    writer.sync();
    writer.commit();
    base::write_file_atomically(folder / "config.json", config::to_config_json(spec.shape));
    expect_drawn(folder);
  }
}

TEST(OpenModel, a_missing_model_names_the_path_and_what_was_expected) {
  const std::string message =
      error_of(ExitCode::input_missing, [] { open_model("/nonexistent/llama"); });
  EXPECT_THAT(message, HasSubstr("/nonexistent/llama"));
  EXPECT_THAT(message, HasSubstr("config.json"));
  const Scratch scratch;
  EXPECT_THAT(error_of(ExitCode::input_missing, [&] { open_model(scratch.path()); }),
              HasSubstr("no config.json in it"));
  error_of(ExitCode::input_missing, [&] { open_model(scratch / "x.gguf"); });
  scratch.write("config.json", config::to_config_json(tiny_shape()));
  EXPECT_THAT(error_of(ExitCode::input_missing, [&] { open_model(scratch.path()); }),
              HasSubstr("model.safetensors"));
}

TEST(OpenModel, an_export_opens_again_with_the_same_weights) {
  const Scratch scratch;
  for (const bool tied : {false, true}) {
    for (const auto head : {HeadKind::language, HeadKind::score}) {
      auto shape = tiny_shape();
      shape.tied = tied;
      const auto spec = describe(shape, head);
      const auto folder = scratch / (std::string(tied ? "tied" : "untied") +
                                     (head == HeadKind::score ? "_score" : ""));
      export_model(folder, spec, {StoredType::f32, SafetensorsWriter::default_file_bytes, {}});
      const auto opened = open_model(folder);
      EXPECT_EQ(opened.shape.score_head, head == HeadKind::score);
      EXPECT_EQ(opened.shape.eos_ids, shape.eos_ids);
      EXPECT_TRUE(check_weights(spec, *opened.weights).empty());
      for (size_t i = 0; i < spec.parameters.size(); ++i) {
        const auto& tensor = spec.parameters[i].spec;
        const base::Block block{0, tensor.rows(), 0, tensor.columns()};
        std::vector<float> got(static_cast<size_t>(tensor.elements())), want(got.size());
        load_parameter(spec, i, block, *opened.weights, 0, got.data());
        initial_values(spec, i, block, 1, want.data());
        EXPECT_EQ(got, want) << tensor.name;
      }
    }
  }
}

TEST(ModelExport, a_score_is_not_padded_with_an_end_token) {
  const Scratch scratch;
  auto shape = tiny_shape();
  const auto pad_after = [&](int32_t pad, HeadKind head) {
    shape.pad_id = pad;
    export_model(scratch / "padded", describe(shape, head),
                 {StoredType::f32, SafetensorsWriter::default_file_bytes, {}});
    return open_model(scratch / "padded").shape.pad_id;
  };
  EXPECT_EQ(pad_after(shape.eos_ids.back(), HeadKind::score), std::nullopt);
  EXPECT_EQ(pad_after(shape.eos_ids.back(), HeadKind::language), shape.eos_ids.back());
  EXPECT_EQ(pad_after(0, HeadKind::score), 0);
}

TEST(ModelExport, writes_what_transformers_looks_for) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "from");
  scratch.write("from/tokenizer.json", "{\"x\":1}");
  scratch.write("from/chat_template.jinja", "{{ messages }}");
  scratch.write("from/secret.txt", "no");
  export_model(scratch / "out", describe(tiny_shape(), HeadKind::language),
               {StoredType::bf16, SafetensorsWriter::default_file_bytes,
                std::make_shared<KeptFiles>(KeptFiles::read(scratch / "from", {}))});
  const auto config = nlohmann::json::parse(base::read_file(scratch / "out/config.json"));
  EXPECT_EQ(config.at("architectures").at(0), "LlamaForCausalLM");
  const auto generation =
      nlohmann::json::parse(base::read_file(scratch / "out/generation_config.json"));
  EXPECT_EQ(generation.at("eos_token_id"), (std::vector<int>{2, 3}));
  EXPECT_EQ(generation.at("pad_token_id"), 0);
  EXPECT_FALSE(generation.contains("bos_token_id"));
  EXPECT_EQ(base::read_file(scratch / "out/tokenizer.json"), "{\"x\":1}");
  EXPECT_TRUE(std::filesystem::exists(scratch / "out/chat_template.jinja"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "out/secret.txt"));
  EXPECT_EQ(open_model(scratch / "out").shape.dtype, "bfloat16");
  for (const auto& entry : std::filesystem::directory_iterator(scratch / "out"))
    EXPECT_NE(entry.path().extension(), ".tmp");
}

TEST(ModelExport, keeps_what_came_with_the_model) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "from");
  auto config = nlohmann::json::parse(config::to_config_json(tiny_shape()));
  config["pretraining_tp"] = 1;
  scratch.write("from/config.json", config.dump());
  const std::string generation = R"({"eos_token_id": [3, 2, 5], "top_p": 0.8})";
  scratch.write("from/generation_config.json", generation);
  const auto kept = std::make_shared<KeptFiles>(KeptFiles::read(scratch / "from", {}));
  for (const auto head : {HeadKind::language, HeadKind::score}) {
    const auto out = scratch / (head == HeadKind::score ? "reward" : "policy");
    export_model(out, describe(tiny_shape(), head),
                 {StoredType::bf16, SafetensorsWriter::default_file_bytes, kept});
    EXPECT_EQ(base::read_file(out / "generation_config.json"), generation);
    const auto written = nlohmann::json::parse(base::read_file(out / "config.json"));
    EXPECT_EQ(written.at("pretraining_tp"), 1);
    EXPECT_EQ(written.at("torch_dtype"), "bfloat16");
    EXPECT_EQ(open_model(out).shape.score_head, head == HeadKind::score);
  }
}

// The weights of a tied model as a folder may have them.
class TiedWeights : public testing::Test {
 protected:
  // `stored`: names and values of [V, D] tensors; the other parameters are drawn.
  ModelFolder open(const std::vector<std::pair<std::string, float>>& stored,
                   StoredType type = StoredType::f32, uint64_t file_bytes = 1 << 30) const {
    auto shape = tiny_shape();
    shape.tied = true;
    std::vector<base::TensorSpec> tensors;
    for (const auto& tensor : describe(shape, HeadKind::language).tensors()) {
      if (tensor.name != "model.embed_tokens.weight") tensors.push_back(tensor);
    }
    for (const auto& [name, value] : stored) tensors.push_back({name, {16, 8}});
    SafetensorsWriter writer(scratch_.path(), tensors, type, file_bytes);
    writer.create();
    for (const auto& [name, value] : stored) {
      std::vector<float> values(16 * 8, value);
      values.back() = 1;
      writer.write(name, {0, 16, 0, 8}, values.data());
    }
    writer.commit();
    scratch_.write("config.json", config::to_config_json(shape));
    return open_model(scratch_.path());
  }
  static float first_of(const ModelFolder& folder, const std::string& name) {
    float value = 0;
    folder.weights->read(name, {0, 1, 0, 1}, &value);
    return value;
  }
  const Scratch scratch_;
};

TEST_F(TiedWeights, a_head_of_its_own_is_used) {
  for (const uint64_t file_bytes : {uint64_t{1} << 30, uint64_t{600}}) {  // one file, shards
    const auto folder = open({{"model.embed_tokens.weight", 2}, {"lm_head.weight", 3}},
                             StoredType::f32, file_bytes);
    EXPECT_FALSE(folder.shape.tied);
    testing::internal::CaptureStderr();
    const auto spec = describe_and_check(folder, HeadKind::language);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the stored head is used"));
    EXPECT_EQ(spec.parameters[spec.head_parameter()].spec.name, "lm_head.weight");
    EXPECT_EQ(first_of(folder, "lm_head.weight"), 3);
    EXPECT_EQ(first_of(folder, "model.embed_tokens.weight"), 2);
    EXPECT_FALSE(shape_with_weights(scratch_.path()).tied);
    EXPECT_TRUE(load_shape(scratch_.path()).tied);
  }
  scratch_.write("model.safetensors.index.json", "{");
  EXPECT_TRUE(shape_with_weights(scratch_.path()).tied) << "weights that cannot be read";
  EXPECT_TRUE(shape_with_weights(scratch_ / "config.json").tied);
}

TEST_F(TiedWeights, weights_in_two_forms_are_said) {
  open({{"model.embed_tokens.weight", 2}});
  scratch_.write("model.safetensors.index.json", R"({"weight_map": {}})");
  const auto folder = open_model(scratch_.path());
  testing::internal::CaptureStderr();
  describe_and_check(folder, HeadKind::language);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the first is read"));
  EXPECT_EQ(first_of(folder, "model.embed_tokens.weight"), 2);
}

TEST_F(TiedWeights, a_head_that_differs_in_its_last_value_counts) {
  auto folder = open({{"model.embed_tokens.weight", 1}, {"lm_head.weight", 1}});
  EXPECT_TRUE(folder.shape.tied) << "the same values twice";
  testing::internal::CaptureStderr();
  describe_and_check(folder, HeadKind::language);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  std::fstream file(scratch_ / "model.safetensors",
                    std::ios::binary | std::ios::in | std::ios::out);
  const SafetensorsFile stored(scratch_ / "model.safetensors");
  const auto& entries = stored.entries();
  const auto size = std::filesystem::file_size(scratch_ / "model.safetensors");
  uint64_t data = 0;
  for (const auto& [name, entry] : entries) data = std::max(data, entry.end);
  const float other = 1.5;
  file.seekp(static_cast<std::streamoff>(size - data + entries.at("lm_head.weight").end - 4));
  file.write(reinterpret_cast<const char*>(&other), sizeof other);
  file.close();
  EXPECT_FALSE(open_model(scratch_.path()).shape.tied);
}

TEST_F(TiedWeights, the_head_alone_is_the_embedding) {
  for (const auto type : {StoredType::f32, StoredType::bf16}) {
    const auto folder = open({{"lm_head.weight", 3}}, type);
    EXPECT_TRUE(folder.shape.tied);
    for (const auto head : {HeadKind::language, HeadKind::score})
      EXPECT_TRUE(check_weights(describe(folder.shape, head), *folder.weights, Missing::score_head)
                      .empty());
    EXPECT_EQ(first_of(folder, "model.embed_tokens.weight"), 3);
  }
}

TEST_F(TiedWeights, neither_is_refused_and_an_untied_model_needs_both) {
  const auto none = open({});
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { describe_and_check(none, HeadKind::language); }),
              HasSubstr("model.embed_tokens.weight"));
  open({{"lm_head.weight", 3}});
  auto shape = tiny_shape();
  scratch_.write("config.json", config::to_config_json(shape));
  const auto untied = open_model(scratch_.path());
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { describe_and_check(untied, HeadKind::language); }),
              HasSubstr("model.embed_tokens.weight"));
}

TEST(CheckWeights, names_the_tensor_and_both_shapes) {
  const Scratch scratch;
  export_model(scratch.path(), describe(tiny_shape(), HeadKind::language));
  auto wider = tiny_shape();
  wider.ffn = 13;
  const auto weights = open_model(scratch.path()).weights;
  const std::string message = error_of(
      ExitCode::bad_data, [&] { check_weights(describe(wider, HeadKind::language), *weights); });
  EXPECT_THAT(message, HasSubstr("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_THAT(message, HasSubstr("[12, 8]"));
  EXPECT_THAT(message, HasSubstr("[13, 8]"));
  auto deeper = tiny_shape();
  deeper.layers = 2;
  EXPECT_THAT(error_of(ExitCode::bad_data,
                       [&] { check_weights(describe(deeper, HeadKind::language), *weights); }),
              HasSubstr("model.layers.1.input_layernorm.weight"));
}

TEST(CheckWeights, lists_what_it_does_not_expect) {
  const Scratch scratch;
  auto shape = tiny_shape();
  const auto spec = describe(shape, HeadKind::language);
  auto tensors = spec.tensors();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {2}});
  tensors.push_back({"model.vision.weight", {2}});
  SafetensorsWriter writer(scratch.path(), tensors, StoredType::f32);
  writer.create();
  writer.commit();
  const SafetensorsSource weights(scratch.path());
  EXPECT_THAT(check_weights(spec, weights), ElementsAre("model.vision.weight"));
  shape.tied = true;  // lm_head.weight beside a tied embedding is harmless
  EXPECT_THAT(check_weights(describe(shape, HeadKind::language), weights),
              ElementsAre("model.vision.weight"));
}

TEST(CheckWeights, a_critic_may_start_from_a_language_model) {
  const Scratch scratch;
  export_model(scratch.path(), describe(tiny_shape(), HeadKind::language));
  const auto weights = open_model(scratch.path()).weights;
  const auto critic = describe(tiny_shape(), HeadKind::score);
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { check_weights(critic, *weights); }),
              HasSubstr("score.weight"));
  EXPECT_TRUE(check_weights(critic, *weights, Missing::score_head).empty());
  std::vector<float> got(8), want(8);
  const size_t head = critic.index_of(Role::score);
  load_parameter(critic, head, {0, 1, 0, 8}, *weights, 11, got.data());
  initial_values(critic, head, {0, 1, 0, 8}, 11, want.data());
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace trireme::model
