// Norm, rotary embedding, SwiGLU and embedding look-up as differentiable operations: one fused
// kernel each on CPUs in fp32 and bf16 (row_kernels.hpp), and the same mathematics composed of
// LibTorch operations for everything else. The composed forms are public for the tests. Legend as
// in forward.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/model/forward.hpp"

namespace trireme::model {

// silu(gate) * up, fp32 inside, rounded once. [T, F]
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// x [T, heads, hd] rotated by its positions; fp32 inside, rounded once.
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& positions, const Rope& rope);

// Rows `ids` [T] of weight [V, D]. The gradient of a row is summed in fp32 in token order and
// rounded once.
at::Tensor embedding_rows(const at::Tensor& weight, const at::Tensor& ids);

at::Tensor rms_norm_composed(const at::Tensor& x, const at::Tensor& weight, double epsilon);
at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up);
at::Tensor apply_rope_composed(const at::Tensor& x, const at::Tensor& positions, const Rope& rope);

}  // namespace trireme::model
