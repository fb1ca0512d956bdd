#include <cmath>
#include <string>
#include <vector>

#include "config/model_shape_parts.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

constexpr const char* original_key = "original_max_position_embeddings";

// Two sets of keys: those of one rotation, and the whole config.
struct RopeKeys {
  const JsonReader& rope;
  const JsonReader& config;
  const ModelShape& shape;
  bool alone;  // the only rotation: keys of the whole config count for it
};

RopeKind kind_of(const RopeKeys& keys) {
  std::string word = keys.rope.string("rope_type", keys.rope.string("type", "default"));
  const bool longrope_only = traits(keys.shape.architecture).longrope_only;
  if (longrope_only && (word == "su" || word == "yarn")) word = "longrope";
  const auto kind = choice_of<RopeKind>(word);
  const bool known =
      kind && (!longrope_only || *kind == RopeKind::plain || *kind == RopeKind::longrope);
  VALIDATE(known, ExitCode::bad_data, keys.rope.file(), ": rope type '", word,
           "' is not supported (supported: ",
           longrope_only ? "default, longrope"
                         : base::join(std::vector<std::string>(std::begin(Words<RopeKind>::list),
                                                               std::end(Words<RopeKind>::list))),
           ")");
  return *kind;
}

int64_t original_positions(const RopeKeys& keys) {
  const int64_t usual = traits(keys.shape.architecture).original_positions;
  if (keys.alone && (keys.config.has(original_key) || usual > 0))
    return keys.config.size(original_key, INT32_MAX, usual);
  return keys.rope.size(original_key, INT32_MAX, keys.shape.max_positions);
}

double factor_of(const RopeKeys& keys, const RopeScaling& scaling) {
  const bool ratio = scaling.kind == RopeKind::longrope ||
                     (scaling.kind == RopeKind::yarn && keys.rope.contains("factor"));
  VALIDATE(ratio || keys.rope.has("factor"), ExitCode::bad_data, keys.rope.file(), ": rope type '",
           to_string(scaling.kind), "' needs factor");
  return keys.rope.positive("factor", static_cast<double>(keys.shape.max_positions) /
                                          static_cast<double>(scaling.original_max_positions));
}

// transformers, _compute_yarn_parameters and _compute_longrope_parameters.
double attention_factor(const JsonReader& rope, const RopeScaling& scaling) {
  if (rope.has("attention_factor")) return rope.positive("attention_factor", 1);
  if (scaling.factor <= 1) return 1;
  if (scaling.kind == RopeKind::longrope)
    return std::sqrt(1 + std::log(scaling.factor) /
                             std::log(static_cast<double>(scaling.original_max_positions)));
  const auto of = [&](double scale) { return 0.1 * scale * std::log(scaling.factor) + 1; };
  const double scale = rope.number("mscale", 0), of_all = rope.number("mscale_all_dim", 0);
  return scale != 0 && of_all != 0 ? of(scale) / of(of_all) : of(1);
}

std::vector<double> factors(const JsonReader& rope, const char* key, const ModelShape& shape) {
  const auto pairs =
      static_cast<size_t>((shape.rotary_dims > 0 ? shape.rotary_dims : shape.head_dim) / 2);
  VALIDATE(rope.has(key) && rope.at(key).is_array() && rope.at(key).size() == pairs,
           ExitCode::bad_data, rope.file(), ": rope type longrope needs ", key, ", a list of ",
           pairs, " numbers (one for each pair of rotated elements)");
  std::vector<double> out;
  for (const Json& value : rope.at(key)) {
    VALIDATE(value.is_number() && value.get<double>() > 0, ExitCode::bad_data, rope.file(), ": ",
             key, " has ", value.dump(), " (must be positive numbers)");
    out.push_back(value.get<double>());
  }
  return out;
}

void read_llama3(const JsonReader& rope, RopeScaling& scaling) {
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    VALIDATE(rope.has(key), ExitCode::bad_data, rope.file(), ": rope type llama3 needs ", key);
  }
  scaling.low_freq_factor = rope.positive("low_freq_factor", 1);
  scaling.high_freq_factor = rope.positive("high_freq_factor", 4);
  VALIDATE(scaling.high_freq_factor > scaling.low_freq_factor, ExitCode::bad_data, rope.file(),
           ": high_freq_factor must be larger than low_freq_factor");
}

