#include "trireme/comm/mesh.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/world.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {
namespace {

using Lines = std::vector<std::vector<int>>;

std::vector<int> first(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(Mesh, LinesOfFourAxes) {
  const auto& world = test::world();
  if (world.size() != 4) GTEST_SKIP() << "needs 4 ranks";
  const Mesh mesh(world, {3, 1, 2, 0}, {.data = 2, .tensor = 2}, "test");
  EXPECT_EQ(mesh.lines(Axis::tensor), (Lines{{3, 1}, {2, 0}}));
  EXPECT_EQ(mesh.lines(Axis::data), (Lines{{3, 2}, {1, 0}}));
  EXPECT_EQ(mesh.lines(Axis::context), (Lines{{3}, {1}, {2}, {0}}));
  const std::vector<int> data_place{1, 0, 1, 0}, tensor_place{1, 1, 0, 0};
  EXPECT_EQ(mesh.place(Axis::data), data_place[static_cast<size_t>(world.rank())]);
  EXPECT_EQ(mesh.place(Axis::tensor), tensor_place[static_cast<size_t>(world.rank())]);
}

// Every way to cut the ranks into four axes: each communicator has the ranks of its line, in order,
// and only places of its axis differ.
TEST(Mesh, CommunicatorsAreTheLines) {
  const auto& world = test::world();
  const int n = world.size();
  for (int data = 1; data <= n; ++data) {
    for (int shard = 1; shard <= n; ++shard) {
      for (int context = 1; context <= n; ++context) {
        if (n % (data * shard * context) != 0) continue;
        const Mesh mesh(world, first(n), {data, shard, context, n / (data * shard * context)},
                        "test");
        for (const Axis axis : {Axis::data, Axis::shard, Axis::context, Axis::tensor}) {
          const auto members = mesh.along(axis).gather_values(world.rank());
          EXPECT_EQ(members[static_cast<size_t>(mesh.place(axis))], world.rank());
          EXPECT_EQ(static_cast<int>(members.size()), mesh.size(axis));
          const Lines lines = mesh.lines(axis);
          EXPECT_EQ(std::count(lines.begin(), lines.end(), members), 1);
        }
        // The ranks of a batch share no sequence: those that cut the same one have another batch
        // each.
        EXPECT_EQ(mesh.batch().size(), data * shard);
        const int sharers = n / (data * shard);
        for (const int rank : mesh.batch().gather_values(world.rank()))
          EXPECT_EQ(rank % sharers, world.rank() % sharers);
        EXPECT_EQ(mesh.all().size(), n);
      }
    }
  }
}

TEST(Mesh, RanksOutsideAreAlone) {
  const auto& world = test::world();
  const Mesh mesh(world, {0}, {}, "test");
  EXPECT_EQ(mesh.member(), world.rank() == 0);
  EXPECT_EQ(mesh.all().size(), 1);
  EXPECT_EQ(mesh.batch().size(), 1);
}

TEST(Mesh, PlacesAndRanksHaveToBeAsMany) {
  EXPECT_THROW(Mesh(test::world(), {0}, {.data = 2}, "test"), UserError);
}

}  // namespace
}  // namespace trireme::comm
