// Operations of a model's stages: the one place that knows. An architecture is a function
// from its config to a list of operations.
#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>

#include "parameter_table.hpp"
#include "trireme/base/error.hpp"

namespace trireme::model {
namespace {

using Operations = std::vector<Operation>;

// The values of a decoder block; every layer uses the same.
struct DecoderValues {
  explicit DecoderValues(size_t& count) {
    for (Value* value : {&normed, &q, &k, &v, &attended, &projected, &gate, &up})
      value->id = static_cast<uint8_t>(count++);
  }
  Value normed, q, k, v, attended, projected, gate, up;
};

void append(Operations& list, std::initializer_list<Operation> more) {
  list.insert(list.end(), more);
}

double attention_scale(const config::ModelShape& shape) {
  return shape.multipliers.attention.value_or(1 / std::sqrt(static_cast<double>(shape.head_dim)));
}

// Nothing where the factor is 1.
void append_scale(Operations& list, Value value, double factor, bool rounded = false) {
  if (factor != 1) append(list, {Scale{value, factor, rounded}});
}

// Differences of families.
struct Family {
  Operations (*block)(const config::ModelShape&, int layer, const DecoderValues&);
  NormKind norm = NormKind::rms;
  bool interleaved = false;  // rotation
};
const Family& family_of(const config::ModelShape& shape);

Norm norm_of(const config::ModelShape& shape, Value in, Value out, Role weight) {
  return {in, out, weight, shape.norm_eps, 0, family_of(shape).norm};
}

// Of the stream that the first layer gets. Here and not in the embedding's stage, whose gradient is
// added row by row as it comes.
void append_embedding_scale(Operations& list, const config::ModelShape& shape, int layer) {
  if (layer == 0)
    append_scale(list, residual, shape.multipliers.embedding, shape.multipliers.sqrt_embedding);
}

// q and k: norms, rotation.
void append_positions(Operations& list, const config::ModelShape& shape, int layer,
                      const DecoderValues& v) {
  if (config::traits(shape.architecture).head_norms) {
    const NormKind kind = family_of(shape).norm;
    append(list, {Norm{v.q, v.q, Role::q_norm, shape.norm_eps, shape.head_dim, kind},
                  Norm{v.k, v.k, Role::k_norm, shape.norm_eps, shape.head_dim, kind}});
  }
  if (shape.without_rope.empty() || !shape.without_rope[static_cast<size_t>(layer)]) {
    const size_t table = shape.local_rope && shape.has_window(layer) ? 1 : 0;
    const bool interleaved = family_of(shape).interleaved;
    append(list, {Rotate{v.q, shape.head_dim, table, interleaved},
                  Rotate{v.k, shape.head_dim, table, interleaved}});
  }
  if (shape.position_scale)
    append(list, {ScaleByPosition{v.q, shape.position_scale->beta, shape.position_scale->period}});
}

// Attention of `in`, to `projected`. `norms`: of q and k as whole rows.
void append_attention(Operations& list, const config::ModelShape& shape, int layer,
                      const DecoderValues& v, Value in, bool norms = false) {
  const auto bias = [&](Role role) { return shape.qkv_bias ? std::optional(role) : std::nullopt; };
  // Backward, the gradients of `in` add up in reverse: this order is part of the numerics.
  append(list, {Linear{in, v.v, Role::v, bias(Role::v_bias)},
                Linear{in, v.k, Role::k, bias(Role::k_bias)},
                Linear{in, v.q, Role::q, bias(Role::q_bias)}});
  if (norms)
    append(list, {Norm{v.q, v.q, Role::whole_q_norm, shape.norm_eps},
                  Norm{v.k, v.k, Role::whole_k_norm, shape.norm_eps}});
  append_positions(list, shape, layer, v);
  const Scores scores(attention_scale(shape), shape.window_of(layer), shape.attention_cap);
  append(list, {Attend{v.q, v.k, v.v, v.attended, shape.head_dim, scores},
                Linear{v.attended, v.projected, Role::o, {}}, Reduce{v.projected}});
  if (shape.o_bias)  // after the sum: every rank has the whole bias
    append(list, {AddBias{v.projected, Role::o_bias}});
}

// The feed-forward part of `in`, to `projected`.
void append_feed_forward(Operations& list, const config::ModelShape& shape, const DecoderValues& v,
                         Value in, GateKind kind = GateKind::silu) {
  const auto bias = [&](Role role) { return shape.mlp_bias ? std::optional(role) : std::nullopt; };
  append(list, {Linear{in, v.gate, Role::gate, bias(Role::gate_bias)},
                Linear{in, v.up, Role::up, bias(Role::up_bias)}, Gate{v.gate, v.up, v.gate, kind},
                Linear{v.gate, v.projected, Role::down, {}}, Reduce{v.projected}});
  if (shape.mlp_bias) append(list, {AddBias{v.projected, Role::down_bias}});
}

// Llama and its kin: a norm before attention and before the feed-forward part.
Operations pre_norm_block(const config::ModelShape& shape, int layer, const DecoderValues& v) {
  Operations list;
  append_embedding_scale(list, shape, layer);
  append(list, {norm_of(shape, residual, v.normed, Role::input_norm), Spread{v.normed}});
  append_attention(list, shape, layer, v, v.normed);
  append_scale(list, v.projected, shape.multipliers.residual);
  append(list, {Add{residual, v.projected, residual},
                norm_of(shape, residual, v.normed, Role::post_norm), Spread{v.normed}});
  append_feed_forward(list, shape, v, v.normed);
  append_scale(list, v.projected, shape.multipliers.residual);
  append(list, {Add{residual, v.projected, residual}});
  return list;
}

// OLMo 2 and 3: norms after attention and the feed-forward part, and of q and k as whole rows.
Operations post_norm_block(const config::ModelShape& shape, int layer, const DecoderValues& v) {
  Operations list;
  append_attention(list, shape, layer, v, residual, true);
  append(list, {norm_of(shape, v.projected, v.normed, Role::post_norm),
                Add{residual, v.normed, residual}});
  append_feed_forward(list, shape, v, residual);
  append(list, {norm_of(shape, v.projected, v.normed, Role::ffn_norm),
                Add{residual, v.normed, residual}});
  return list;
}

// Four norms: before and after attention and the feed-forward part.
struct FourNorms {
  Role before_attention, after_attention, before_ffn, after_ffn;
};
Operations four_norm_block(const config::ModelShape& shape, int layer, const DecoderValues& v,
                           const FourNorms& norms, GateKind kind) {
  Operations list;
  append_embedding_scale(list, shape, layer);
  append(list, {norm_of(shape, residual, v.normed, norms.before_attention), Spread{v.normed}});
  append_attention(list, shape, layer, v, v.normed);
  append(list, {norm_of(shape, v.projected, v.normed, norms.after_attention),
                Add{residual, v.normed, residual},
                norm_of(shape, residual, v.normed, norms.before_ffn), Spread{v.normed}});
  append_feed_forward(list, shape, v, v.normed, kind);
  append(list, {norm_of(shape, v.projected, v.normed, norms.after_ffn),
                Add{residual, v.normed, residual}});
  return list;
}
Operations gemma_block(const config::ModelShape& shape, int layer, const DecoderValues& v) {
  return four_norm_block(shape, layer, v,
                         {Role::input_norm, Role::post_norm, Role::ffn_input_norm, Role::ffn_norm},
                         GateKind::gelu_tanh);
}
Operations glm4_block(const config::ModelShape& shape, int layer, const DecoderValues& v) {
  return four_norm_block(shape, layer, v,
                         {Role::input_norm, Role::self_attn_norm, Role::post_norm, Role::mlp_norm},
                         GateKind::silu);
}

// Cohere 2: attention and the feed-forward part of one norm.
Operations parallel_block(const config::ModelShape& shape, int layer, const DecoderValues& v) {
  Operations list{norm_of(shape, residual, v.normed, Role::input_norm), Spread{v.normed}};
  append_attention(list, shape, layer, v, v.normed);
  append(list, {Add{residual, v.projected, residual}});
  append_feed_forward(list, shape, v, v.normed);
  append(list, {Add{residual, v.projected, residual}});
  return list;
}

// Apertus: xIELU without a gate.
Operations ungated_block(const config::ModelShape& shape, int layer, const DecoderValues& v) {
  Operations list{norm_of(shape, residual, v.normed, Role::attention_norm), Spread{v.normed}};
  append_attention(list, shape, layer, v, v.normed);
  append(list, {Add{residual, v.projected, residual},
                norm_of(shape, residual, v.normed, Role::feedforward_norm), Spread{v.normed},
                Linear{v.normed, v.up, Role::up, {}},
                Activate{v.up, v.gate, {Role::alpha_p, Role::alpha_n, Role::beta, Role::eps}},
                Linear{v.gate, v.projected, Role::down, {}}, Reduce{v.projected},
                Add{residual, v.projected, residual}});
  return list;
}

// In the order of config::architecture_table.
constexpr std::array<Family, config::architecture_table.size()> families{
    Family{pre_norm_block},                           // llama
    Family{pre_norm_block},                           // mistral
    Family{pre_norm_block},                           // qwen2
    Family{pre_norm_block},                           // qwen3
    Family{pre_norm_block},                           // smollm3
    Family{pre_norm_block},                           // granite
    Family{post_norm_block},                          // olmo2
    Family{post_norm_block},                          // olmo3
    Family{pre_norm_block},                           // ministral3
    Family{gemma_block, NormKind::rms_offset},        // gemma2
    Family{gemma_block, NormKind::rms_offset},        // gemma3
    Family{pre_norm_block, NormKind::rms, true},      // glm
    Family{glm4_block, NormKind::rms, true},          // glm4
    Family{pre_norm_block},                           // phi3
    Family{parallel_block, NormKind::centred, true},  // cohere2
    Family{ungated_block},                            // apertus
};
const Family& family_of(const config::ModelShape& shape) {
  return families[static_cast<size_t>(shape.architecture)];
}

// Adds a parameter to the model and to its last stage.
void append_parameter(ModelSpec& spec, Role role) {
  const ParameterKind& kind = kind_of(role);
  Stage& stage = spec.stages.back();
  base::TensorSpec tensor{name_prefix(stage.layer) + std::string(kind.name),
                          {length_of(kind.rows, spec.shape)}};
  if (role == Role::score) tensor.name = spec.shape.value_head_prefix + tensor.name;
  if (kind.columns != Extent::none) tensor.shape.push_back(length_of(kind.columns, spec.shape));
  stage.parameters.push_back(spec.parameters.size());
  spec.parameters.push_back(
      {std::move(tensor), role, true, stored_tensor(role, name_prefix(stage.layer), spec.shape)});
}

void append(ModelSpec& spec, StageKind kind, int layer, Operations operations) {
  spec.stages.push_back({kind, layer, {}, std::move(operations)});
  const Operations& list = spec.stages.back().operations;
  for (const ParameterKind& parameter : parameter_kinds()) {
    const auto uses = [&](const Operation& o) {
      const std::vector<Role> roles = roles_of(o);
      return std::ranges::find(roles, parameter.role) != roles.end();
    };
    if (std::ranges::any_of(list, uses)) append_parameter(spec, parameter.role);
  }
}

// The head's weight comes last.
void append_head(ModelSpec& spec, const DecoderValues& v) {
  Operations list{norm_of(spec.shape, residual, v.normed, Role::final_norm)};
  if (spec.head == HeadKind::language) append_scale(list, v.normed, spec.shape.multipliers.logits);
  append(spec, StageKind::head, -1, std::move(list));
  if (spec.head == HeadKind::score) {
    append_parameter(spec, Role::score);
  } else if (spec.shape.tied) {
    spec.stages.back().parameters.push_back(spec.stages.front().parameters.front());
  } else {
    append_parameter(spec, Role::lm_head);
  }
}

}  // namespace

Rotation rotation_of(const config::ModelShape& shape) {
  return {shape.rotary_dims > 0 ? shape.rotary_dims : shape.head_dim, shape.rope_theta,
          shape.rope_scaling};
}

double first_value(const ParameterKind& kind, const config::ModelShape& shape) {
  if (kind.start == Start::number) return kind.number;
  return kind.start == Start::ones && family_of(shape).norm != NormKind::rms_offset ? 1 : 0;
}

ModelSpec describe(const config::ModelShape& shape, HeadKind head) {
  ModelSpec spec;
  spec.shape = shape;
  spec.head = head;
  spec.rotations = {rotation_of(shape)};
  if (shape.local_rope)
    spec.rotations.push_back(
        {spec.rotations.front().dims, shape.local_rope->theta, shape.local_rope->scaling});
  spec.values = residual.id + 1;
  const DecoderValues values(spec.values);
  append(spec, StageKind::embedding, -1, {LookUp{residual, Role::embedding}, Reduce{residual}});
  for (int layer = 0; layer < shape.layers; ++layer)
    append(spec, StageKind::block, layer, family_of(shape).block(shape, layer, values));
  append_head(spec, values);
  return spec;
}

size_t joint_linears(const Stage& stage, size_t first) {
  const auto linear = [&](size_t i) {
    return i < stage.operations.size() ? std::get_if<Linear>(&stage.operations[i]) : nullptr;
  };
  // An adapter's products are apart from those of the base, whose rows are neighbours, and of
  // another adapter.
  const auto joins = [&](size_t i) {
    return linear(i) != nullptr && linear(i)->in == linear(first)->in &&
           mark_of(linear(i)->weight) == mark_of(linear(first)->weight);
  };
  size_t end = first;
  while (joins(end)) ++end;
  return end - first;
}

std::vector<bool> joins_the_one_before(const ModelSpec& spec) {
  std::vector<bool> out(spec.parameters.size(), false);
  for (const Stage& stage : spec.stages) {
    for (size_t i = 0, count = 0; i < stage.operations.size(); i += std::max<size_t>(count, 1)) {
      count = joint_linears(stage, i);
      for (const auto role_of : {weight_of, bias_of}) {
        std::vector<size_t> group;
        for (size_t j = i; j < i + count; ++j) {
          if (const auto role = role_of(stage.operations[j]))
            group.push_back(spec.index_of(stage, *role));
        }
        std::sort(group.begin(), group.end());
        for (size_t j = 1; j < group.size(); ++j) out[group[j]] = group[j] == group[j - 1] + 1;
      }
    }
  }
  return out;
}

}  // namespace trireme::model
