// Norm, rotary embedding, SwiGLU and embedding look-up as differentiable operations: one fused
// kernel each on CPUs in fp32 and bf16 (row_kernels.hpp), and the same mathematics composed of
// LibTorch operations for everything else. The composed forms are public for the tests. Legend as
// in forward.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/model/forward.hpp"

namespace trireme::model {

// activation(gate) * up, fp32 inside, rounded once. [T, F]
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, GateKind kind = GateKind::silu);

// xIELU of x [T, F], by kernels of our own on CPUs in fp32 and bf16. The numbers [1] or [].
at::Tensor xielu(const at::Tensor& x, const at::Tensor& alpha_p, const at::Tensor& alpha_n,
                 const at::Tensor& beta, const at::Tensor& eps);
// The numbers as the kernels take them, from trained values.
Xielu xielu_numbers(float alpha_p, float alpha_n, float beta, float eps);

// x [T, heads, hd] rotated by its positions; fp32 inside, rounded once.
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& positions, const Rope& rope,
                      bool interleaved = false);

// Rows `ids` [T] of weight [V, D]. The gradient of a row is summed in fp32 in token order and
// rounded once.
at::Tensor embedding_rows(const at::Tensor& weight, const at::Tensor& ids);

at::Tensor rms_norm_composed(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                             NormKind kind = NormKind::rms);
at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up,
                           GateKind kind = GateKind::silu);
at::Tensor apply_rope_composed(const at::Tensor& x, const at::Tensor& positions, const Rope& rope,
                               bool interleaved = false);
at::Tensor xielu_composed(const at::Tensor& x, const at::Tensor& alpha_p, const at::Tensor& alpha_n,
                          const at::Tensor& beta, const at::Tensor& eps);

}  // namespace trireme::model
