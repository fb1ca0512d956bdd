#include "trireme/model/spec.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::model {
namespace {

using base::SliceAxis;
using base::Slicing;

class SpecBuilder {
 public:
  SpecBuilder(const config::ModelShape& shape, HeadKind head) {
    spec_.shape = shape;
    spec_.head = head;
  }

  ModelSpec build() {
    begin_stage(StageKind::embedding);
    add("model.embed_tokens.weight", {spec_.shape.vocab, spec_.shape.hidden}, Role::embedding);
    for (int layer = 0; layer < spec_.shape.layers; ++layer) add_block(layer);
    add_head();
    return std::move(spec_);
  }

 private:
  void begin_stage(StageKind kind, int layer = -1) { spec_.stages.push_back({kind, layer, {}}); }

  void add(std::string name, std::vector<int64_t> shape, Role role) {
    spec_.stages.back().parameters.push_back(spec_.parameters.size());
    spec_.parameters.push_back({{std::move(name), std::move(shape)}, role});
  }

  void add_block(int layer) {
    const auto& s = spec_.shape;
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    begin_stage(StageKind::block, layer);
    add(prefix + "input_layernorm.weight", {s.hidden}, Role::input_norm);
    add(prefix + "self_attn.q_proj.weight", {s.q_dim(), s.hidden}, Role::q);
    add(prefix + "self_attn.k_proj.weight", {s.kv_dim(), s.hidden}, Role::k);
    add(prefix + "self_attn.v_proj.weight", {s.kv_dim(), s.hidden}, Role::v);
    if (s.qkv_bias) {
      add(prefix + "self_attn.q_proj.bias", {s.q_dim()}, Role::q_bias);
      add(prefix + "self_attn.k_proj.bias", {s.kv_dim()}, Role::k_bias);
      add(prefix + "self_attn.v_proj.bias", {s.kv_dim()}, Role::v_bias);
    }
    add(prefix + "self_attn.o_proj.weight", {s.hidden, s.q_dim()}, Role::o);
    if (s.o_bias) add(prefix + "self_attn.o_proj.bias", {s.hidden}, Role::o_bias);
    add(prefix + "post_attention_layernorm.weight", {s.hidden}, Role::post_norm);
    add(prefix + "mlp.gate_proj.weight", {s.ffn, s.hidden}, Role::gate);
    add(prefix + "mlp.up_proj.weight", {s.ffn, s.hidden}, Role::up);
    add(prefix + "mlp.down_proj.weight", {s.hidden, s.ffn}, Role::down);
  }

  void add_head() {
    const auto& s = spec_.shape;
    begin_stage(StageKind::head);
    add("model.norm.weight", {s.hidden}, Role::final_norm);
    if (spec_.head == HeadKind::score) {
      add(s.value_head_prefix + ".weight", {1, s.hidden}, Role::score);
    } else if (s.tied) {
      spec_.stages.back().parameters.push_back(0);
    } else {
      add("lm_head.weight", {s.vocab, s.hidden}, Role::lm_head);
    }
  }

