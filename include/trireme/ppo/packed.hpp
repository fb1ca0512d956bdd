// Columns of packed sequences, on which every function of this module works.
// Legend: T packed columns, B sequences. A column is a token (of the whole sequence or of the
// actions only); prompt and observation tokens are columns whose mask is 0. Values under a zero
// mask are never read into a result: they are taken out by selection, so NaN there does no harm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace trireme::ppo {

// Adds up the numbers over the ranks that share the work, in place; collective over them.
using Sum = std::function<void(std::span<double>)>;

// Which sequence a column belongs to. Cheap to copy.
class Segments {
 public:
  Segments() = default;
  // cu_seqlens [B + 1], starting with 0; index tensors are made on `device`.
  explicit Segments(std::vector<int64_t> cu_seqlens, at::Device device = at::kCPU);

  const std::vector<int64_t>& cu_seqlens() const { return cu_seqlens_; }
  int64_t sequences() const { return static_cast<int64_t>(cu_seqlens_.size()) - 1; }
  int64_t columns() const { return cu_seqlens_.back(); }
  // Sums of x [T] within each sequence: [B], type of x, differentiable.
  at::Tensor sums(const at::Tensor& x) const;
  // x [B] repeated for the columns of each sequence: [T], differentiable.
  at::Tensor spread(const at::Tensor& x) const;

 private:
  std::vector<int64_t> cu_seqlens_{0};
  at::Tensor index_;  // i64 [T]
};

// x where mask, else 0. x [T], mask bool or integer [T]. Differentiable; the gradient is 0 where
// the mask is.
at::Tensor select(const at::Tensor& x, const at::Tensor& mask);

}  // namespace trireme::ppo
