// The head for losses that look at whole distributions: a loss for each row, of all its logits.
// Never holds [N, V]. Legend: N rows (positions whose next token is asked for), D hidden, V
// vocabulary, R rows at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::kernels {

// Rows whose logits in fp32 are about this many bytes: those of a chunk.
int64_t rows_of_chunk(int64_t vocabulary, at::Device device);

// logits = hidden [R, D] x weight [V, D]^T, summed in fp32, kept in the type of hidden, as fp32:
// [R, V]. A weight of another type is widened. Not differentiable. With an adapter as HeadWeight
// says.
at::Tensor row_logits(const at::Tensor& hidden, const HeadWeight& head);

// f32 [R] of the logits f32 [R, V] of the rows from `first` on, by differentiable operations. It is
// called twice for each chunk, with and without gradients.
using RowLoss = std::function<at::Tensor(const at::Tensor& logits, int64_t first)>;

// f32 [N], differentiable in hidden [N, D] and weight [V, D] (f32 or bf16). Forward and backward
// multiply chunk by chunk; the gradient of the logits is rounded to the type of hidden, that of the
// weight is added in fp32, to the weight's own gradient where it is a leaf with one
// (token_log_probs.hpp).
at::Tensor row_losses(const at::Tensor& hidden, const HeadWeight& head, RowLoss loss);

}  // namespace trireme::kernels
