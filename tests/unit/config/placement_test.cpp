#include "trireme/config/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ranks = std::vector<int>;

struct Machine {
  Options options;
  std::vector<int> nodes;
  RoleMap roles;
  Machine(int ranks, int per_node, RanksOptions sets, int tensor_parallel = 1, int shard_group = 0)
      : nodes(block_nodes(ranks, per_node)), roles(resolve_ranks(sets, ranks, nodes)) {
    options.ranks = sets;
    options.generate.tensor_parallel = tensor_parallel;
    options.train.shard_group = shard_group;
  }
  std::vector<std::string> warnings() const { return placement_warnings(options, roles, nodes); }
  std::vector<std::string> lines() const { return describe_placement(options, roles, nodes); }
};

TEST(Placement, BlockNodes) {
  EXPECT_THAT(block_nodes(5, 2), ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(block_nodes(3, 8), ElementsAre(0, 0, 0));
}

TEST(Placement, ReplicasStayInsideANode) {
  const std::vector<int> round_robin{0, 1, 0, 1};
  EXPECT_THAT(replica_groups(Ranks{0, 1, 2, 3}, round_robin, 2),
              ElementsAre(Ranks{0, 2}, Ranks{1, 3}));
  // Three generators on the first node, five on the second: one pair must cross.
  const auto nodes = block_nodes(12, 6);
  EXPECT_THAT(replica_groups(Ranks{3, 4, 5, 6, 7, 8, 9, 10}, nodes, 2),
              ElementsAre(Ranks{3, 4}, Ranks{5, 10}, Ranks{6, 7}, Ranks{8, 9}));
}

TEST(Placement, EveryGeneratorIsInOneReplica) {
  for (int per_node = 1; per_node <= 9; ++per_node) {
    const auto nodes = block_nodes(24, per_node);
    Ranks all(24);
    std::iota(all.begin(), all.end(), 0);
    for (const int degree : {1, 2, 3, 4, 6, 8, 12, 24}) {
      Ranks seen;
      int crossing = 0;
      for (const auto& group : replica_groups(all, nodes, degree)) {
        EXPECT_EQ(static_cast<int>(group.size()), degree);
        seen.insert(seen.end(), group.begin(), group.end());
        crossing +=
            nodes[static_cast<size_t>(group.front())] != nodes[static_cast<size_t>(group.back())];
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(seen, all);
      EXPECT_EQ(per_node % degree == 0 ? crossing : 0, 0) << per_node << " " << degree;
    }
  }
}

TEST(Placement, ReplicaAcrossNodesIsWarnedOfWithTheValueToSet) {
  EXPECT_THAT(Machine(32, 8, {}, 8).warnings(), IsEmpty());
  const auto warnings = Machine(32, 8, {}, 16).warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("ranks 0-15 lies on nodes 0-1"));
  EXPECT_THAT(warnings[0], HasSubstr("generate.tensor_parallel = 8"));
  // 4 and 8 generators on the two nodes
  EXPECT_THAT(Machine(16, 8, {"4", "12", ""}, 6).warnings().at(0),
              HasSubstr("generate.tensor_parallel = 4"));
}

TEST(Placement, ShardGroups) {
  EXPECT_THAT(Machine(32, 8, {}, 8, 8).warnings(), IsEmpty());
  EXPECT_THAT(Machine(32, 8, {}, 8, 16).warnings(), IsEmpty()) << "two whole nodes";
  const auto warnings = Machine(24, 6, {}, 1, 4).warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("ranks 4-7 takes parts of nodes 0-1"));
  EXPECT_THAT(warnings[0], HasSubstr("train.shard_group = 3"));
}

TEST(Placement, IdleRanks) {
  EXPECT_THAT(Machine(8, 8, {"4", "2", "1"}).warnings(),
              ElementsAre(HasSubstr("no role uses rank 7")));
}

TEST(Placement, CountsPutRewardsBesideTrainers) {
  const Machine machine(16, 8, {"6", "8", "2"}, 8);
  EXPECT_THAT(machine.warnings(), IsEmpty()) << "the generators fill the second node";
  EXPECT_THAT(machine.lines(), ElementsAre("trainer    ranks 0-5  node 0  sharded over 6",
                                           "generator  ranks 8-15  node 1  1 replica: 8-15",
                                           "reward     ranks 6-7  node 0"));
}

TEST(Placement, LongListsAreShortened) {
  const auto lines = Machine(64, 8, {}, 8, 8).lines();
  EXPECT_EQ(
      lines[0],
      "trainer    ranks 0-63  nodes 0-7  8 shard groups: 0-7 | 8-15 | 16-23 | 24-31 | ... 56-63");
  EXPECT_EQ(lines[1],
            "generator  ranks 0-63  nodes 0-7  8 replicas: 0-7 | 8-15 | 16-23 | 24-31 | ... 56-63");
  EXPECT_EQ(Machine(4, 4, {}).lines()[1], "generator  ranks 0-3  node 0  4 replicas of one rank");
}

TEST(Placement, FrozenModelsAreCutByTheShardGroupWhereItDividesTheirRanks) {
  EXPECT_EQ(Machine(8, 8, {}, 1, 2).lines()[2],
            "reward     ranks 0-7  node 0  4 shard groups: 0-1 | 2-3 | 4-5 | 6-7");
  EXPECT_EQ(Machine(8, 8, {"4", "1", "3"}, 1, 2).lines()[2], "reward     ranks 4-6  node 0")
      << "two do not divide three";
  EXPECT_EQ(Machine(8, 8, {"4", "2", "2"}, 1, 2).lines()[2], "reward     ranks 4-5  node 0")
      << "one group is all of them";
  const auto size = [](const Machine& machine) {
    return reward_shard_size(machine.options, machine.roles);
  };
  EXPECT_EQ(size(Machine(8, 8, {}, 1, 2)), 2);
  EXPECT_EQ(size(Machine(8, 8, {})), 8);
  EXPECT_EQ(size(Machine(8, 8, {"4", "1", "3"}, 1, 2)), 3);
}

TEST(Placement, WhatDoesNotDivideIsRefused) {
  const auto refused = [](const Machine& machine) {
    return error_of(ExitCode::configuration,
                    [&] { check_placement(machine.options, machine.roles); });
  };
  EXPECT_THAT(refused(Machine(12, 4, {}, 8)),
              HasSubstr("generate.tensor_parallel = 8 does not divide the 12 generator ranks"));
  EXPECT_THAT(refused(Machine(12, 4, {}, 1, 5)), HasSubstr("train.shard_group = 5"));
  Machine together(4, 4, {}), split(4, 4, {}, 2);
  for (Machine* machine : {&together, &split})
    machine->options.train.partial_rollout_order = PartialRolloutOrder::finished;
  EXPECT_THAT(refused(together), HasSubstr("rank 0 generates and trains"));
  EXPECT_THAT(refused(split), HasSubstr("generate.tensor_parallel = 2"));
}

}  // namespace
}  // namespace trireme::config
