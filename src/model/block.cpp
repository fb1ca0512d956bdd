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

constexpr std::array kinds{
    ParameterKind{Role::embedding, "model.embed_tokens.weight", "token_embd.weight",
                  Extent::vocabulary, Extent::hidden, Start::normal},
    ParameterKind{Role::input_norm, "input_layernorm.weight", "attn_norm.weight", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::q, "self_attn.q_proj.weight", "attn_q.weight", Extent::q, Extent::hidden,
                  Start::normal},
    ParameterKind{Role::k, "self_attn.k_proj.weight", "attn_k.weight", Extent::kv, Extent::hidden,
                  Start::normal},
    ParameterKind{Role::v, "self_attn.v_proj.weight", "attn_v.weight", Extent::kv, Extent::hidden,
                  Start::normal},
    ParameterKind{Role::q_bias, "self_attn.q_proj.bias", "attn_q.bias", Extent::q, Extent::none,
                  Start::zeros},
    ParameterKind{Role::k_bias, "self_attn.k_proj.bias", "attn_k.bias", Extent::kv, Extent::none,
                  Start::zeros},
    ParameterKind{Role::v_bias, "self_attn.v_proj.bias", "attn_v.bias", Extent::kv, Extent::none,
                  Start::zeros},
    ParameterKind{Role::q_norm, "self_attn.q_norm.weight", "attn_q_norm.weight", Extent::head,
                  Extent::none, Start::ones},
    ParameterKind{Role::k_norm, "self_attn.k_norm.weight", "attn_k_norm.weight", Extent::head,
                  Extent::none, Start::ones},
    ParameterKind{Role::whole_q_norm, "self_attn.q_norm.weight", "", Extent::q, Extent::none,
                  Start::ones},
    ParameterKind{Role::whole_k_norm, "self_attn.k_norm.weight", "", Extent::kv, Extent::none,
                  Start::ones},
    ParameterKind{Role::o, "self_attn.o_proj.weight", "attn_output.weight", Extent::hidden,
                  Extent::q, Start::normal},
    ParameterKind{Role::o_bias, "self_attn.o_proj.bias", "attn_output.bias", Extent::hidden,
                  Extent::none, Start::zeros},
    ParameterKind{Role::post_norm, "post_attention_layernorm.weight", "ffn_norm.weight",
                  Extent::hidden, Extent::none, Start::ones},
    ParameterKind{Role::gate, "mlp.gate_proj.weight", "ffn_gate.weight", Extent::ffn,
                  Extent::hidden, Start::normal},
    ParameterKind{Role::up, "mlp.up_proj.weight", "ffn_up.weight", Extent::ffn, Extent::hidden,
                  Start::normal},
    ParameterKind{Role::down, "mlp.down_proj.weight", "ffn_down.weight", Extent::hidden,
                  Extent::ffn, Start::normal},
    ParameterKind{Role::ffn_norm, "post_feedforward_layernorm.weight", "", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::final_norm, "model.norm.weight", "output_norm.weight", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::lm_head, "lm_head.weight", "output.weight", Extent::vocabulary,
                  Extent::hidden, Start::normal},
    ParameterKind{Role::score, ".weight", "", Extent::one, Extent::hidden,
                  Start::score},  // after ModelShape::value_head_prefix
};
static_assert(kinds.size() == static_cast<size_t>(Role::score) + 1, "every role has a row");

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
void append_scale(Operations& list, Value value, double factor) {
  if (factor != 1) append(list, {Scale{value, factor}});
}

// Llama and its kin: a norm before attention and before the feed-forward part.
Operations pre_norm_block(const config::ModelShape& shape, int layer, const DecoderValues& v) {
  const auto bias = [&](Role role) { return shape.qkv_bias ? std::optional(role) : std::nullopt; };
  const double eps = shape.norm_eps;
  Operations list;
  // Here and not in the embedding's stage, whose gradient is added row by row as it comes.
  if (layer == 0) append_scale(list, residual, shape.multipliers.embedding);
  // Backward, the gradients of `normed` add up in reverse: this order is part of the numerics.
  append(list, {Norm{residual, v.normed, Role::input_norm, eps}, Spread{v.normed},
                Linear{v.normed, v.v, Role::v, bias(Role::v_bias)},
                Linear{v.normed, v.k, Role::k, bias(Role::k_bias)},
                Linear{v.normed, v.q, Role::q, bias(Role::q_bias)}});
  if (config::traits(shape.architecture).head_norms) {
    append(list, {Norm{v.q, v.q, Role::q_norm, eps, shape.head_dim},
                  Norm{v.k, v.k, Role::k_norm, eps, shape.head_dim}});
  }
  if (shape.without_rope.empty() || !shape.without_rope[static_cast<size_t>(layer)])
    append(list, {Rotate{v.q, shape.head_dim}, Rotate{v.k, shape.head_dim}});
  append(list, {Attend{v.q, v.k, v.v, v.attended, shape.head_dim, attention_scale(shape)},
                Linear{v.attended, v.projected, Role::o, {}}, Reduce{v.projected}});
  if (shape.o_bias)  // after the sum: every rank has the whole bias
    append(list, {AddBias{v.projected, Role::o_bias}});
  append_scale(list, v.projected, shape.multipliers.residual);
  append(list,
         {Add{residual, v.projected, residual}, Norm{residual, v.normed, Role::post_norm, eps},
          Spread{v.normed}, Linear{v.normed, v.gate, Role::gate, {}},
          Linear{v.normed, v.up, Role::up, {}}, Gate{v.gate, v.up, v.gate},
          Linear{v.gate, v.projected, Role::down, {}}, Reduce{v.projected}});
  append_scale(list, v.projected, shape.multipliers.residual);
  append(list, {Add{residual, v.projected, residual}});
  return list;
}

