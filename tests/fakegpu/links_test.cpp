// First words about the GPUs of a communicator: measured on the fake NCCL, and what they say of
// links that no fake has.
#include "trireme/comm/device_links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "fakegpu/device_lane.hpp"
#include "support/world.hpp"
#include "trireme/comm/device_exchange.hpp"
#include "trireme/comm/rank_sums.hpp"

namespace trireme::test {
namespace {

using testing::AllOf, testing::HasSubstr, testing::Not;

TEST(DeviceLinks, AreMeasuredOnceTheFirstUserIsThere) {
  own_device();
  if (world().size() < 2) {
    EXPECT_FALSE(comm::measure_device_links(world()));
    return;
  }
  const auto sums = comm::make_rank_sums(world(), true);
  const auto before = fakegpu::nccl_counts();
  const size_t bytes = fakegpu::device_bytes();
  const auto links = comm::measure_device_links(world());
  ASSERT_TRUE(links);
  EXPECT_EQ(fakegpu::nccl_counts().split, before.split + 1) << "no connections of its own";
  EXPECT_EQ(fakegpu::nccl_counts().destroyed, before.destroyed + 1);
  EXPECT_EQ(fakegpu::device_bytes(), bytes);
  EXPECT_TRUE(fakegpu::take_findings().empty());
  EXPECT_EQ(links->library, 22809);
  EXPECT_EQ(links->ranks, world().size());
  EXPECT_EQ(links->nodes, 1);
  EXPECT_TRUE(links->shares_node);
  EXPECT_TRUE(links->peer_to_peer);
  EXPECT_GT(links->seconds, 0);
  EXPECT_THAT(comm::describe(*links),
              AllOf(HasSubstr("NCCL 2.28.9, "), HasSubstr(": P2P; a sum of 1 MiB takes ")));
}

TEST(DeviceLinks, SayWhereGpusAreHiddenFromEachOther) {
  own_device();
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  fakegpu::hide_peers(world().rank() == 1);  // one process is enough
  const auto links = comm::measure_device_links(world());
  fakegpu::hide_peers(false);
  ASSERT_TRUE(links);
  EXPECT_FALSE(links->peer_to_peer) << "on every rank";
  EXPECT_THAT(comm::describe(*links), HasSubstr("shared memory of the host, no P2P"));
  EXPECT_THAT(comm::problem_of(*links), HasSubstr("--gpus-per-node"));
}

TEST(DeviceLinks, TellMachinesApartAsNcclDoes) {
  own_device();
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  setenv("NCCL_HOSTID", std::to_string(world().rank() / 2).c_str(), 1);
  const auto links = comm::measure_device_links(world());
  unsetenv("NCCL_HOSTID");
  ASSERT_TRUE(links);
  EXPECT_EQ(links->nodes, (world().size() + 1) / 2);
  EXPECT_TRUE(links->shares_node) << "ranks 0 and 1";
}

// Sums as NCCL's tests time them: 8 GPUs, 2 * 7 / 8 passes of a MiB.
TEST(DeviceLinks, WarnBelowWhatAnyGpuNetworkGives) {
  comm::DeviceLinks links{.library = 22809,
                          .ranks = 8,
                          .nodes = 1,
                          .shares_node = true,
                          .peer_to_peer = true,
                          .seconds = 25e-6};
  EXPECT_THAT(comm::describe(links), HasSubstr("(73.4 GB/s)"));
  EXPECT_EQ(comm::problem_of(links), "");
  links.seconds = 250e-6;
  EXPECT_THAT(comm::problem_of(links), AllOf(HasSubstr("7.34 GB/s, below 10"), HasSubstr("topo")));
  links.nodes = 2;
  EXPECT_EQ(comm::problem_of(links), "") << "between nodes";
  EXPECT_THAT(comm::describe(links), HasSubstr("P2P inside a node, network between 2 nodes"));
  links.seconds = 4e-3;
  EXPECT_THAT(comm::problem_of(links),
              AllOf(HasSubstr("0.46 GB/s, below 1"), HasSubstr("NCCL_NET")));
  links = {.library = 22809, .ranks = 2, .nodes = 2, .peer_to_peer = true, .seconds = 1e-4};
  EXPECT_THAT(comm::describe(links),
              AllOf(HasSubstr("network between 2 nodes"), Not(HasSubstr("P2P"))));
}

}  // namespace
}  // namespace trireme::test
