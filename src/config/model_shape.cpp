#include "trireme/config/model_shape.hpp"

#include <array>
#include <cmath>
#include <map>

#include "config/json_reader.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/foreign_file.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/exported_config.hpp"

namespace trireme::config {

namespace {

constexpr int max_json_depth = 32;
constexpr uint64_t max_file_bytes = uint64_t{16} << 20;  // label tables make some files large

constexpr std::string_view causal = "ForCausalLM", classifier = "ForSequenceClassification";

Json parse_json(std::string_view text, std::string_view name) {
  const auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    VALIDATE(depth <= max_json_depth, ExitCode::bad_data, name, ": nested deeper than ",
             max_json_depth, " levels");
    return true;
  };
  try {
    Json json = Json::parse(text, limit_depth);
    VALIDATE(json.is_object(), ExitCode::bad_data, name, ": must be a JSON object, not ",
             json.type_name());
    return json;
  } catch (const Json::exception& error) {
    throw UserError(ExitCode::bad_data, base::text(name, ": malformed JSON (", error.what(), ")"));
  }
}

void read_architecture(const JsonReader& json, ModelShape& shape) {
  if (!json.has("architectures")) {
    const std::string type = json.string("model_type", "");
    const auto found = choice_of<Architecture>(type);
    VALIDATE(found, ExitCode::bad_data, json.file(), ": has no architectures and model_type '",
             type, "' is not supported (", "supported: ",
             base::join(std::vector<std::string>(Words<Architecture>::list.begin(),
                                                 Words<Architecture>::list.end())),
             ")");
    shape.architecture = *found;
    return;
  }
  const Json& list = json.at("architectures");
  VALIDATE(list.is_array() && list.size() == 1 && list[0].is_string(), ExitCode::bad_data,
           json.file(), ": architectures must be a list of one name");
  const auto name = list[0].get<std::string>();
  std::vector<std::string> names;
  for (const ArchitectureTraits& known : architecture_table) {
    for (const std::string_view kind : {causal, classifier}) {
      names.push_back(base::text(known.class_prefix, kind));
      if (names.back() != name) continue;
      shape.architecture = known.architecture;
      shape.score_head = kind == classifier;
      return;
    }
  }
  throw UserError(ExitCode::bad_data,
                  base::text(json.file(), ": architecture ", name,
                             " is not supported (supported: ", base::join(names), ")"));
}

// Features that change the arithmetic and that the blocks do not have.
void refuse_unsupported(const JsonReader& json, const ModelShape& shape) {
  const std::string activation = json.string("hidden_act", "silu");
  VALIDATE(activation == "silu", ExitCode::bad_data, json.file(), ": hidden_act ", activation,
           " is not supported (only silu, in SwiGLU)");
  VALIDATE(!json.has("quantization_config"), ExitCode::bad_data, json.file(),
           ": the weights are quantised (quantization_config), which is not supported: use the "
           "model's float weights");
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    VALIDATE(!json.has(key), ExitCode::bad_data, json.file(), ": ", key,
             ": mixtures of experts are not supported");
  }
  VALIDATE(json.number("attention_dropout", 0) == 0, ExitCode::bad_data, json.file(),
           ": attention_dropout is not supported (training here has no dropout): set it to 0");
  VALIDATE(json.number("partial_rotary_factor", 1) == 1, ExitCode::bad_data, json.file(),
           ": partial_rotary_factor is not supported (RoPE turns whole heads)");
  VALIDATE(!json.flag("rope_interleaved", false), ExitCode::bad_data, json.file(),
           ": rope_interleaved is not supported (RoPE pairs the halves of a head)");
  if (json.has("layer_types")) {
    for (const Json& type : json.at("layer_types")) {
      VALIDATE(type == "full_attention", ExitCode::bad_data, json.file(), ": layer_types has ",
               type.dump(), " (only full_attention is supported)");
    }
  }
  // A window as long as the context changes nothing. Mistral's default, when the key is absent, is
  // 4096.
  if (traits(shape.architecture).window == WindowKey::size) {
    const int64_t window =
        json.contains("sliding_window") ? json.integer("sliding_window", INT64_MAX) : 4096;
    VALIDATE(window >= shape.max_positions, ExitCode::bad_data, json.file(), ": sliding_window ",
             window,
             " is not supported (attention here sees the whole context): set it to null if the "
             "model was trained so");
  }
  VALIDATE(!json.flag("use_sliding_window", false), ExitCode::bad_data, json.file(),
           ": use_sliding_window is not supported (attention here sees the whole context)");
}

