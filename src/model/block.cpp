// What the stages of a model are made of: the one place that knows. An architecture's options end
// here, in an `if`.
#include <algorithm>
#include <array>
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
    ParameterKind{Role::final_norm, "model.norm.weight", "output_norm.weight", Extent::hidden,
                  Extent::none, Start::ones},
    ParameterKind{Role::lm_head, "lm_head.weight", "output.weight", Extent::vocabulary,
                  Extent::hidden, Start::normal},
    ParameterKind{Role::score, ".weight", "", Extent::one, Extent::hidden,
                  Start::score},  // after ModelShape::value_head_prefix
};
static_assert(kinds.size() == static_cast<size_t>(Role::score) + 1, "every role has a row");

// An operation with the roles of its parameters: they get their positions when the stage is
// complete.
struct Draft {
  Operation operation;
  std::optional<Role> weight, bias;
};

class StageBuilder {
 public:
  void look_up(Role weight, Value out) {
    drafts_.push_back({{OperationKind::look_up, out, out, out}, weight, {}});
  }
  void norm(Value in, Role weight, Value out) {
    drafts_.push_back({{OperationKind::norm, in, in, out}, weight, {}});
  }
  void linear(Value in, Role weight, std::optional<Role> bias, Value out) {
    drafts_.push_back({{OperationKind::linear, in, in, out}, weight, bias});
  }
  void gate(Value in, Value other, Value out) {
    drafts_.push_back({{OperationKind::gate, in, other, out}, {}, {}});
  }
  void attend(Value out) {
    drafts_.push_back({{OperationKind::attend, Value::q, Value::k, out}, {}, {}});
  }
  void add(Value into, Value what) {
    drafts_.push_back({{OperationKind::add, into, what, into}, {}, {}});
  }
  void add_bias(Value into, Role weight) {
    drafts_.push_back({{OperationKind::add_bias, into, into, into}, weight, {}});
  }
  // Those that change a value where it is.
  void rotate(Value value) {
    drafts_.push_back({{OperationKind::rotate, value, value, value}, {}, {}});
  }
  void spread(Value value) {
    drafts_.push_back({{OperationKind::spread, value, value, value}, {}, {}});
  }
  void reduce(Value value) {
    drafts_.push_back({{OperationKind::reduce, value, value, value}, {}, {}});
  }

  std::vector<Role> roles() const {
    std::vector<Role> out;
    for (const auto& kind : kinds) {
      const auto uses = [&](const Draft& draft) {
        return draft.weight == kind.role || draft.bias == kind.role;
      };
      if (std::any_of(drafts_.begin(), drafts_.end(), uses)) out.push_back(kind.role);
    }
    return out;
  }

  std::vector<Operation> operations() const {
    const auto used = roles();
    const auto position = [&](const std::optional<Role>& role) {
      return role ? static_cast<int>(std::find(used.begin(), used.end(), *role) - used.begin())
                  : -1;
    };
    std::vector<Operation> out;
    for (Draft draft : drafts_) {
      draft.operation.weight = position(draft.weight);
      draft.operation.bias = position(draft.bias);
      out.push_back(draft.operation);
    }
    return out;
  }

 private:
  std::vector<Draft> drafts_;
};

StageBuilder embedding_stage() {
  StageBuilder s;
  s.look_up(Role::embedding, Value::stream);
  s.reduce(Value::stream);
  return s;
}

StageBuilder block_stage(const config::ModelShape& shape) {
  const auto bias = [&](Role role) { return shape.qkv_bias ? std::optional(role) : std::nullopt; };
  StageBuilder s;
  s.norm(Value::stream, Role::input_norm, Value::normed);
  s.spread(Value::normed);
  // Backward, the gradients of `normed` add up in reverse: this order is part of the numerics.
  s.linear(Value::normed, Role::v, bias(Role::v_bias), Value::v);
  s.linear(Value::normed, Role::k, bias(Role::k_bias), Value::k);
  s.linear(Value::normed, Role::q, bias(Role::q_bias), Value::q);
  if (config::traits(shape.architecture).head_norms) {
    s.norm(Value::q, Role::q_norm, Value::q);
    s.norm(Value::k, Role::k_norm, Value::k);
  }
  s.rotate(Value::q);
  s.rotate(Value::k);
  s.attend(Value::attended);
  s.linear(Value::attended, Role::o, std::nullopt, Value::projected);
  s.reduce(Value::projected);
  if (shape.o_bias)
    s.add_bias(Value::projected, Role::o_bias);  // after the sum: every rank has the whole bias
  s.add(Value::stream, Value::projected);

  s.norm(Value::stream, Role::post_norm, Value::normed);
  s.spread(Value::normed);
  s.linear(Value::normed, Role::gate, std::nullopt, Value::gate);
  s.linear(Value::normed, Role::up, std::nullopt, Value::up);
  s.gate(Value::gate, Value::up, Value::gate);
  s.linear(Value::gate, Role::down, std::nullopt, Value::projected);
  s.reduce(Value::projected);
  s.add(Value::stream, Value::projected);
  return s;
}

StageBuilder head_stage() {
  StageBuilder s;
  s.norm(Value::stream, Role::final_norm, Value::normed);
  return s;
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
  spec.parameters.push_back({std::move(tensor), role});
}

void append(ModelSpec& spec, StageKind kind, int layer, const StageBuilder& builder) {
  spec.stages.push_back({kind, layer, {}, builder.operations()});
  for (const Role role : builder.roles()) append_parameter(spec, role);
}

// The head's weight comes last.
void append_head(ModelSpec& spec) {
  append(spec, StageKind::head, -1, head_stage());
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

ModelSpec describe(const config::ModelShape& shape, HeadKind head) {
  VALIDATE(!shape.mlp_bias, ExitCode::bad_data,
           "mlp_bias = true is not supported (no published Llama, Mistral or Qwen2 model has it): ",
           "use a model whose MLP has no biases");
  ModelSpec spec{.shape = shape, .head = head, .parameters = {}, .stages = {}};
  append(spec, StageKind::embedding, -1, embedding_stage());
  for (int layer = 0; layer < shape.layers; ++layer)
    append(spec, StageKind::block, layer, block_stage(shape));
  append_head(spec);
  return spec;
}

size_t joint_linears(const Stage& stage, size_t first) {
  const std::vector<Operation>& operations = stage.operations;
  size_t end = first;
  while (end < operations.size() && operations[end].kind == OperationKind::linear &&
         operations[end].in == operations[first].in)
    ++end;
  return end - first;
}

std::vector<bool> joins_the_one_before(const ModelSpec& spec) {
  std::vector<bool> out(spec.parameters.size(), false);
  for (const Stage& stage : spec.stages) {
    for (size_t i = 0, count = 0; i < stage.operations.size(); i += std::max<size_t>(count, 1)) {
      count = joint_linears(stage, i);
      for (const auto member : {&Operation::weight, &Operation::bias}) {
        std::vector<size_t> group;
        for (size_t j = i; j < i + count; ++j) {
          if (stage.operations[j].*member >= 0)
            group.push_back(stage.parameters[static_cast<size_t>(stage.operations[j].*member)]);
        }
        std::sort(group.begin(), group.end());
        for (size_t j = 1; j < group.size(); ++j) out[group[j]] = group[j] == group[j - 1] + 1;
      }
    }
  }
  return out;
}

}  // namespace trireme::model
