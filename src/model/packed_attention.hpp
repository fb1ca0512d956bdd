// Causal attention within the sequences of a packed batch. Legend as in forward.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/model/operations.hpp"

namespace trireme::model {

// softmax(scale q k^T) v: q [T, H, hd], k and v [T, K, hd] -> [T, H, hd]; differentiable. On CPUs
// in fp32 and bf16 by our own kernels (kernels/training_attention.hpp), whose order of additions is
// that of kernels::attend: training gives the bits of generation. Elsewhere attend_by_sequence.
at::Tensor attend_packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const Scores& scores, const std::vector<int64_t>& cu_seqlens);

// The same by LibTorch's scaled_dot_product_attention, one sequence after another; any device and
// type.
at::Tensor attend_by_sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const Scores& scores, const std::vector<int64_t>& cu_seqlens);

// One sequence, whose last positions are the queries: q [M, H, hd], k and v [S, K, hd] -> [M, H,
// hd]. By scaled_dot_product_attention; products, tanh and softmax one by one where scores are
// capped.
at::Tensor attend_one(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const Scores& scores);

// Whether `threads` are busy to the end where each takes a sequence (and KV group) of these
// lengths, longest first, whose work grows as the square.
bool tasks_fill(std::span<const int64_t> lengths, int threads);

}  // namespace trireme::model
