#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/world.hpp"
#include "trireme/comm/roles.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::comm {
namespace {

TEST(Roles, NothingSaidMeansColocated) {
  const auto& world = test::world();
  const Roles roles = make_roles(config::Options{}, world);
  EXPECT_TRUE(roles.trainer && roles.generator && roles.reward);
  EXPECT_EQ(roles.map.trainer, roles.map.generator);
  EXPECT_EQ(roles.trainers.all().size(), world.size());
  EXPECT_EQ(roles.replicas(), world.size());
  EXPECT_EQ(roles.generators.along(Axis::tensor).size(), 1);
  EXPECT_EQ(roles.text(), "trainer, generator, reward");
}

TEST(Roles, SplitRolesHaveTheirOwnCommunicators) {
  const auto& world = test::world();
  if (world.size() != 4) GTEST_SKIP() << "needs 4 ranks";
  config::Options options;
  options.ranks = {"2", "2", ""};
  options.generate.tensor_parallel = 2;
  const Roles roles = make_roles(options, world);
  EXPECT_EQ(roles.trainer, world.rank() < 2);
  EXPECT_EQ(roles.generator, world.rank() >= 2);
  EXPECT_EQ(roles.reward, world.rank() < 2);
  EXPECT_EQ(roles.trainers.all().size(), roles.trainer ? 2 : 1);
  EXPECT_EQ(roles.generators.along(Axis::tensor).size(), roles.generator ? 2 : 1);
  EXPECT_EQ(roles.replicas(), 1);
  EXPECT_EQ(roles.leads_replica(), world.rank() == 2);
  EXPECT_EQ(roles.replica_ranks(), (std::vector<std::vector<int>>{{2, 3}}));
}

TEST(Roles, HybridShardingHasGroupsAndReplicas) {
  const auto& world = test::world();
  if (world.size() != 4) GTEST_SKIP() << "needs 4 ranks";
  config::Options options;
  options.train.shard_group = 2;
  const Roles roles = make_roles(options, world);
  EXPECT_EQ(roles.trainers.size(Axis::data), 2);
  EXPECT_EQ(roles.trainers.along(Axis::shard).size(), 2);
  EXPECT_EQ(roles.trainers.along(Axis::data).size(), 2);
  EXPECT_EQ(roles.shard_ranks(), (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
}

TEST(Roles, WhatDoesNotDivideIsRefused) {
  const auto& world = test::world();
  config::Options options;
  options.generate.tensor_parallel = world.size() + 1;
  EXPECT_THROW(make_roles(options, world), UserError);
  options = {};
  options.train.shard_group = world.size() + 1;
  EXPECT_THROW(make_roles(options, world), UserError);
}

// The communicator has exactly `members`, in that order; a rank that is none of them is alone in
// it.
void expect_members(const CommView& comm, const std::vector<int>& members) {
  const int me = test::world().rank();
  const auto found = std::find(members.begin(), members.end(), me);
  if (found == members.end()) {
    EXPECT_EQ(comm.size(), 1);
    return;
  }
  EXPECT_EQ(comm.rank(), found - members.begin());
  EXPECT_EQ(comm.gather_values(me), members);
}

std::vector<int> group_of(const std::vector<std::vector<int>>& groups) {
  for (const auto& group : groups) {
    if (std::find(group.begin(), group.end(), test::world().rank()) != group.end()) return group;
  }
  return {};
}

// Every deck's roles as communicators, against the lists of the role map.
TEST(Roles, CommunicatorsHaveTheRanksOfTheMap) {
  const auto& world = test::world();
  const int n = world.size();
  const int half = std::max(1, n / 2);
  const std::string last = base::text(n - 1, "-", n - 1);
  const std::vector<config::RanksOptions> decks{{"", "", ""},
                                                {"1", "", ""},
                                                {"", base::text(half), ""},
                                                {"nodes:0", "nodes:0", "1"},
                                                {last, "0-0", last},
                                                {"", last, "nodes:0"},
                                                {base::text(n), "", last},
                                                {base::text(half), base::text(half), last}};
  for (size_t d = 0; d < decks.size(); ++d) {
    SCOPED_TRACE(testing::Message() << "deck " << d);
    config::Options options;
    options.ranks = decks[d];
    const Roles roles = make_roles(options, world);
    EXPECT_EQ(roles.map,
              config::resolve_ranks(decks[d], n, std::vector<int>(static_cast<size_t>(n), 0)));
    expect_members(roles.trainers.all(), roles.map.trainer);
    expect_members(roles.rewards.all(), roles.map.reward);
    expect_members(roles.trainers.along(Axis::shard), roles.map.trainer);
    expect_members(roles.generators.along(Axis::tensor), group_of(roles.replica_ranks()));
    EXPECT_EQ(roles.replicas(), static_cast<int>(roles.map.generator.size()));
    EXPECT_EQ(world.sum(roles.trainer ? 1 : 0), static_cast<int>(roles.map.trainer.size()));
    EXPECT_EQ(world.sum(roles.leads_replica() ? 1 : 0), roles.replicas());
    EXPECT_EQ(roles.generators.member(), roles.generator);
    EXPECT_EQ(roles.text() == "idle", !roles.trainer && !roles.generator && !roles.reward);
  }
}

TEST(Roles, EveryGroupingOfFourRanks) {
  const auto& world = test::world();
  if (world.size() != 4) GTEST_SKIP() << "needs 4 ranks";
  for (const int group : {1, 2, 4}) {
    config::Options options;
    options.train.shard_group = group;
    options.generate.tensor_parallel = group;
    const Roles roles = make_roles(options, world);
    EXPECT_EQ(roles.trainers.size(Axis::data), 4 / group);
    EXPECT_EQ(roles.replicas(), 4 / group);
    expect_members(roles.trainers.along(Axis::shard), group_of(roles.shard_ranks()));
    expect_members(roles.generators.along(Axis::tensor), group_of(roles.replica_ranks()));
    std::vector<int> same_shard;
    for (const auto& shard : roles.shard_ranks())
      same_shard.push_back(shard[static_cast<size_t>(roles.trainers.place(Axis::shard))]);
    expect_members(roles.trainers.along(Axis::data), same_shard);
  }
}

TEST(Roles, RanksThatAreNotThereAreRefusedOnEveryRank) {
  const auto& world = test::world();
  const auto refusal = [&](const config::RanksOptions& which) {
    config::Options options;
    options.ranks = which;
    return config::error_of(ExitCode::configuration, [&] { make_roles(options, world); });
  };
  const std::string beyond = base::text(world.size());
  EXPECT_THAT(refusal({beyond + "-" + beyond, "", ""}), testing::HasSubstr("ranks.trainer"));
  EXPECT_THAT(refusal({"", "nodes:1", ""}),
              testing::AllOf(testing::HasSubstr("ranks.generator"), testing::HasSubstr("node 1")));
  EXPECT_THAT(refusal({"", "", "0"}), testing::HasSubstr("ranks.reward"));
  EXPECT_EQ(world.sum(1), world.size()) << "nobody waits for the others";
}

}  // namespace
}  // namespace trireme::comm
