#include "trireme/config/model_shape.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "config/fp8_reader.hpp"
#include "config/json_reader.hpp"
#include "config/model_shape_parts.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/foreign_file.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/exported_config.hpp"
#include "trireme/config/refused_keys.hpp"

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

// Models that also see images, whose text model is described by text_config.
constexpr std::array wrappers{"Mistral3ForConditionalGeneration", "Gemma3ForConditionalGeneration"};

// The text model's description; the object itself where it is no such model.
Json text_model(const Json& object) {
  const auto list = object.find("architectures");
  const auto text = object.find("text_config");
  if (list == object.end() || text == object.end() || !list->is_array() || list->size() != 1 ||
      !text->is_object() ||
      std::ranges::none_of(wrappers, [&](const char* name) { return list->front() == name; }))
    return object;
  Json out = *text;
  for (const ArchitectureTraits& known : architecture_table) {
    if (out.value("model_type", "") == known.word)
      out["architectures"] = {base::text(known.class_prefix, causal)};
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype",
                          "tie_word_embeddings", "quantization_config"}) {
    if (object.contains(key) && !out.contains(key)) out[key] = object.at(key);
  }
  return out;
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
      const bool own = kind == classifier && !known.classifier_prefix.empty();
      names.push_back(base::text(own ? known.classifier_prefix : known.class_prefix, kind));
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

bool asks_for(const RefusedKey& refused, const JsonReader& json, const ArchitectureTraits& known) {
  switch (refused.when) {
    case RefusedKey::When::present: return json.has(refused.key);
    case RefusedKey::When::not_zero: return json.number(refused.key, 0) != 0;
    case RefusedKey::When::yes: return json.flag(refused.key, false);
    case RefusedKey::When::no: return known.head_norms && !json.flag(refused.key, true);
  }
  throw InternalError("a condition that is not known");
}

// Features that change the arithmetic and that the blocks do not have.
void refuse_unsupported(const JsonReader& json, const ModelShape& shape) {
  const ArchitectureTraits& known = traits(shape.architecture);
  const std::string usual(known.activation);
  const std::string activation = json.string(known.activation_key, usual);
  VALIDATE(activation == usual, ExitCode::bad_data, json.file(), ": ", known.activation_key, " ",
           activation, " is not supported (only ", usual, ")");
  (void)read_fp8_weights(json);
  for (const RefusedKey& refused : refused_keys) {
    VALIDATE(!asks_for(refused, json, known), ExitCode::bad_data, json.file(), ": ", refused.key,
             " is not supported (", refused.why, ")", refused.instead.empty() ? "" : ": ",
             refused.instead);
  }
}

void read_sizes(const JsonReader& json, ModelShape& shape) {
  // Limits far above any model, so that products of sizes stay below 2^63.
  constexpr int64_t width_limit = 1 << 20;
  const ArchitectureTraits& known = traits(shape.architecture);
  const auto size = [&](const char* key, int64_t limit, int64_t usual) {
    return usual > 0 ? json.size(key, limit, usual) : json.size(key, limit);
  };
  shape.vocab = size("vocab_size", INT32_MAX, known.vocab);
  shape.hidden = json.size("hidden_size", width_limit);
  shape.layers = json.size("num_hidden_layers", 1 << 14);
  shape.heads = size("num_attention_heads", 1 << 14, known.heads);
  const int64_t kv_heads = traits(shape.architecture).kv_heads;
  shape.kv_heads =
      json.size("num_key_value_heads", 1 << 14,
                kv_heads > 0 && !json.contains("num_key_value_heads") ? kv_heads : shape.heads);
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
  VALIDATE(traits(shape.architecture).head_dim_key || shape.head_dim * shape.heads == shape.hidden,
           ExitCode::bad_data, json.file(), ": head_dim ", shape.head_dim,
           " is not supported for this architecture (transformers takes hidden_size / "
           "num_attention_heads)");
  VALIDATE(shape.head_dim % 2 == 0, ExitCode::bad_data, json.file(), ": head_dim ", shape.head_dim,
           " is odd (RoPE turns pairs of elements)");
}

