#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "trireme/base/error.hpp"
#include "trireme/base/shard_layout.hpp"

namespace trireme::base {
namespace {

std::vector<TensorSpec> tensors() {
  return {{"embed", {50, 8}}, {"norm", {8}}, {"q", {6, 8}}, {"scalar", {}}};
}

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

// Copies every pair's intersection and checks that each target element arrives exactly once with
// the right value.
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
            const int64_t at =
                run->source_offset + i * run->source_stride + j;  // in the source's dense block
            const int64_t global =
                (have.row + at / have.columns) * columns + have.column + at % have.columns;
            auto& slot =
                local[static_cast<size_t>(run->target_offset + i * run->target_stride + j)];
            EXPECT_EQ(slot, -1);
            slot = global;
          }
        }
      }
      for (int64_t i = 0; i < block.rows; ++i) {
        for (int64_t j = 0; j < block.columns; ++j) {
          ASSERT_EQ(local[static_cast<size_t>(i * block.columns + j)],
                    (block.row + i) * columns + block.column + j);
        }
      }
    }
  }
}

TEST(ShardLayout, AnyLayoutReachesAnyOther) {
  const std::vector<Slicing> cut{
      {SliceAxis::rows, {0, 20, 50}}, {}, {SliceAxis::columns, {0, 3, 8}}, {}};
  const auto parallel = ShardLayout::sliced(tensors(), 2, cut);
  for (int ranks : {1, 2, 3, 5, 61}) {
    const auto rows = ShardLayout::by_rows(tensors(), ranks);
    check_resharding(rows, parallel);
    check_resharding(rows, ShardLayout::by_rows(tensors(), 4));
    check_resharding(rows, ShardLayout::whole(tensors(), 2));
  }
  const std::vector<TensorSpec> matrices{{"embed", {50, 8}},
                                         {"o", {6, 8}}};  // no replicated part: also a source
  const auto cut_matrices = ShardLayout::sliced(
      matrices, 2, {{SliceAxis::rows, {0, 20, 50}}, {SliceAxis::columns, {0, 3, 8}}});
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

class Random {
 public:
  int64_t up_to(int64_t most) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(most + 1));
  }
  // A range cut for `ranks`; some get nothing.
  std::vector<int64_t> bounds(int ranks, int64_t extent) {
    std::vector<int64_t> out{0, extent};
    while (out.size() < static_cast<size_t>(ranks) + 1) out.push_back(up_to(extent));
    std::sort(out.begin(), out.end());
    return out;
  }
  std::vector<TensorSpec> tensors() {
    std::vector<TensorSpec> out{{"scalar", {}}, {"empty", {0, 3}}};
    for (int64_t dims = 1; dims <= 3; ++dims) {
      TensorSpec spec{"tensor", {}};
      for (int64_t d = 0; d < dims; ++d) spec.shape.push_back(1 + up_to(9));
      out.push_back(spec);
    }
    return out;
  }
  // Every tensor cut along some axis, so that each element has one owner.
  ShardLayout cut(const std::vector<TensorSpec>& specs) {
    const int ranks = static_cast<int>(1 + up_to(6));
    if (up_to(2) == 0) return ShardLayout::by_rows(specs, ranks);
    std::vector<Slicing> slicing;
    for (const TensorSpec& spec : specs) {
      const bool rows = up_to(1) == 0;
      slicing.push_back({rows ? SliceAxis::rows : SliceAxis::columns,
                         bounds(ranks, rows ? spec.rows() : spec.columns())});
    }
    return ShardLayout::sliced(specs, ranks, slicing);
  }

 private:
  std::mt19937_64 engine_{20};
};

TEST(ShardLayout, RandomShapesGoFromAnyCutToAnyOther) {
  Random random;
  for (int trial = 0; trial < 300; ++trial) {
    const auto specs = random.tensors();
    const ShardLayout source = random.cut(specs), target = random.cut(specs);
    check_resharding(source, target);
    int64_t stored = 0;
    for (int r = 0; r < source.ranks(); ++r) stored += source.elements(r);
    EXPECT_EQ(stored, source.total_elements()) << "each element is stored once";
    EXPECT_EQ(ShardLayout::whole(specs, 3).elements(2), source.total_elements());
  }
}

