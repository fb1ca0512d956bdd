// The forward pass of each stage, on packed tokens. This file fixes the numerics: where bf16 rounds
// (in bf16 the logits too); norm, RoPE, softmax and all sums in fp32. Every fast kernel follows it
// and is tested against it. Legend: T packed tokens, D hidden, hd head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "trireme/model/packed_batch.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/strategy.hpp"

namespace trireme::model {

// cos and sin [max_positions, hd / 2] in fp32, with the shape's rope scaling; rows are gathered by
// position.
struct Rope {
  at::Tensor cos;
  at::Tensor sin;
};
Rope make_rope(const config::ModelShape& shape, int64_t max_positions, at::Device device);

// Runs a stage's operations; `parameters` in the order of Stage::parameters, x [T, D] what the
// stage before gave (undefined for the embedding): [T, D]. `rope` reaches all positions.
// Differentiable in x and the parameters.
at::Tensor run_stage(const ModelSpec& spec, const Stage& stage,
                     std::span<const at::Tensor> parameters, const at::Tensor& x,
                     const PackedBatch& part, const Rope& rope, Strategy& strategy);

// RMS norm: x in fp32, times rsqrt(mean(x^2) + eps), rounded to x's type, times the weight. [.., D]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

}  // namespace trireme::model
