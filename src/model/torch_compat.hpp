// LibTorch calls whose signature differs between versions: all of this module's are here.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::model::compat {

// Causal attention within packed sequences by LibTorch's flash kernel (CUDA, bf16 or fp16; differentiable).
// q [T, H, hd], k and v [T, K, hd]; cu_seqlens i32 [B + 1] on the device. Causal is bottom-right, which equals top-left here
// because queries and keys have the same lengths.
at::Tensor varlen_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens,
                            int64_t max_length);

}  // namespace trireme::model::compat
