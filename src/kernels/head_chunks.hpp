// The parts of the log-prob head that its CPU and device paths share.
// Legend: N rows, D hidden, V vocabulary, C rows of one vocabulary chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::kernels {

// Row statistics that the backward pass needs, f32 [N] each.
struct RowStatistics {
  at::Tensor log_probs;
  at::Tensor log_sum_exp;
  at::Tensor entropy;  // undefined when it was not asked for
};

// What flows back into the rows; entropy gradients may be absent.
struct RowGradients {
  at::Tensor log_probs;  // f32 [N]
  at::Tensor entropy;    // f32 [N] or undefined
};

// Rows whose tokens are asked for, and how the head is read for them.
struct HeadRows {
  at::Tensor hidden;  // [N, D], or [N, D + r] with an adapter, N > 0
  HeadWeight head;
  at::Tensor targets;  // i64 [N]
  double scale;        // 1 / temperature
  HeadChunks chunks;
};

// Rows [first, first + count) of the head's weight and of its adapter's B.
HeadWeight rows_of_head(const HeadWeight& weight, int64_t first, int64_t count);
// hidden without, and of, the adapter's columns: [N, D], and [N, r] or undefined.
at::Tensor hidden_of_weight(const at::Tensor& hidden, const HeadWeight& weight);
at::Tensor hidden_of_adapter(const at::Tensor& hidden, const HeadWeight& weight);

// Where a chunk's logits live: one buffer for all chunks, since fresh memory costs page faults at
// every chunk; those of the first chunks in memory of their own, if they are to be kept.
class ChunkBuffer {
 public:
  explicit ChunkBuffer(const HeadRows& rows);
  // hidden times weight rows [C, D], in the type of hidden: [N, C], dense, row by row the same
  // whatever N. Valid until the next call.
  at::Tensor logits(const HeadWeight& rows);
  // The same in memory of their own while that of all of them is no more than `bytes`; undefined
  // from the first that does not fit.
  at::Tensor kept_logits(const HeadWeight& rows, int64_t bytes);
  // The next chunk's rows, whose logits are there: for weight_rows() and low_rows() alone.
  void take(const HeadWeight& rows);
  // Those rows in the type of hidden.
  const at::Tensor& weight_rows() const { return weight_rows_.rows; }
  const at::Tensor& low_rows() const { return low_rows_.rows; }

 private:
  struct Rows {
    at::Tensor rows;
    at::Tensor widened;  // [chunk rows, D], where the weight has another type
    void take(const at::Tensor& next, const at::Tensor& hidden);
  };
  at::Tensor multiply(const at::Tensor& out) const;

  int64_t rows_;
  int64_t chunk_rows_;
  double cap_;
  int64_t kept_ = 0;         // bytes; negative: one did not fit
  at::Tensor hidden_, low_;  // padded as row_invariant.hpp says; low_: of the adapter
  at::Tensor storage_;
  Rows weight_rows_, low_rows_;
};

// body(first row of the weight, its rows)
template <class Body>
void for_each_chunk(const HeadRows& rows, const Body& body) {
  const int64_t vocabulary = rows.head.weight.size(0);
  for (int64_t first = 0; first < vocabulary; first += rows.chunks.rows) {
    body(first, std::min(rows.chunks.rows, vocabulary - first));
  }
}

// The same passes by LibTorch's operators, for devices whose own kernels were put aside
// (head_rows.hpp); correct on the CPU too.
RowStatistics forward_device(const HeadRows& rows, bool with_entropy);
// The gradient with respect to a chunk's logits [N, C], whose first vocabulary row is `first`, into
// their place.
void gradient_device(const at::Tensor& logits, int64_t first, const at::Tensor& targets,
                     double scale, const RowStatistics& rows, const RowGradients& grads);

}  // namespace trireme::kernels
