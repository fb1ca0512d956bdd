#include "trireme/base/shard_layout.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::base {

int64_t TensorSpec::rows() const { return shape.empty() ? 1 : shape[0]; }

int64_t TensorSpec::columns() const {
  int64_t product = 1;
  for (size_t i = 1; i < shape.size(); ++i) product = checked_mul(product, shape[i]);
  return product;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return "[" + join(extents) + "]";
}

Block intersect(const Block& a, const Block& b) {
  const int64_t row = std::max(a.row, b.row);
  const int64_t column = std::max(a.column, b.column);
  const int64_t rows = std::min(a.row + a.rows, b.row + b.rows) - row;
  const int64_t columns = std::min(a.column + a.columns, b.column + b.columns) - column;
  if (rows <= 0 || columns <= 0) return {};
  return {row, rows, column, columns};
}

std::optional<CopyRun> copy_between(const Block& source, const Block& target) {
  const Block common = intersect(source, target);
  if (common.empty()) return std::nullopt;
  const auto offset = [&common](const Block& block) {
    return (common.row - block.row) * block.columns + (common.column - block.column);
  };
  CopyRun run{common.rows,    common.columns, offset(source),
              source.columns, offset(target), target.columns};
  if (run.columns == run.source_stride && run.columns == run.target_stride) {
    run.columns *= run.rows;
    run.rows = 1;
    run.source_stride = run.target_stride = run.columns;
  }
  return run;
}

ShardLayout ShardLayout::by_rows(std::vector<TensorSpec> tensors, int ranks) {
  EXPECT(ranks > 0);
  ShardLayout layout;
  layout.tensors_ = std::move(tensors);
  layout.ranks_ = ranks;
  return layout;
}

ShardLayout ShardLayout::sliced(std::vector<TensorSpec> tensors, int ranks,
                                std::vector<Slicing> slicing) {
  EXPECT(ranks > 0 && slicing.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& slice = slicing[i];
    if (slice.axis == SliceAxis::none) continue;
    const int64_t extent = slice.axis == SliceAxis::rows ? tensors[i].rows() : tensors[i].columns();
    const bool valid = slice.bounds.size() == static_cast<size_t>(ranks) + 1 &&
                       slice.bounds.front() == 0 && slice.bounds.back() == extent &&
                       std::is_sorted(slice.bounds.begin(), slice.bounds.end());
    if (!valid)
      throw InternalError(
          text("the slicing of ", tensors[i].name, " does not cover its ", extent, " entries"));
  }
  ShardLayout layout;
  layout.tensors_ = std::move(tensors);
  layout.slicing_ = std::move(slicing);
  layout.ranks_ = ranks;
  return layout;
}

ShardLayout ShardLayout::whole(std::vector<TensorSpec> tensors, int ranks) {
  std::vector<Slicing> none(tensors.size());
  return sliced(std::move(tensors), ranks, std::move(none));
}

ShardLayout ShardLayout::select(const std::vector<size_t>& tensors) const {
  ShardLayout out;
  out.ranks_ = ranks_;
  for (const size_t tensor : tensors) {
    EXPECT(tensor < tensors_.size());
    out.tensors_.push_back(tensors_[tensor]);
    if (!slicing_.empty()) out.slicing_.push_back(slicing_[tensor]);
  }
  return out;
}

int64_t ShardLayout::rows_per_rank(const TensorSpec& tensor, int ranks) {
  return ceil_div(tensor.rows(), static_cast<int64_t>(ranks));
}

Block ShardLayout::block(size_t tensor, int rank) const {
  EXPECT(tensor < tensors_.size() && rank >= 0 && rank < ranks_);
  const auto& spec = tensors_[tensor];
  if (slicing_.empty()) {
    const int64_t per_rank = rows_per_rank(spec, ranks_);
    const int64_t first = std::min(per_rank * rank, spec.rows());
    const int64_t last = std::min(first + per_rank, spec.rows());
    return {first, last - first, 0, spec.columns()};
  }
  const auto& slice = slicing_[tensor];
  if (slice.axis == SliceAxis::none) return {0, spec.rows(), 0, spec.columns()};
  const int64_t first = slice.bounds[static_cast<size_t>(rank)];
  const int64_t count = slice.bounds[static_cast<size_t>(rank) + 1] - first;
  if (slice.axis == SliceAxis::rows) return {first, count, 0, spec.columns()};
  return {0, spec.rows(), first, count};
}

int64_t ShardLayout::elements(int rank) const {
  int64_t sum = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) sum += block(i, rank).elements();
  return sum;
}

int64_t ShardLayout::total_elements() const {
  int64_t sum = 0;
  for (const auto& tensor : tensors_) sum += tensor.elements();
  return sum;
}

}  // namespace trireme::base
