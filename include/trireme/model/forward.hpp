// The forward pass of each stage, on packed tokens. This file fixes the numerics: where bf16 rounds (in bf16 the logits too); norm,
// RoPE, softmax and all sums in fp32. Every fast kernel follows it and is tested against it.
// Legend: T packed tokens, D hidden, H heads, K KV heads, hd head size, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/model/spec.hpp"

namespace trireme::model {

// Sequences one after another, never padded. Owns its tensors; on the model's device.
struct PackedBatch {
  at::Tensor ids;                      // i64 [T]
  at::Tensor positions;                // i64 [T], from 0 in each sequence
  std::vector<int64_t> cu_seqlens{0};  // [B + 1], host
  at::Tensor cu_seqlens_device;        // i32 [B + 1] on CUDA, undefined on CPU
  int64_t max_length = 0;

  int64_t tokens() const { return cu_seqlens.back(); }
  int64_t sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
};
PackedBatch pack(std::span<const std::span<const int32_t>> sequences, at::Device device);

// How a block computes: training, generation, tensor parallelism, paged attention and LoRA differ only in these.
class Policy {
 public:
  virtual ~Policy() = default;
  // x [T, in] times weight [out, in] transposed, plus bias [out].
  virtual at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, Role role);
  // Causal attention within each sequence: q [T, H, hd], k and v [T, K, hd] (after RoPE) -> [T, H, hd].
  virtual at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int layer) = 0;
  // Sum of the tensor-parallel ranks' partial results; identity by default.
  virtual at::Tensor reduce(const at::Tensor& partial) { return partial; }
  // Rows [first, first + rows) of the vocabulary that this rank has; {0, V} by default. Used by embed().
  virtual std::pair<int64_t, int64_t> vocabulary_rows(int64_t vocabulary) { return {0, vocabulary}; }
};

// Packed attention over cu_seqlens: varlen flash on CUDA, per-sequence SDPA on the CPU. Differentiable.
class PackedPolicy : public Policy {
 public:
  explicit PackedPolicy(const PackedBatch& batch) : batch_(batch) {}  // the batch must outlive the policy
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int layer) override;

 private:
  const PackedBatch& batch_;
};

// cos and sin [max_positions, hd / 2] in fp32, with the shape's rope scaling; rows are gathered by position.
struct Rope {
  at::Tensor cos;
  at::Tensor sin;
};
Rope make_rope(const config::ModelShape& shape, int64_t max_positions, at::Device device);

// Stage functions; `parameters` in the order of Stage::parameters. All are differentiable in x and the parameters.
at::Tensor embed(const ModelSpec& spec, std::span<const at::Tensor> parameters, const at::Tensor& ids, Policy& policy);  // [T, D]
at::Tensor block(const ModelSpec& spec, std::span<const at::Tensor> parameters, const at::Tensor& x, const at::Tensor& positions,
                 const Rope& rope, int layer, Policy& policy);                                              // [T, D] -> [T, D]
at::Tensor final_norm(const ModelSpec& spec, std::span<const at::Tensor> parameters, const at::Tensor& x);  // [T, D]

// RMS norm: x in fp32, times rsqrt(mean(x^2) + eps), rounded to x's type, times the weight. [.., D]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

}  // namespace trireme::model