void read_sizes(const JsonReader& json, ModelShape& shape) {
  // Limits far above any model, so that products of sizes stay below 2^63.
  constexpr int64_t width_limit = 1 << 20;
  shape.vocab = json.size("vocab_size", INT32_MAX);
  shape.hidden = json.size("hidden_size", width_limit);
  shape.layers = json.size("num_hidden_layers", 1 << 14);
  shape.heads = json.size("num_attention_heads", 1 << 14);
  shape.kv_heads = json.size("num_key_value_heads", 1 << 14, shape.heads);
  shape.ffn = json.size("intermediate_size", 1 << 22);
  shape.max_positions =
      json.size("max_position_embeddings", INT32_MAX, traits(shape.architecture).positions);
  const int64_t head_dim = traits(shape.architecture).head_dim;
  if (!json.has("head_dim") && head_dim == 0) {
    VALIDATE(shape.hidden % shape.heads == 0, ExitCode::bad_data, json.file(), ": hidden_size ",
             shape.hidden, " is not a multiple of num_attention_heads ", shape.heads,
             " and head_dim is not given");
  }
  shape.head_dim =
      json.size("head_dim", 1 << 14, head_dim > 0 ? head_dim : shape.hidden / shape.heads);
  VALIDATE(shape.heads % shape.kv_heads == 0, ExitCode::bad_data, json.file(),
           ": num_attention_heads ", shape.heads, " is not a multiple of num_key_value_heads ",
           shape.kv_heads);
  VALIDATE(shape.head_dim % 2 == 0, ExitCode::bad_data, json.file(), ": head_dim ", shape.head_dim,
           " is odd (RoPE turns pairs of elements)");
}

RopeScaling read_rope_scaling(const JsonReader& rope, int64_t max_positions) {
  RopeScaling scaling;
  const std::string kind = rope.string("rope_type", rope.string("type", "default"));
  if (kind == "default") return scaling;
  VALIDATE(kind == "linear" || kind == "llama3", ExitCode::bad_data, rope.file(), ": rope type '",
           kind, "' is not supported (supported: default, linear, llama3)");
  VALIDATE(rope.has("factor"), ExitCode::bad_data, rope.file(), ": rope type '", kind,
           "' needs factor");
  scaling.kind = kind == "linear" ? RopeKind::linear : RopeKind::llama3;
  scaling.factor = rope.positive("factor", 1);
  if (scaling.kind == RopeKind::linear) return scaling;
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    VALIDATE(rope.has(key), ExitCode::bad_data, rope.file(), ": rope type llama3 needs ", key);
  }
  scaling.low_freq_factor = rope.positive("low_freq_factor", 1);
  scaling.high_freq_factor = rope.positive("high_freq_factor", 4);
  scaling.original_max_positions =
      rope.size("original_max_position_embeddings", INT32_MAX, max_positions);
  VALIDATE(scaling.high_freq_factor > scaling.low_freq_factor, ExitCode::bad_data, rope.file(),
           ": high_freq_factor must be larger than low_freq_factor");
  return scaling;
}

// Both spellings: rope_theta + rope_scaling (transformers 4) and rope_parameters (transformers 5).
void read_rope(const JsonReader& json, ModelShape& shape) {
  shape.rope_theta = json.positive("rope_theta", traits(shape.architecture).theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!json.has(key)) continue;
    VALIDATE(json.at(key).is_object(), ExitCode::bad_data, json.file(), ": ", key,
             " must be an object");
    const JsonReader rope(json.at(key), base::text(json.file(), ": ", key));
    shape.rope_theta = rope.positive("rope_theta", shape.rope_theta);
    VALIDATE(rope.number("partial_rotary_factor", 1) == 1, ExitCode::bad_data, rope.file(),
             ": partial_rotary_factor is not supported (RoPE turns whole heads)");
    shape.rope_scaling = read_rope_scaling(rope, shape.max_positions);
  }
}

