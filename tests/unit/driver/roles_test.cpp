#include <gtest/gtest.h>

#include "driver/roles.hpp"
#include "support/world.hpp"
#include "trireme/base/error.hpp"

namespace trireme::driver {
namespace {

TEST(Roles, NothingSaidMeansColocated) {
  const auto& world = test::world();
  const Roles roles = make_roles(config::Options{}, world);
  EXPECT_TRUE(roles.trainer && roles.generator && roles.reward);
  EXPECT_TRUE(roles.colocated());
  EXPECT_EQ(roles.trainers->size(), world.size());
  EXPECT_EQ(roles.replicas, world.size());
  EXPECT_EQ(roles.tensor_ranks->size(), 1);
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
  EXPECT_EQ(roles.trainers->size(), roles.trainer ? 2 : 1);
  EXPECT_EQ(roles.tensor_ranks->size(), roles.generator ? 2 : 1);
  EXPECT_EQ(roles.replicas, 1);
  EXPECT_EQ(roles.leads_replica(), world.rank() == 2);
  EXPECT_EQ(roles.replica_ranks(), (std::vector<std::vector<int>>{{2, 3}}));
}

TEST(Roles, HybridShardingHasGroupsAndReplicas) {
  const auto& world = test::world();
  if (world.size() != 4) GTEST_SKIP() << "needs 4 ranks";
  config::Options options;
  options.train.shard_group = 2;
  const Roles roles = make_roles(options, world);
  EXPECT_EQ(roles.shard_groups, 2);
  EXPECT_EQ(roles.shard_group->size(), 2);
  EXPECT_EQ(roles.shard_replicas->size(), 2);
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

TEST(Threads, PhaseGivesARoleAllCoresOfItsTurn) {
  const auto& world = test::world();
  config::Options options;
  options.run.threads = "3";
  EXPECT_EQ(plan_threads(options, make_roles(options, world)).trainer, 3);
  options.run.threads = "phase";
  options.ranks = {"1", "1", ""};
  const Roles roles = make_roles(options, world);
  options.run.threads = "auto";
  const int shared = plan_threads(options, roles).trainer;
  options.run.threads = "phase";
  EXPECT_GE(plan_threads(options, roles).trainer, shared);
}

}  // namespace
}  // namespace trireme::driver