void read_multipliers(const JsonReader& json, ModelShape& shape) {
  const ArchitectureTraits& known = traits(shape.architecture);
  if (known.multipliers) {
    shape.multipliers = {
        json.positive("embedding_multiplier", 1), json.positive("residual_multiplier", 1),
        1 / json.positive("logits_scaling", 1), json.positive("attention_multiplier", 1)};
  }
  if (known.logit_scale > 0)
    shape.multipliers.logits = json.positive("logit_scale", known.logit_scale);
  shape.multipliers.sqrt_embedding = known.scaled_embedding;
  if (known.scaled_embedding)
    shape.multipliers.embedding = std::sqrt(static_cast<double>(shape.hidden));
  if (known.query_scalar == 0) return;
  shape.multipliers.attention =
      1 / std::sqrt(json.positive("query_pre_attn_scalar", known.query_scalar));
  const auto cap = [&](const char* key, double usual) {
    return json.contains(key) ? (json.has(key) ? json.positive(key, 1) : 0) : usual;
  };
  shape.attention_cap = cap("attn_logit_softcapping", known.attention_cap);
  shape.logit_cap = cap("final_logit_softcapping", known.logit_cap);
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
  const Json object = text_model(parse_json(text, name));
  const JsonReader json(object, name);
  ModelShape shape;
  read_architecture(json, shape);
  read_sizes(json, shape);
  refuse_unsupported(json, shape);
  const ArchitectureTraits& known = traits(shape.architecture);
  shape.norm_eps = json.positive(known.eps_key, known.eps);
  read_rope(json, shape);
  read_layers(json, shape);
  read_multipliers(json, shape);
  shape.tied = json.flag("tie_word_embeddings", known.tied);
  const bool biases = json.flag("attention_bias", known.has_biases);
  shape.o_bias = known.biases == AttentionBiases::by_key && biases;
  shape.qkv_bias =
      known.biases == AttentionBiases::qkv || (known.biases != AttentionBiases::none && biases);
  shape.mlp_bias = known.mlp_bias_key && json.flag("mlp_bias", false);
  read_special_ids(json, shape);
  read_dtype(json, shape);
  read_score_head(json, shape);
  shape.initializer_range = json.positive("initializer_range", 0.02);
  return shape;
}

namespace {

void write_multipliers(const ModelShape& shape, nlohmann::ordered_json& json) {
  const ArchitectureTraits& known = traits(shape.architecture);
  if (known.multipliers) {
    json["embedding_multiplier"] = shape.multipliers.embedding;
    json["residual_multiplier"] = shape.multipliers.residual;
    json["logits_scaling"] = 1 / shape.multipliers.logits;
    json["attention_multiplier"] = shape.multipliers.attention.value_or(1);
  }
  if (known.logit_scale > 0) json["logit_scale"] = shape.multipliers.logits;
  if (known.query_scalar == 0) return;
  const double scale = shape.multipliers.attention.value_or(1);
  json["query_pre_attn_scalar"] = std::round(1 / (scale * scale));
  const auto cap = [](double value) {
    return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  };
  json["attn_logit_softcapping"] = cap(shape.attention_cap);
  json["final_logit_softcapping"] = cap(shape.logit_cap);
}

}  // namespace

std::string text_model_config(const std::string& text) {
  const Json object = parse_json(text, "config.json");
  const Json alone = text_model(object);
  return alone == object ? text : alone.dump(2) + "\n";
}

namespace {

std::string read_config(const std::filesystem::path& file) {
  std::string text = base::read_file(file, max_file_bytes);
  base::refuse_foreign_file(text, file, base::Expected::json);
  return text;
}

}  // namespace

ModelShape load_model_shape(const std::filesystem::path& folder_or_file) {
  const std::filesystem::path file = config_file(folder_or_file);
  return parse_model_shape(read_config(file), file.string());
}

std::optional<Fp8Weights> load_fp8_weights(const std::filesystem::path& folder_or_file) {
  const std::filesystem::path file = config_file(folder_or_file);
  const Json object = text_model(parse_json(read_config(file), file.string()));
  return read_fp8_weights(JsonReader(object, file.string()));
}

std::string to_config_json(const ModelShape& shape) {
  const ArchitectureTraits& known = traits(shape.architecture);
  nlohmann::ordered_json json;
  json["architectures"] = {base::text(shape.score_head && !known.classifier_prefix.empty()
                                          ? known.classifier_prefix
                                          : known.class_prefix,
                                      shape.score_head ? classifier : causal)};
  json["model_type"] = to_string(shape.architecture);
  json[known.activation_key] = known.activation;
  json["hidden_size"] = shape.hidden;
  json["intermediate_size"] = shape.ffn;
  json["num_hidden_layers"] = shape.layers;
  json["num_attention_heads"] = shape.heads;
  json["num_key_value_heads"] = shape.kv_heads;
  json["head_dim"] = shape.head_dim;
  json["vocab_size"] = shape.vocab;
  json["max_position_embeddings"] = shape.max_positions;
  json["initializer_range"] = shape.initializer_range;
  json[known.eps_key] = shape.norm_eps;
  write_rope(shape, json);
  write_layers(shape, json);
  write_multipliers(shape, json);
  json["tie_word_embeddings"] = shape.tied;
  json["attention_dropout"] = 0.0;
  if (known.biases == AttentionBiases::by_key || known.biases == AttentionBiases::qkv_by_key)
    json["attention_bias"] = shape.qkv_bias;
  if (known.mlp_bias_key) json["mlp_bias"] = shape.mlp_bias;
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