RopeScaling read_scaling(const RopeKeys& keys) {
  const JsonReader& rope = keys.rope;
  RopeScaling scaling;
  scaling.kind = kind_of(keys);
  if (scaling.kind == RopeKind::plain) return scaling;
  const bool has_original = scaling.kind != RopeKind::linear && scaling.kind != RopeKind::dynamic;
  if (has_original) scaling.original_max_positions = original_positions(keys);
  if (scaling.kind == RopeKind::dynamic) scaling.original_max_positions = keys.shape.max_positions;
  scaling.factor = factor_of(keys, scaling);
  if (scaling.kind == RopeKind::llama3) read_llama3(rope, scaling);
  if (scaling.kind == RopeKind::yarn) {
    const auto beta = [&](const char* key, double otherwise) {
      const double value = rope.number(key, otherwise);
      return value == 0 ? otherwise : value;  // as in transformers
    };
    scaling.beta_fast = beta("beta_fast", 32);
    scaling.beta_slow = beta("beta_slow", 1);
    // transformers looks for it where there is one rotation only.
    scaling.truncate = !keys.alone || rope.flag("truncate", true);
  }
  if (scaling.kind == RopeKind::longrope) {
    scaling.short_factor = factors(rope, "short_factor", keys.shape);
    scaling.long_factor = factors(rope, "long_factor", keys.shape);
  }
  if (scaling.kind == RopeKind::yarn || scaling.kind == RopeKind::longrope)
    scaling.attention_factor = attention_factor(rope, scaling);
  VALIDATE(keys.alone || !scaling.by_length(), ExitCode::bad_data, rope.file(), ": rope type ",
           to_string(scaling.kind), " is not supported for one kind of layers");
  return scaling;
}

const Json& object_at(const JsonReader& json, const char* key) {
  VALIDATE(json.at(key).is_object(), ExitCode::bad_data, json.file(), ": ", key,
           " must be an object");
  return json.at(key);
}

// How much of each head is rotated.
void read_rotated_share(const JsonReader& json, const JsonReader& rope, ModelShape& shape) {
  constexpr const char* key = "partial_rotary_factor";
  const double usual = traits(shape.architecture).rotated_share;
  const double share = json.number(key, rope.number(key, usual > 0 ? usual : 1));
  VALIDATE(usual > 0 || share == 1, ExitCode::bad_data, json.file(), ": ", key,
           " is not supported for this architecture (RoPE turns whole heads)");
  VALIDATE(share > 0 && share <= 1, ExitCode::bad_data, json.file(), ": ", key, " is ", share,
           " (must be above 0 and at most 1)");
  const auto dims = static_cast<int64_t>(static_cast<double>(shape.head_dim) * share);
  VALIDATE(dims > 0 && dims % 2 == 0, ExitCode::bad_data, json.file(), ": ", key, " ", share,
           " rotates ", dims, " elements of a head (must be an even number)");
  shape.rotary_dims = dims == shape.head_dim ? 0 : dims;
}

void read_one_rope(const JsonReader& json, ModelShape& shape) {
  const ArchitectureTraits& known = traits(shape.architecture);
  const Json usual = known.rope.empty() ? Json::object() : Json::parse(known.rope);
  const Json* chosen = &usual;
  const char* name = "rope_parameters";
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!json.has(key) || object_at(json, key).empty()) continue;
    chosen = &json.at(key);
    name = key;
  }
  const JsonReader rope(*chosen, base::text(json.file(), ": ", name));
  shape.rope_theta = rope.positive("rope_theta", json.positive("rope_theta", known.theta));
  read_rotated_share(json, rope, shape);
  shape.rope_scaling = read_scaling({rope, json, shape, true});
  if (!known.position_scale) return;
  VALIDATE(rope.has("llama_4_scaling_beta"), ExitCode::bad_data, rope.file(),
           ": needs llama_4_scaling_beta");
  shape.position_scale = PositionScale{rope.number("llama_4_scaling_beta", 0),
                                       original_positions({rope, json, shape, true})};
}

