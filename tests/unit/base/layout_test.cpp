#include <gtest/gtest.h>

#include "trireme/base/error.hpp"
#include "trireme/base/shard_layout.hpp"

namespace trireme::base {
namespace {

std::vector<TensorSpec> tensors() { return {{"embed", {50, 8}}, {"norm", {8}}, {"q", {6, 8}}, {"scalar", {}}}; }

TEST(ShardLayout, RowsCoverEachTensorOnceForAnyRankCount) {
  for (int ranks : {1, 2, 3, 7, 64, 4096}) {
    const auto layout = ShardLayout::by_rows(tensors(), ranks);
    for (size_t t = 0; t < layout.tensors().size(); ++t) {
      int64_t next = 0;
      for (int r = 0; r < ranks; ++r) {
        const Block block = layout.block(t, r);
        EXPECT_EQ(block.columns, layout.tensors()[t].columns());
        EXPECT_TRUE(block.empty() || block.row == next);
        next += block.rows;
      }
      EXPECT_EQ(next, layout.tensors()[t].rows());
    }
  }
}

TEST(ShardLayout, SlicesMustCoverTheirTensor) {
  const std::vector<TensorSpec> one{{"q", {6, 8}}};
  EXPECT_THROW(ShardLayout::sliced(one, 2, {{SliceAxis::rows, {0, 4, 5}}}), InternalError);
  EXPECT_THROW(ShardLayout::sliced(one, 2, {{SliceAxis::columns, {0, 8}}}), InternalError);
  const auto uneven = ShardLayout::sliced(one, 2, {{SliceAxis::columns, {0, 6, 8}}});
  EXPECT_EQ(uneven.block(0, 1), (Block{0, 6, 6, 2}));
  EXPECT_EQ(uneven.elements(0), 36);
}

// Copies every pair's intersection and checks that each target element arrives exactly once with the right value.
void check_resharding(const ShardLayout& source, const ShardLayout& target) {
  for (size_t t = 0; t < source.tensors().size(); ++t) {
    const int64_t columns = source.tensors()[t].columns();
    for (int to = 0; to < target.ranks(); ++to) {
      const Block block = target.block(t, to);
      std::vector<int64_t> local(static_cast<size_t>(block.elements()), -1);
      for (int from = 0; from < source.ranks(); ++from) {
        const Block have = source.block(t, from);
        const auto run = copy_between(have, block);
        if (!run) continue;
        for (int64_t i = 0; i < run->rows; ++i) {
          for (int64_t j = 0; j < run->columns; ++j) {
            const int64_t at = run->source_offset + i * run->source_stride + j;  // in the source's dense block
            const int64_t global = (have.row + at / have.columns) * columns + have.column + at % have.columns;
            auto& slot = local[static_cast<size_t>(run->target_offset + i * run->target_stride + j)];
            EXPECT_EQ(slot, -1);
            slot = global;
          }
        }
      }
      for (int64_t i = 0; i < block.rows; ++i) {
        for (int64_t j = 0; j < block.columns; ++j) {
          ASSERT_EQ(local[static_cast<size_t>(i * block.columns + j)], (block.row + i) * columns + block.column + j);
        }
      }
    }
  }
}

TEST(ShardLayout, AnyLayoutReachesAnyOther) {
  const std::vector<Slicing> cut{{SliceAxis::rows, {0, 20, 50}}, {}, {SliceAxis::columns, {0, 3, 8}}, {}};
  const auto parallel = ShardLayout::sliced(tensors(), 2, cut);
  for (int ranks : {1, 2, 3, 5, 61}) {
    const auto rows = ShardLayout::by_rows(tensors(), ranks);
    check_resharding(rows, parallel);
    check_resharding(rows, ShardLayout::by_rows(tensors(), 4));
    check_resharding(rows, ShardLayout::whole(tensors(), 2));
  }
  const std::vector<TensorSpec> matrices{{"embed", {50, 8}}, {"o", {6, 8}}};  // no replicated part: also a source
  const auto cut_matrices = ShardLayout::sliced(matrices, 2, {{SliceAxis::rows, {0, 20, 50}}, {SliceAxis::columns, {0, 3, 8}}});
  check_resharding(cut_matrices, ShardLayout::by_rows(matrices, 3));
}

TEST(CopyRun, ContiguousPiecesBecomeOneRow) {
  const auto run = copy_between(Block{2, 4, 0, 8}, Block{4, 10, 0, 8});
  ASSERT_TRUE(run);
  EXPECT_EQ(run->rows, 1);
  EXPECT_EQ(run->columns, 16);
  EXPECT_EQ(run->source_offset, 16);
  EXPECT_EQ(run->target_offset, 0);
  EXPECT_FALSE(copy_between(Block{0, 2, 0, 8}, Block{2, 2, 0, 8}));
}

}  // namespace
}  // namespace trireme::base
