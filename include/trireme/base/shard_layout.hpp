// Which elements of which tensor has which rank: integer arithmetic under zero, weightsync and
// checkpoint.
//
// A tensor is viewed as a matrix [rows, columns]: rows = shape[0], columns = the product of the
// rest (a vector has one column). A rank's shard of a tensor is a rectangle of it, stored densely
// in row-major order. ZeRO shards are row ranges, tensor-parallel slices are row or column ranges,
// a checkpoint slab is a rectangle of the global dataset; going from one layout to another is the
// intersection of two rectangles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::base {

struct TensorSpec {
  std::string name;            // Hugging Face name, e.g. model.layers.0.self_attn.q_proj.weight
  std::vector<int64_t> shape;  // global

  int64_t rows() const;     // 1 for a scalar
  int64_t columns() const;  // 1 for a vector
  int64_t elements() const { return rows() * columns(); }
};

// "[49152, 576]", "[]" for a scalar
std::string shape_text(const std::vector<int64_t>& shape);

// A rectangle of a tensor: rows [row, row + rows), columns [column, column + columns).
struct Block {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t column = 0;
  int64_t columns = 0;

  int64_t elements() const { return rows * columns; }
  bool empty() const { return rows <= 0 || columns <= 0; }
  bool operator==(const Block&) const = default;
};

// The common rectangle, empty when there is none.
Block intersect(const Block& a, const Block& b);

// A strided copy between two densely stored blocks: `rows` times `columns` consecutive elements.
// Offsets and strides in elements from the start of each block's storage.
struct CopyRun {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t source_offset = 0;
  int64_t source_stride = 0;
  int64_t target_offset = 0;
  int64_t target_stride = 0;

  int64_t elements() const { return rows * columns; }
};

// What must move from a rank that stores `source` to one that stores `target`; nullopt when they
// share nothing. Where both sides are contiguous it is one row.
std::optional<CopyRun> copy_between(const Block& source, const Block& target);

// How a tensor is cut: bounds[r] .. bounds[r + 1] is the range of rank r along the axis.
enum class SliceAxis { none, rows, columns };
struct Slicing {
  SliceAxis axis = SliceAxis::none;
  std::vector<int64_t> bounds;  // [ranks + 1], empty for SliceAxis::none
};

class ShardLayout {
 public:
  ShardLayout() = default;
  // ZeRO: rank r has rows [r * p, (r + 1) * p) with p = rows_per_rank, cut at the end; late ranks
  // may have none.
  static ShardLayout by_rows(std::vector<TensorSpec> tensors, int ranks);
  // Tensor parallelism: one slicing per tensor; SliceAxis::none means that every rank has the whole
  // tensor.
  static ShardLayout sliced(std::vector<TensorSpec> tensors, int ranks,
                            std::vector<Slicing> slicing);
  // Every rank has everything.
  static ShardLayout whole(std::vector<TensorSpec> tensors, int ranks);

  // Of some tensors, in this order, cut as they are here.
  ShardLayout select(const std::vector<size_t>& tensors) const;

  int ranks() const { return ranks_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  Block block(size_t tensor, int rank) const;
  // Rows of the padded slice that every rank holds of a tensor under by_rows: ceil(rows / ranks).
  static int64_t rows_per_rank(const TensorSpec& tensor, int ranks);
  // Elements that `rank` stores.
  int64_t elements(int rank) const;
  // Elements of all tensors together.
  int64_t total_elements() const;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<Slicing> slicing_;  // empty: by rows
  int ranks_ = 0;
};

}  // namespace trireme::base