// OLMo 2: norms after attention and the feed-forward part, and of q and k as whole rows.
Operations post_norm_block(const config::ModelShape& shape, int, const DecoderValues& v) {
  const auto bias = [&](Role role) { return shape.qkv_bias ? std::optional(role) : std::nullopt; };
  const double eps = shape.norm_eps;
  Operations list{Linear{residual, v.v, Role::v, bias(Role::v_bias)},
                  Linear{residual, v.k, Role::k, bias(Role::k_bias)},
                  Linear{residual, v.q, Role::q, bias(Role::q_bias)},
                  Norm{v.q, v.q, Role::whole_q_norm, eps},
                  Norm{v.k, v.k, Role::whole_k_norm, eps},
                  Rotate{v.q, shape.head_dim},
                  Rotate{v.k, shape.head_dim},
                  Attend{v.q, v.k, v.v, v.attended, shape.head_dim, attention_scale(shape)},
                  Linear{v.attended, v.projected, Role::o, {}},
                  Reduce{v.projected}};
  if (shape.o_bias) append(list, {AddBias{v.projected, Role::o_bias}});
  append(
      list,
      {Norm{v.projected, v.normed, Role::post_norm, eps}, Add{residual, v.normed, residual},
       Linear{residual, v.gate, Role::gate, {}}, Linear{residual, v.up, Role::up, {}},
       Gate{v.gate, v.up, v.gate}, Linear{v.gate, v.projected, Role::down, {}}, Reduce{v.projected},
       Norm{v.projected, v.normed, Role::ffn_norm, eps}, Add{residual, v.normed, residual}});
  return list;
}

// The block of each architecture, in the order of config::architecture_table.
constexpr std::array<Operations (*)(const config::ModelShape&, int layer, const DecoderValues&),
                     config::architecture_table.size()>
    block_lists{pre_norm_block, pre_norm_block, pre_norm_block, pre_norm_block,
                pre_norm_block, pre_norm_block, post_norm_block};

// Adds a parameter to the model and to its last stage.
void append_parameter(ModelSpec& spec, Role role) {
  const ParameterKind& kind = kind_of(role);
  Stage& stage = spec.stages.back();
  base::TensorSpec tensor{name_prefix(stage.layer) + std::string(kind.name),
                          {length_of(kind.rows, spec.shape)}};
  if (role == Role::score) tensor.name = spec.shape.value_head_prefix + tensor.name;
  if (kind.columns != Extent::none) tensor.shape.push_back(length_of(kind.columns, spec.shape));
  stage.parameters.push_back(spec.parameters.size());
  spec.parameters.push_back({std::move(tensor), role});
}

void append(ModelSpec& spec, StageKind kind, int layer, Operations operations) {
  spec.stages.push_back({kind, layer, {}, std::move(operations)});
  const Operations& list = spec.stages.back().operations;
  for (const ParameterKind& parameter : kinds) {
    const auto uses = [&](const Operation& o) {
      return weight_of(o) == parameter.role || bias_of(o) == parameter.role;
    };
    if (std::ranges::any_of(list, uses)) append_parameter(spec, parameter.role);
  }
}

// The head's weight comes last.
void append_head(ModelSpec& spec, const DecoderValues& v) {
  Operations list{Norm{residual, v.normed, Role::final_norm, spec.shape.norm_eps}};
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

std::span<const ParameterKind> parameter_kinds() { return kinds; }

const ParameterKind& kind_of(Role role) {
  return *std::find_if(kinds.begin(), kinds.end(),
                       [role](const auto& kind) { return kind.role == role; });
}

int64_t length_of(Extent extent, const config::ModelShape& shape) {
  switch (extent) {
    case Extent::none:
    case Extent::one: return 1;
    case Extent::hidden: return shape.hidden;
    case Extent::head: return shape.head_dim;
    case Extent::q: return shape.q_dim();
    case Extent::kv: return shape.kv_dim();
    case Extent::ffn: return shape.ffn;
    case Extent::vocabulary: return shape.vocab;
  }
  throw InternalError("an extent without length");
}

std::string name_prefix(int layer) {
  return layer < 0 ? "" : "model.layers." + std::to_string(layer) + ".";
}

Rotation rotation_of(const config::ModelShape& shape) {
  return {shape.head_dim, shape.rope_theta, shape.rope_scaling};
}

ModelSpec describe(const config::ModelShape& shape, HeadKind head) {
  VALIDATE(!shape.mlp_bias, ExitCode::bad_data,
           "mlp_bias = true is not supported (no published Llama, Mistral or Qwen2 model has it): ",
           "use a model whose MLP has no biases");
  ModelSpec spec;
  spec.shape = shape;
  spec.head = head;
  spec.rotations = {rotation_of(shape)};
  spec.values = residual.id + 1;
  const DecoderValues values(spec.values);
  append(spec, StageKind::embedding, -1, {LookUp{residual, Role::embedding}, Reduce{residual}});
  const auto block = block_lists[static_cast<size_t>(shape.architecture)];
  for (int layer = 0; layer < shape.layers; ++layer)
    append(spec, StageKind::block, layer, block(shape, layer, values));
  append_head(spec, values);
  return spec;
}

size_t joint_linears(const Stage& stage, size_t first) {
  const auto linear = [&](size_t i) {
    return i < stage.operations.size() ? std::get_if<Linear>(&stage.operations[i]) : nullptr;
  };
  size_t end = first;
  while (linear(end) != nullptr && linear(end)->in == linear(first)->in) ++end;
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