// Layers with a window, and those without, have a rotation each.
void read_two_ropes(const JsonReader& json, ModelShape& shape) {
  const ArchitectureTraits& known = traits(shape.architecture);
  Json full = Json::object(), local = Json::object();
  if (json.has("rope_parameters")) {
    const JsonReader both(object_at(json, "rope_parameters"), json.file());
    VALIDATE(both.contains("full_attention") || both.contains("sliding_attention") ||
                 json.at("rope_parameters").empty(),
             ExitCode::bad_data, json.file(),
             ": rope_parameters must have full_attention and sliding_attention (the architecture "
             "has a rotation for each)");
    if (both.has("full_attention")) full = object_at(both, "full_attention");
    if (both.has("sliding_attention")) local = object_at(both, "sliding_attention");
  }
  if (json.has("rope_scaling")) full.update(object_at(json, "rope_scaling"));
  const JsonReader of_full(full, base::text(json.file(), ": the rotation of full_attention")),
      of_local(local, base::text(json.file(), ": the rotation of sliding_attention"));
  read_rotated_share(json, of_full, shape);
  shape.rope_theta = of_full.positive("rope_theta", json.positive("rope_theta", known.theta));
  shape.rope_scaling = read_scaling({of_full, json, shape, false});
  const double theta = known.local_theta_key != nullptr
                           ? json.positive(known.local_theta_key, known.local_theta)
                           : known.local_theta;
  shape.local_rope = LocalRope{of_local.positive("rope_theta", theta),
                               read_scaling({of_local, json, shape, false})};
}

nlohmann::ordered_json scaling_object(const RopeScaling& scaling) {
  if (scaling.kind == RopeKind::plain) return nullptr;
  nlohmann::ordered_json out{{"rope_type", to_string(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.kind == RopeKind::linear || scaling.kind == RopeKind::dynamic) return out;
  out[original_key] = scaling.original_max_positions;
  if (scaling.kind == RopeKind::llama3) {
    out["low_freq_factor"] = scaling.low_freq_factor;
    out["high_freq_factor"] = scaling.high_freq_factor;
    return out;
  }
  out["attention_factor"] = scaling.attention_factor;
  if (scaling.kind == RopeKind::longrope) {
    out["short_factor"] = scaling.short_factor;
    out["long_factor"] = scaling.long_factor;
    return out;
  }
  out["beta_fast"] = scaling.beta_fast;
  out["beta_slow"] = scaling.beta_slow;
  if (!scaling.truncate) out["truncate"] = false;
  return out;
}

}  // namespace

void read_rope(const JsonReader& json, ModelShape& shape) {
  traits(shape.architecture).local_theta > 0 ? read_two_ropes(json, shape)
                                             : read_one_rope(json, shape);
}

void write_rope(const ModelShape& shape, nlohmann::ordered_json& json) {
  const ArchitectureTraits& known = traits(shape.architecture);
  json["rope_theta"] = shape.rope_theta;
  auto& scaling = json["rope_scaling"] = scaling_object(shape.rope_scaling);
  if (known.rotated_share > 0)
    json["partial_rotary_factor"] =
        static_cast<double>(shape.rotary_dims > 0 ? shape.rotary_dims : shape.head_dim) /
        static_cast<double>(shape.head_dim);
  if (known.original_positions > 0)
    json[original_key] = shape.rope_scaling.original_max_positions > 0
                             ? shape.rope_scaling.original_max_positions
                             : shape.max_positions;
  if (shape.position_scale) {
    if (scaling.is_null()) scaling = {{"rope_type", "default"}};
    scaling["llama_4_scaling_beta"] = shape.position_scale->beta;
    scaling[original_key] = shape.position_scale->period;
  }
  if (scaling.is_null() && !known.rope.empty()) {
    scaling = {{"rope_type", "default"}, {"rope_theta", shape.rope_theta}};
  }
  if (!shape.local_rope) return;
  auto& both = json["rope_parameters"];
  const auto of = [](double theta, const RopeScaling& its) {
    nlohmann::ordered_json out = scaling_object(its);
    if (out.is_null()) out = {{"rope_type", "default"}};
    out["rope_theta"] = theta;
    return out;
  };
  both["full_attention"] = of(shape.rope_theta, shape.rope_scaling);
  both["sliding_attention"] = of(shape.local_rope->theta, shape.local_rope->scaling);
  if (known.local_theta_key != nullptr) json[known.local_theta_key] = shape.local_rope->theta;
}

}  // namespace trireme::config
