// Legend: T packed tokens, D hidden, H heads, K KV heads, hd head size, F ffn, V vocabulary.
//
// Where bf16 rounds, with weights and activations in bf16: after every linear, after the normalised
// value and again after its product with the norm's weight (as Hugging Face does), once after the
// rotary embedding (Hugging Face rounds cos, sin and both products too), once after SwiGLU (Hugging
// Face rounds silu too), once after attention, and after each residual sum; the head rounds each
// logit once (kernels/token_log_probs.hpp). Norm, rotary embedding, SwiGLU, softmax and everything
// behind the logits are fp32 inside, and all products add in fp32.
#include "torch/torch.hpp"

#include "trireme/model/forward.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "elementwise.hpp"
#include "trireme/base/error.hpp"

namespace trireme::model {
namespace {

// transformers, _compute_llama3_parameters: low frequencies are divided by the factor, high ones
// kept, between them a ramp.
float llama3_frequency(float frequency, const config::RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_positions);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor)
    return static_cast<float>(frequency / scaling.factor);
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / scaling.factor + smooth * frequency);
}

// 1 / theta^(2 i / hd), scaled. [hd / 2] fp32 on the CPU, by the same operations as transformers.
at::Tensor inverse_frequencies(const config::ModelShape& shape) {
  const at::Tensor even = at::arange(0, shape.head_dim, 2, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor exponents = even.div(static_cast<double>(shape.head_dim));
  at::Tensor frequencies = at::reciprocal(at::pow(shape.rope_theta, exponents));
  const auto& scaling = shape.rope_scaling;
  if (scaling.kind == config::RopeKind::linear) frequencies = frequencies.div(scaling.factor);
  if (scaling.kind == config::RopeKind::llama3) {
    float* values = frequencies.mutable_data_ptr<float>();
    std::transform(values, values + frequencies.numel(), values,
                   [&](float value) { return llama3_frequency(value, scaling); });
  }
  return frequencies;
}

using Values = std::array<at::Tensor, value_count>;  // each [T, width]

// One pass of a stage: what its operations read besides the values.
struct StageRun {
  const ModelSpec& spec;
  const Stage& stage;
  std::span<const at::Tensor> parameters;
  const PackedBatch& part;
  const Rope& rope;
  Strategy& strategy;

  const at::Tensor& parameter(int position) const {
    return parameters[static_cast<size_t>(position)];
  }
  at::Tensor heads(const at::Tensor& y) const {
    return y.view({y.size(0), y.size(1) / spec.shape.head_dim, spec.shape.head_dim});
  }

  at::Tensor look_up(const at::Tensor& weight) const {
    const auto [first, rows] = strategy.vocabulary_rows(spec.shape.vocab);
    EXPECT(weight.size(0) == rows);
    if (rows == spec.shape.vocab) return embedding_rows(weight, part.ids);
    // Another rank has the other rows: zeros here, so that the sum over the ranks is the whole
    // look-up.
    const at::Tensor outside =
        at::logical_not(at::logical_and(part.ids.ge(first), part.ids.lt(first + rows)));
    const at::Tensor local = at::masked_fill(part.ids.sub(first), outside, 0);
    return at::masked_fill(embedding_rows(weight, local), outside.unsqueeze(1), 0);
  }

  at::Tensor norm(const Operation& operation, const at::Tensor& x) const {
    const at::Tensor& weight = parameter(operation.weight);
    if (operation.in != Value::q && operation.in != Value::k)
      return rms_norm(x, weight, spec.shape.norm_eps);
    // Of heads, which tensor-parallel ranks share: each has the whole weight and a part of its
    // gradient.
    return rms_norm(heads(x), strategy.spread(weight), spec.shape.norm_eps).view(x.sizes());
  }

  at::Tensor linear(const Operation& operation, const at::Tensor& x) const {
    const std::optional<at::Tensor> bias =
        operation.bias < 0 ? std::nullopt : std::optional(parameter(operation.bias));
    const size_t which = stage.parameters[static_cast<size_t>(operation.weight)];
    return strategy.linear(x, parameter(operation.weight), bias, spec.parameters[which]);
  }

  at::Tensor attend(const Values& values) const {
    const auto of = [&](Value value) { return heads(values[static_cast<size_t>(value)]); };
    const at::Tensor out =
        strategy.attend(of(Value::q), of(Value::k), of(Value::v), part, stage.layer);
    return out.reshape({out.size(0), out.size(1) * out.size(2)});
  }

  at::Tensor execute(const Operation& operation, const Values& values) const {
    const at::Tensor& x = values[static_cast<size_t>(operation.in)];
    const at::Tensor& other = values[static_cast<size_t>(operation.other)];
    switch (operation.kind) {
      case OperationKind::look_up: return look_up(parameter(operation.weight));
      case OperationKind::norm: return norm(operation, x);
      case OperationKind::spread: return strategy.spread(x);
      case OperationKind::linear: return linear(operation, x);
      case OperationKind::rotate: return apply_rope(heads(x), part.positions, rope).view(x.sizes());
      case OperationKind::attend: return attend(values);
      case OperationKind::gate: return swiglu(x, other);
      case OperationKind::reduce: return strategy.reduce(x);
      case OperationKind::add: return x.add(other);
      case OperationKind::add_bias: return x.add(parameter(operation.weight));
    }
    throw InternalError("an unknown operation");
  }
};

}  // namespace

Rope make_rope(const config::ModelShape& shape, int64_t max_positions, at::Device device) {
  const at::Tensor positions = at::arange(max_positions, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles = at::outer(positions, inverse_frequencies(shape));
  return {angles.cos().to(device), angles.sin().to(device)};
}

at::Tensor run_stage(const ModelSpec& spec, const Stage& stage,
                     std::span<const at::Tensor> parameters, const at::Tensor& x,
                     const PackedBatch& part, const Rope& rope, Strategy& strategy) {
  EXPECT(parameters.size() == stage.parameters.size() && !stage.operations.empty());
  const StageRun run{spec, stage, parameters, part, rope, strategy};
  Values values;
  values[static_cast<size_t>(Value::stream)] = x;
  for (const Operation& operation : stage.operations)
    values[static_cast<size_t>(operation.out)] = run.execute(operation, values);
  const at::Tensor& out = values[static_cast<size_t>(stage.operations.back().out)];
  return stage.kind == StageKind::head && spec.wide_head() ? out.to(at::kFloat) : out;
}

}  // namespace trireme::model
