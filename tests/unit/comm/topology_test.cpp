#include <gtest/gtest.h>

#include <atomic>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/clock.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::comm {
namespace {

TEST(Topology, RanksOfOneMachineShareANode) {
  const auto& world = test::world();
  const auto topology = discover(world);
  EXPECT_EQ(topology.nodes, 1);
  EXPECT_EQ(topology.local_size, world.size());
  EXPECT_EQ(topology.local_rank, world.rank());
  EXPECT_EQ(topology.node_of, std::vector<int>(static_cast<size_t>(world.size()), 0));
  EXPECT_FALSE(topology.host_of_node.at(0).empty());
}

TEST(SharedWindow, EveryRankSeesEveryPart) {
  const auto& world = test::world();
  const SharedWindow window(world, 4096 * (world.rank() + 1), "test");
  auto* mine = reinterpret_cast<std::atomic<int64_t>*>(window.part(world.rank()));
  EXPECT_EQ(mine->load(), 0);  // zeroed
  mine->store(100 + world.rank(), std::memory_order_release);
  world.barrier();
  for (int r = 0; r < world.size(); ++r) {
    EXPECT_EQ(
        reinterpret_cast<std::atomic<int64_t>*>(window.part(r))->load(std::memory_order_acquire),
        100 + r);
    EXPECT_EQ(window.part_bytes(r), 4096 * (r + 1));
  }
  world.barrier();
}

TEST(SharedWindow, TooMuchIsOneErrorOnEveryRank) {
  const auto& world = test::world();
  try {
    const SharedWindow window(world, int64_t{1} << 46, "test");
    FAIL() << "64 TiB were granted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("TiB"), std::string::npos) << error.what();
  }
}

TEST(SharedWindow, MovesKeepTheMemory) {
  const auto& world = test::world();
  SharedWindow first(world, 64, "test");
  auto* address = first.part(0);
  SharedWindow second(std::move(first));
  EXPECT_EQ(second.part(0), address);
  EXPECT_FALSE(first.valid());
}

TEST(ClockOffset, IsNothingOnOneMachine) {
  const double offset = measure_clock_offset(world());
  if (world().rank() == 0) { EXPECT_EQ(offset, 0); }
  EXPECT_LT(std::abs(offset), 10) << "half a round trip";
}

}  // namespace
}  // namespace trireme::comm