bool contains(const Block& b, int64_t row, int64_t column) {
  return row >= b.row && row < b.row + b.rows && column >= b.column &&
         column < b.column + b.columns;
}

// Every rectangle of a 3 x 4 matrix, the empty ones included.
std::vector<Block> all_blocks() {
  std::vector<Block> out;
  for (int64_t row = 0; row <= 3; ++row) {
    for (int64_t rows = 0; row + rows <= 3; ++rows) {
      for (int64_t column = 0; column <= 4; ++column) {
        for (int64_t columns = 0; column + columns <= 4; ++columns)
          out.push_back({row, rows, column, columns});
      }
    }
  }
  return out;
}

TEST(CopyRun, HasTheCommonElementsOfAllPairsOfRectangles) {
  const std::vector<Block> blocks = all_blocks();
  for (const Block& a : blocks) {
    for (const Block& b : blocks) {
      const Block common = intersect(a, b);
      int64_t count = 0;
      for (int64_t i = 0; i < 12; ++i) {
        const bool both = contains(a, i / 4, i % 4) && contains(b, i / 4, i % 4);
        ASSERT_EQ(contains(common, i / 4, i % 4), both);
        count += both;
      }
      const auto run = copy_between(a, b);
      ASSERT_EQ(run.has_value(), count > 0);
      ASSERT_EQ(run ? run->elements() : 0, count);
    }
  }
}

TEST(ShardLayout, SelectsTensorsAsTheyAreCut) {
  std::vector<Slicing> slicing(4);
  slicing[0] = {SliceAxis::rows, {0, 20, 50}};
  slicing[2] = {SliceAxis::columns, {0, 6, 8}};
  for (const auto& layout :
       {ShardLayout::by_rows(tensors(), 2), ShardLayout::sliced(tensors(), 2, slicing),
        ShardLayout::whole(tensors(), 2)}) {
    for (const std::vector<size_t>& some :
         {std::vector<size_t>{}, {0, 1, 2, 3}, {2}, {3, 0}, {1, 2}}) {
      const ShardLayout part = layout.select(some);
      ASSERT_EQ(part.ranks(), 2);
      ASSERT_EQ(part.tensors().size(), some.size());
      for (size_t i = 0; i < some.size(); ++i) {
        EXPECT_EQ(part.tensors()[i].name, tensors()[some[i]].name);
        for (int rank = 0; rank < 2; ++rank)
          EXPECT_EQ(part.block(i, rank), layout.block(some[i], rank));
      }
    }
  }
}

TEST(TensorSpec, ShapesBeyondSixtyThreeBitsAreRefused) {
  const TensorSpec vector{"v", {7}}, scalar{"s", {}}, cube{"c", {2, 3, 4}},
      huge{"h", {1, int64_t{1} << 40, int64_t{1} << 40}};
  EXPECT_EQ(vector.rows() * 100 + vector.columns(), 701);
  EXPECT_EQ(scalar.rows() * 100 + scalar.columns(), 101);
  EXPECT_EQ(cube.rows() * 100 + cube.columns(), 212);
  EXPECT_THROW(huge.columns(), UserError);
}

TEST(ShardLayout, BadSlicesNameTheirTensor) {
  const std::vector<TensorSpec> one{{"q_proj", {6, 8}}};
  for (const auto& bounds : std::vector<std::vector<int64_t>>{
           {}, {0, 6}, {0, 4, 5}, {1, 4, 6}, {0, 7, 6}, {0, 3, 6, 6}}) {
    try {
      ShardLayout::sliced(one, 2, {{SliceAxis::rows, bounds}});
      ADD_FAILURE() << "taken";
    } catch (const InternalError& error) {
      EXPECT_STREQ(error.what(), "the slicing of q_proj does not cover its 6 entries");
    }
  }
}

}  // namespace
}  // namespace trireme::base