// no_rope_layers has a 0 for each layer that is not rotated; without it, it is every
// no_rope_layer_interval-th.
void read_layers_without_rope(const JsonReader& json, ModelShape& shape) {
  if (!traits(shape.architecture).layers_without_rope) return;
  const auto layers = static_cast<size_t>(shape.layers);
  shape.without_rope.assign(layers, false);
  if (!json.has("no_rope_layers")) {
    const int64_t interval = json.size("no_rope_layer_interval", 1 << 14, 4);
    for (size_t i = 0; i < layers; ++i)
      shape.without_rope[i] = static_cast<int64_t>(i + 1) % interval == 0;
    return;
  }
  const Json& list = json.at("no_rope_layers");
  VALIDATE(list.is_array() && list.size() == layers, ExitCode::bad_data, json.file(),
           ": no_rope_layers must be a list with a number for each of the ", layers, " layers");
  for (size_t i = 0; i < layers; ++i) {
    const int64_t rotated = json.checked_integer("no_rope_layers", list[i]);
    VALIDATE(rotated == 0 || rotated == 1, ExitCode::bad_data, json.file(), ": no_rope_layers has ",
             rotated, " (1: the layer is rotated, 0: it is not)");
    shape.without_rope[i] = rotated == 0;
  }
}

void read_multipliers(const JsonReader& json, ModelShape& shape) {
  if (!traits(shape.architecture).multipliers) return;
  shape.multipliers = {
      json.positive("embedding_multiplier", 1), json.positive("residual_multiplier", 1),
      1 / json.positive("logits_scaling", 1), json.positive("attention_multiplier", 1)};
}

int32_t token_id(const JsonReader& json, const char* key, const Json& value, int64_t vocab) {
  const int64_t id = json.checked_integer(key, value);
  VALIDATE(id >= 0 && id < vocab, ExitCode::bad_data, json.file(), ": ", key, " is ", id,
           " (the vocabulary has ids 0 ... ", vocab - 1, ")");
  return static_cast<int32_t>(id);
}

void read_special_ids(const JsonReader& json, ModelShape& shape) {
  if (json.has("bos_token_id"))
    shape.bos_id = token_id(json, "bos_token_id", json.at("bos_token_id"), shape.vocab);
  if (json.has("eos_token_id")) {
    const Json& eos = json.at("eos_token_id");
    if (eos.is_array()) {
      for (const Json& id : eos)
        shape.eos_ids.push_back(token_id(json, "eos_token_id", id, shape.vocab));
    } else {
      shape.eos_ids.push_back(token_id(json, "eos_token_id", eos, shape.vocab));
    }
  }
  // Old Llama configurations write -1 for "no padding token".
  if (json.has("pad_token_id") && json.integer("pad_token_id") != -1) {
    shape.pad_id = token_id(json, "pad_token_id", json.at("pad_token_id"), shape.vocab);
  }
}

void read_dtype(const JsonReader& json, ModelShape& shape) {
  shape.dtype = json.string("dtype", json.string("torch_dtype", "float32"));
  VALIDATE(shape.dtype == "float32" || shape.dtype == "bfloat16" || shape.dtype == "float16",
           ExitCode::bad_data, json.file(), ": dtype ", shape.dtype,
           " is not supported (supported: float32, bfloat16, float16)");
}

void read_score_head(const JsonReader& json, ModelShape& shape) {
  shape.value_head_prefix = json.string("value_head_prefix", "score");
  if (json.has("mean")) shape.score_mean = json.number("mean", 0);
  if (json.has("std")) shape.score_std = json.positive("std", 1);
  if (!shape.score_head) return;
  const int64_t labels = json.has("id2label") ? static_cast<int64_t>(json.at("id2label").size())
                                              : json.integer("num_labels", 1);
  VALIDATE(labels == 1, ExitCode::bad_data, json.file(), ": a classifier of ", labels,
           " labels is no reward model (one score is needed)");
}

}  // namespace

ModelShape parse_model_shape(std::string_view text, std::string_view name) {
  const Json object = parse_json(text, name);
  const JsonReader json(object, name);
  ModelShape shape;
  read_architecture(json, shape);
  read_sizes(json, shape);
  refuse_unsupported(json, shape);
  shape.norm_eps = json.positive("rms_norm_eps", traits(shape.architecture).eps);
  read_rope(json, shape);
  read_layers_without_rope(json, shape);
  read_multipliers(json, shape);
  shape.tied = json.flag("tie_word_embeddings", traits(shape.architecture).tied);
  const ArchitectureTraits& known = traits(shape.architecture);
  shape.o_bias = known.biases == AttentionBiases::by_key && json.flag("attention_bias", false);
  shape.qkv_bias = shape.o_bias || known.biases == AttentionBiases::qkv;
  shape.mlp_bias = known.mlp_bias_key && json.flag("mlp_bias", false);
  read_special_ids(json, shape);
  read_dtype(json, shape);
  read_score_head(json, shape);
  shape.initializer_range = json.positive("initializer_range", 0.02);
  return shape;
}

