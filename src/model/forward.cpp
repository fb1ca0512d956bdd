// Legend: T packed tokens, D hidden, H heads, K KV heads, hd head size, F ffn, V vocabulary.
//
// Where bf16 rounds, with weights and activations in bf16: after every linear, after the normalised value and again after
// its product with the norm's weight (as Hugging Face does), once after the rotary embedding (Hugging Face rounds cos, sin
// and both products too), once after SwiGLU (Hugging Face rounds silu too), once after attention, and after each residual
// sum; the head rounds each logit once (kernels/token_log_probs.hpp). Norm, rotary embedding, SwiGLU, softmax and everything behind
// the logits are fp32 inside, and all products add in fp32.
#include "torch/torch.hpp"

#include "trireme/model/forward.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "elementwise.hpp"
#include "packed_attention.hpp"
#include "torch_compat.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/row_invariant.hpp"

namespace trireme::model {
namespace {

// The tensors of a block by name; `parameters` is in the order of Stage::parameters.
struct BlockWeights {
  at::Tensor input_norm, q, k, v, o, post_norm, gate, up, down;
  std::optional<at::Tensor> q_bias, k_bias, v_bias, o_bias;

  BlockWeights(const config::ModelShape& shape, std::span<const at::Tensor> parameters) {
    size_t next = 0;
    const auto take = [&] { return parameters[next++]; };
    EXPECT(parameters.size() == size_t{9} + (shape.qkv_bias ? 3 : 0) + (shape.o_bias ? 1 : 0));
    input_norm = take();
    q = take();
    k = take();
    v = take();
    if (shape.qkv_bias) {
      q_bias = take();
      k_bias = take();
      v_bias = take();
    }
    o = take();
    if (shape.o_bias) o_bias = take();
    post_norm = take();
    gate = take();
    up = take();
    down = take();
  }
};

// transformers, _compute_llama3_parameters: low frequencies are divided by the factor, high ones kept, between them a ramp.
float llama3_frequency(float frequency, const config::RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_positions);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return static_cast<float>(frequency / scaling.factor);
  const double smooth = (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
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
    std::transform(values, values + frequencies.numel(), values, [&](float value) { return llama3_frequency(value, scaling); });
  }
  return frequencies;
}

}  // namespace

PackedBatch pack(std::span<const std::span<const int32_t>> sequences, at::Device device) {
  PackedBatch batch;
  for (const auto& sequence : sequences) {
    const auto length = static_cast<int64_t>(sequence.size());
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.max_length = std::max(batch.max_length, length);
  }
  at::Tensor ids = at::empty({batch.tokens()}, at::TensorOptions().dtype(at::kLong));
  at::Tensor positions = at::empty_like(ids);
  int64_t* id = ids.mutable_data_ptr<int64_t>();
  int64_t* position = positions.mutable_data_ptr<int64_t>();
  for (const auto& sequence : sequences) {
    for (size_t i = 0; i < sequence.size(); ++i) {
      *id++ = sequence[i];
      *position++ = static_cast<int64_t>(i);
    }
  }
  batch.ids = ids.to(device);
  batch.positions = positions.to(device);
  if (!device.is_cpu()) {
    batch.cu_seqlens_device = at::tensor(batch.cu_seqlens, at::TensorOptions().dtype(at::kLong)).to(device, at::kInt);
  }
  return batch;
}

at::Tensor Policy::linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, Role) {
  return kernels::linear(x, weight, bias);
}

at::Tensor PackedPolicy::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int) {
  const bool flash = q.is_cuda() && (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf);
  if (flash && batch_.tokens() > 0) return compat::varlen_attention(q, k, v, batch_.cu_seqlens_device, batch_.max_length);
  return attend_packed(q, k, v, batch_.cu_seqlens);
}

Rope make_rope(const config::ModelShape& shape, int64_t max_positions, at::Device device) {
  const at::Tensor positions = at::arange(max_positions, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles = at::outer(positions, inverse_frequencies(shape));
  return {angles.cos().to(device), angles.sin().to(device)};
}

at::Tensor embed(const ModelSpec& spec, std::span<const at::Tensor> parameters, const at::Tensor& ids, Policy& policy) {
  const at::Tensor& weight = parameters[0];
  const auto [first, rows] = policy.vocabulary_rows(spec.shape.vocab);
  EXPECT(weight.size(0) == rows);
  if (rows == spec.shape.vocab) return embedding_rows(weight, ids);
  // Another rank has the other rows: zeros here, so that the sum over the ranks is the whole look-up.
  const at::Tensor outside = at::logical_not(at::logical_and(ids.ge(first), ids.lt(first + rows)));
  const at::Tensor local = at::masked_fill(ids.sub(first), outside, 0);
  return policy.reduce(at::masked_fill(embedding_rows(weight, local), outside.unsqueeze(1), 0));
}

at::Tensor block(const ModelSpec& spec, std::span<const at::Tensor> parameters, const at::Tensor& x, const at::Tensor& positions,
                 const Rope& rope, int layer, Policy& policy) {
  const BlockWeights w(spec.shape, parameters);
  const int64_t head_dim = spec.shape.head_dim;
  const auto heads = [head_dim](const at::Tensor& y) { return y.view({y.size(0), y.size(1) / head_dim, head_dim}); };

  const at::Tensor normed = rms_norm(x, w.input_norm, spec.shape.norm_eps);
  const at::Tensor v = heads(policy.linear(normed, w.v, w.v_bias, Role::v));
  const auto [q, k] = apply_rope(heads(policy.linear(normed, w.q, w.q_bias, Role::q)),
                                 heads(policy.linear(normed, w.k, w.k_bias, Role::k)), positions, rope);
  const at::Tensor attended = policy.attend(q, k, v, layer).reshape({x.size(0), q.size(1) * head_dim});
  at::Tensor projected = policy.reduce(policy.linear(attended, w.o, std::nullopt, Role::o));
  if (w.o_bias) projected = projected.add(*w.o_bias);  // after the reduction: every rank has the whole bias
  const at::Tensor middle = x.add(projected);

  const at::Tensor fed = rms_norm(middle, w.post_norm, spec.shape.norm_eps);
  const at::Tensor activated =
      swiglu(policy.linear(fed, w.gate, std::nullopt, Role::gate), policy.linear(fed, w.up, std::nullopt, Role::up));
  return middle.add(policy.reduce(policy.linear(activated, w.down, std::nullopt, Role::down)));
}

at::Tensor final_norm(const ModelSpec& spec, std::span<const at::Tensor> parameters, const at::Tensor& x) {
  return rms_norm(x, parameters[0], spec.shape.norm_eps);
}

}  // namespace trireme::model
