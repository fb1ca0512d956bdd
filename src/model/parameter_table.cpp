#include "parameter_table.hpp"

#include <algorithm>
#include <array>
#include <string>

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
    ParameterKind{Role::self_attn_norm, "post_self_attn_layernorm.weight", "", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::post_norm, "post_attention_layernorm.weight", "ffn_norm.weight",
                  Extent::hidden, Extent::none, Start::ones},
    ParameterKind{Role::ffn_input_norm, "pre_feedforward_layernorm.weight", "", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::attention_norm, "attention_layernorm.weight", "", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::feedforward_norm, "feedforward_layernorm.weight", "", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::gate, "mlp.gate_proj.weight", "ffn_gate.weight", Extent::ffn,
                  Extent::hidden, Start::normal},
    ParameterKind{Role::up, "mlp.up_proj.weight", "ffn_up.weight", Extent::ffn, Extent::hidden,
                  Start::normal},
    ParameterKind{Role::down, "mlp.down_proj.weight", "ffn_down.weight", Extent::hidden,
                  Extent::ffn, Start::normal},
    ParameterKind{Role::gate_bias, "mlp.gate_proj.bias", "", Extent::ffn, Extent::none,
                  Start::zeros},
    ParameterKind{Role::up_bias, "mlp.up_proj.bias", "", Extent::ffn, Extent::none, Start::zeros},
    ParameterKind{Role::down_bias, "mlp.down_proj.bias", "", Extent::hidden, Extent::none,
                  Start::zeros},
    // log(expm1(0.8)) and log(expm1(0.3)), as transformers begins.
    ParameterKind{Role::alpha_p, "mlp.act_fn.alpha_p", "", Extent::one, Extent::none, Start::number,
                  0.203361},
    ParameterKind{Role::alpha_n, "mlp.act_fn.alpha_n", "", Extent::one, Extent::none, Start::number,
                  -1.050184},
    ParameterKind{Role::beta, "mlp.act_fn.beta", "", Extent::one, Extent::none, Start::number, 0.5},
    ParameterKind{Role::eps, "mlp.act_fn.eps", "", Extent::one, Extent::none, Start::number, -1e-6},
    ParameterKind{Role::ffn_norm, "post_feedforward_layernorm.weight", "", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::mlp_norm, "post_mlp_layernorm.weight", "", Extent::hidden, Extent::none,
                  Start::ones},
    ParameterKind{Role::final_norm, "model.norm.weight", "output_norm.weight", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::lm_head, "lm_head.weight", "output.weight", Extent::vocabulary,
                  Extent::hidden, Start::normal},
    ParameterKind{Role::score, ".weight", "", Extent::one, Extent::hidden,
                  Start::score},  // after ModelShape::value_head_prefix
};
static_assert(kinds.size() == static_cast<size_t>(Role::score) + 1, "every role has a row");

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

std::optional<StoredTensor> stored_tensor(Role role, const std::string& prefix,
                                          const config::ModelShape& shape) {
  const auto fused = config::traits(shape.architecture).fused;
  const auto tensor = [&](const char* name, int64_t rows, int64_t first) {
    return StoredTensor{{prefix + name, {rows, shape.hidden}}, first};
  };
  if (fused != config::FusedWeights::none && (role == Role::gate || role == Role::up))
    return tensor("mlp.gate_up_proj.weight", 2 * shape.ffn, role == Role::up ? shape.ffn : 0);
  if (fused == config::FusedWeights::qkv_gate_up &&
      (role == Role::q || role == Role::k || role == Role::v)) {
    const int64_t first = role == Role::q   ? 0
                          : role == Role::k ? shape.q_dim()
                                            : shape.q_dim() + shape.kv_dim();
    return tensor("self_attn.qkv_proj.weight", shape.q_dim() + 2 * shape.kv_dim(), first);
  }
  if (role == Role::beta || role == Role::eps)  // without a dimension there
    return StoredTensor{{prefix + std::string(kind_of(role).name), {}}, 0};
  return std::nullopt;
}

}  // namespace trireme::model