  ModelSpec spec_;
};

// Bounds of `degree` parts of `extent`, as equal as multiples of 64 (or of a smaller power of two where 64 does not
// divide the extent or leaves a rank without any) allow: aligned slices keep vector kernels on whole vectors.
std::vector<int64_t> even_bounds(int64_t extent, int degree) {
  int64_t unit = std::gcd(extent, int64_t{64});
  while (unit > 1 && extent / unit < degree) unit /= 2;
  std::vector<int64_t> bounds;
  for (int rank = 0; rank <= degree; ++rank) bounds.push_back(extent / unit * rank / degree * unit);
  return bounds;
}

// The first ranks have one KV group more when the groups do not divide evenly; `width` is a group's extent.
std::vector<int64_t> group_bounds(int64_t groups, int degree, int64_t width) {
  std::vector<int64_t> bounds{0};
  for (int rank = 0; rank < degree; ++rank) {
    bounds.push_back(bounds.back() + width * (groups / degree + (rank < groups % degree ? 1 : 0)));
  }
  return bounds;
}

Slicing slicing_of(Role role, const config::ModelShape& shape, int degree) {
  const int64_t kv_width = shape.head_dim;
  const int64_t q_width = shape.heads / shape.kv_heads * shape.head_dim;
  switch (role) {
    case Role::embedding:
    case Role::lm_head: return {SliceAxis::rows, even_bounds(shape.vocab, degree)};
    case Role::q:
    case Role::q_bias: return {SliceAxis::rows, group_bounds(shape.kv_heads, degree, q_width)};
    case Role::k:
    case Role::v:
    case Role::k_bias:
    case Role::v_bias: return {SliceAxis::rows, group_bounds(shape.kv_heads, degree, kv_width)};
    case Role::o: return {SliceAxis::columns, group_bounds(shape.kv_heads, degree, q_width)};
    case Role::gate:
    case Role::up: return {SliceAxis::rows, even_bounds(shape.ffn, degree)};
    case Role::down: return {SliceAxis::columns, even_bounds(shape.ffn, degree)};
    case Role::input_norm:
    case Role::post_norm:
    case Role::final_norm:
    case Role::o_bias:  // added once, after the reduction
    case Role::score: return {};
  }
  throw InternalError("a role without slicing");
}

// The stream of a parameter's initial values: a hash of its name (FNV-1a), so that an actor and a critic of one shape, or
// a tied and an untied model, share what they have in common.
uint64_t stream_of(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

bool is_norm(Role role) { return role == Role::input_norm || role == Role::post_norm || role == Role::final_norm; }
bool is_bias(Role role) { return role == Role::q_bias || role == Role::k_bias || role == Role::v_bias || role == Role::o_bias; }

}  // namespace

std::vector<base::TensorSpec> ModelSpec::tensors() const {
  std::vector<base::TensorSpec> out;
  out.reserve(parameters.size());
  for (const auto& parameter : parameters) out.push_back(parameter.spec);
  return out;
}

size_t ModelSpec::index_of(Role role, int layer) const {
  for (const auto& stage : stages) {
    if (stage.layer != layer) continue;
    for (const size_t index : stage.parameters) {
      if (parameters[index].role == role) return index;
    }
  }
  throw InternalError(base::text("the model has no parameter of role ", static_cast<int>(role), " in layer ", layer));
}

ModelSpec describe(const config::ModelShape& shape, HeadKind head) {
  VALIDATE(!shape.mlp_bias, ExitCode::bad_data,
           "mlp_bias = true is not supported (no published Llama, Mistral or Qwen2 model has it): ",
           "use a model whose MLP has no biases");
  return SpecBuilder(shape, head).build();
}

base::ShardLayout tensor_parallel_layout(const ModelSpec& spec, int degree) {
  VALIDATE(degree >= 1 && degree <= spec.shape.kv_heads, ExitCode::configuration, "tensor parallelism of ", degree,
           " ranks is not possible for a model with ", spec.shape.kv_heads, " KV heads (a KV group is never split): choose 1 to ",
           spec.shape.kv_heads);
  std::vector<Slicing> slicing;
  for (const auto& parameter : spec.parameters) slicing.push_back(slicing_of(parameter.role, spec.shape, degree));
  return base::ShardLayout::sliced(spec.tensors(), degree, std::move(slicing));
}

void initial_values(const ModelSpec& spec, size_t parameter, const base::Block& block, uint64_t seed, float* out) {
  const auto& [tensor, role] = spec.parameters.at(parameter);
  const std::span<float> values(out, static_cast<size_t>(block.elements()));
  if (is_norm(role) || is_bias(role)) {
    std::fill(values.begin(), values.end(), is_norm(role) ? 1.0f : 0.0f);
    return;
  }
  const uint64_t stream = stream_of(tensor.name);
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t first = (block.row + row) * tensor.columns() + block.column;
    base::normals(seed, stream, static_cast<uint64_t>(first),
                  values.subspan(static_cast<size_t>(row * block.columns), static_cast<size_t>(block.columns)));
  }
  const double deviation = role == Role::score ? 1.0 / static_cast<double>(spec.shape.hidden + 1) : spec.shape.initializer_range;
  for (float& value : values) value *= static_cast<float>(deviation);
}

}  // namespace trireme::model
