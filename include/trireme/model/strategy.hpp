// How the operations of a stage are executed. LoRA, a sequence that is cut over ranks, tensor
// parallelism, a paged cache differ in this and in nothing else: a class of its own overrides what
// it does differently, and is an argument of the model (zero) or of a pass. Legend: T packed
// tokens, H heads, K KV heads, hd head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "trireme/model/packed_batch.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::model {

// The base class is the plain execution: whole weights, whole sequences, one rank. Overrides must
// be differentiable where the model is trained; `spread` and `reduce` name the derivative that
// theirs must have. All of a group's ranks make the same calls in one order.
class Strategy {
 public:
  virtual ~Strategy() = default;
  // This rank's share of a batch: a range of positions of each sequence, with its own ids,
  // positions and cu_seqlens. Losses and heads get the hidden states of these tokens. Where the
  // batch has tokens, the part must have some on every rank.
  virtual PackedBatch part(const PackedBatch& batch) { return batch; }
  // x [T, in] times weight [out, in] transposed, plus bias [out]. `parameter` says which weight it
  // is.
  virtual at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Parameter& parameter);
  // Causal attention within each sequence of the part, softmax(scale q k^T) v: q [T, H, hd], k and
  // v [T, K, hd] (rotated) -> [T, H, hd]. Here packed attention over cu_seqlens: varlen flash on
  // CUDA (composed of LibTorch's operators where scores are capped), our own kernels on CPUs.
  virtual at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Scores& scores, const PackedBatch& part, int layer);
  // Before linears whose outputs are cut over tensor-parallel ranks: the identity; backward the sum
  // of the ranks' gradients.
  virtual at::Tensor spread(const at::Tensor& whole) { return whole; }
  // After linears whose inputs are: the sum of the ranks' partial results; backward the identity.
  virtual at::Tensor reduce(const at::Tensor& partial) { return partial; }
  // Rows [first, first + rows) of the vocabulary that this rank's embedding has; {0, V} by default.
  virtual std::pair<int64_t, int64_t> vocabulary_rows(int64_t vocabulary) {
    return {0, vocabulary};
  }
};

}  // namespace trireme::model
