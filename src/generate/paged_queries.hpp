// The rows of a step that are alone in their sequence, and their attention by a kernel of our own,
// which reads the cache where its pages lie (kernels/paged_attention.hpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "local_shape.hpp"
#include "trireme/kernels/paged_attention.hpp"
#include "upload.hpp"

namespace trireme::generate {

using AttendPages = void (*)(const kernels::PagedAttention&);

// The kernel, for pages of `page_size` slots. Its scratch memory is the same in every layer: for
// calls in the order of one stream.
struct PagedKernel {
  AttendPages run;
  int64_t page_size;
  at::Tensor sums = {}, weights = {};
};

class PagedQueries {
 public:
  // Row `row` of the step, at position keys - 1; `pages` are those of the positions from 0 on.
  void add(int64_t row, int64_t keys, std::span<const int32_t> pages);
  // Behind the last row: chunks of nobody, up to `chunks`.
  void fill_up(int64_t chunks);
  bool empty() const { return queries_.empty(); }
  // The page numbers, of which each step has its own count, last.
  void put(Upload& upload);
  // Whether all but the page numbers was put where the other's was.
  bool lies_as(const PagedQueries& other) const {
    return query_piece_ == other.query_piece_ && chunk_piece_ == other.chunk_piece_ &&
           page_piece_.first == other.page_piece_.first;
  }
  // Writes these rows of `out` [M, H, hd], as q and the layer contiguous.
  void attend(PagedKernel& kernel, const Upload& upload, const at::Tensor& q, double scale,
              const CacheLayer& layer, const at::Tensor& out) const;

 private:
  std::vector<kernels::PagedQuery> queries_;
  std::vector<kernels::PagedChunk> chunks_;
  std::vector<int32_t> pages_;
  Upload::Piece query_piece_, chunk_piece_, page_piece_;
};

// Differences of the kernel on this device from LibTorch's attention over gathered pages, on
// artificial keys and values of so many heads; empty: nothing.
std::string paged_attention_problem(at::Device device, AttendPages kernel, const LocalShape& shape);

}  // namespace trireme::generate
