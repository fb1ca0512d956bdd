// Indices that a step of LibTorch's backend reads: everything that the host knows about it, and
// where that lies on the device. Legend: M rows of the step, S positions of a sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "paged_queries.hpp"
#include "step_backend.hpp"
#include "trireme/model/gathered_attention.hpp"
#include "trireme/model/packed_batch.hpp"
#include "upload.hpp"

namespace trireme::generate {

// Sizes to which a step of decoding is padded, so that few different ones are computed: 1, 2, 3, 4,
// 6, 8, 12, 16, 24 ... of each.
struct DecodeShape {
  int64_t rows = 0;
  int64_t chunks = 0;  // of attention over pages
  auto operator<=>(const DecodeShape&) const = default;
  // Of a batch in which each sequence has one row and is drawn from; nullopt: it is not such a one.
  static std::optional<DecodeShape> of(const StepBatch& batch);
};

class StepIndices {
 public:
  // `paged`: sequences with one row are read where they lie.
  StepIndices(const StepBatch& batch, int64_t page_size, bool paged);
  // Filled up with rows that write and read position 0 of `spare_page`. Where it lies in an upload
  // that has nothing else before depends on `shape` alone.
  StepIndices(const StepBatch& batch, int64_t page_size, const DecodeShape& shape,
              int32_t spare_page);

  void put(Upload& upload);
  void find(const Upload& upload);
  bool lies_as(const StepIndices& other) const {
    return pieces_ == other.pieces_ && queries.lies_as(other.queries);
  }

  PagedQueries queries;
  model::GatheredLengths lengths;  // of the other sequences
  model::PackedBatch rows;
  at::Tensor written;    // cache slots of the rows, [M]
  at::Tensor read;       // and of all positions of the sequences that are gathered, [S]
  at::Tensor gathering;  // rows of these sequences
  at::Tensor logit_rows;

 private:
  std::vector<int64_t> ids_, positions_, written_, read_, gathering_, logit_rows_;
  std::vector<Upload::Piece> pieces_;
};

}  // namespace trireme::generate