ModelShape load_model_shape(const std::filesystem::path& folder_or_file) {
  const std::filesystem::path file = config_file(folder_or_file);
  const std::string text = base::read_file(file, max_file_bytes);
  base::refuse_foreign_file(text, file, base::Expected::json);
  return parse_model_shape(text, file.string());
}

std::string to_config_json(const ModelShape& shape) {
  const ArchitectureTraits& known = traits(shape.architecture);
  nlohmann::ordered_json json;
  json["architectures"] = {base::text(known.class_prefix, shape.score_head ? classifier : causal)};
  json["model_type"] = to_string(shape.architecture);
  json["hidden_act"] = "silu";
  json["hidden_size"] = shape.hidden;
  json["intermediate_size"] = shape.ffn;
  json["num_hidden_layers"] = shape.layers;
  json["num_attention_heads"] = shape.heads;
  json["num_key_value_heads"] = shape.kv_heads;
  json["head_dim"] = shape.head_dim;
  json["vocab_size"] = shape.vocab;
  json["max_position_embeddings"] = shape.max_positions;
  json["initializer_range"] = shape.initializer_range;
  json["rms_norm_eps"] = shape.norm_eps;
  json["rope_theta"] = shape.rope_theta;
  json["rope_scaling"] = nullptr;
  if (shape.rope_scaling.kind != RopeKind::plain) {
    auto& scaling = json["rope_scaling"] = {{"rope_type", to_string(shape.rope_scaling.kind)},
                                            {"factor", shape.rope_scaling.factor}};
    if (shape.rope_scaling.kind == RopeKind::llama3) {
      scaling["low_freq_factor"] = shape.rope_scaling.low_freq_factor;
      scaling["high_freq_factor"] = shape.rope_scaling.high_freq_factor;
      scaling["original_max_position_embeddings"] = shape.rope_scaling.original_max_positions;
    }
  }
  if (!shape.without_rope.empty()) {
    auto& layers = json["no_rope_layers"] = nlohmann::ordered_json::array();
    for (const bool without : shape.without_rope) layers.push_back(without ? 0 : 1);
  }
  if (known.multipliers) {
    json["embedding_multiplier"] = shape.multipliers.embedding;
    json["residual_multiplier"] = shape.multipliers.residual;
    json["logits_scaling"] = 1 / shape.multipliers.logits;
    json["attention_multiplier"] = shape.multipliers.attention.value_or(1);
  }
  json["tie_word_embeddings"] = shape.tied;
  json["attention_dropout"] = 0.0;
  if (known.biases == AttentionBiases::by_key) json["attention_bias"] = shape.qkv_bias;
  if (known.mlp_bias_key) json["mlp_bias"] = shape.mlp_bias;
  if (known.window != WindowKey::none) json["sliding_window"] = nullptr;
  if (known.window == WindowKey::flag) json["use_sliding_window"] = false;
  if (shape.bos_id) json["bos_token_id"] = *shape.bos_id;
  if (shape.eos_ids.size() == 1) json["eos_token_id"] = shape.eos_ids[0];
  if (shape.eos_ids.size() > 1) json["eos_token_id"] = shape.eos_ids;
  if (shape.pad_id) json["pad_token_id"] = *shape.pad_id;
  json["torch_dtype"] = shape.dtype;
  json["use_cache"] = true;
  if (shape.score_head) {
    json["num_labels"] = 1;
    json["value_head_prefix"] = shape.value_head_prefix;
  }
  if (shape.score_mean) json["mean"] = *shape.score_mean;
  if (shape.score_std) json["std"] = *shape.score_std;
  return json.dump(2) + "\n";
}

std::string describe(const ModelShape& shape, int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  const std::string size =
      count >= 1e9 ? base::fixed(count / 1e9, 2) + " B" : base::fixed(count / 1e6, 1) + " M";
  return base::text(to_string(shape.architecture), ", ", shape.layers, " layers, hidden ",
                    shape.hidden, ", ", shape.heads, "/", shape.kv_heads, " heads of ",
                    shape.head_dim, ", ffn ", shape.ffn, ", vocabulary ", shape.vocab,
                    shape.score_head ? ", score head" : (shape.tied ? ", tied" : ""), ", ", size,
                    " parameters");
}

}  // namespace trireme::config
