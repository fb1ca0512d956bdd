// Partial products in memory whose sums over the ranks are faster (comm::RankSums::open_window()).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "trireme/comm/rank_sums.hpp"

namespace trireme::generate {

class ProductWindow {
 public:
  ProductWindow() = default;  // none
  // For products of `rows` rows of `row_bytes` bytes at most. Refers to memory of `sums`.
  // Collective.
  ProductWindow(comm::RankSums& sums, int64_t rows, int64_t row_bytes);

  // Memory for one product [rows, columns] until no tensor refers to it. Undefined: there is none,
  // it is too small, or another product has it. The same on all ranks that ask alike.
  at::Tensor take(int64_t rows, int64_t columns, const at::TensorOptions& options) const;

 private:
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
  std::shared_ptr<bool> taken_;
};

}  // namespace trireme::generate
