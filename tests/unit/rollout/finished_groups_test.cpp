// Which groups an iteration learns from, chosen by the first generator and told to all ranks, at np
// 1, 2 and 4.
#include "torch/torch.hpp"

#include "trireme/rollout/finished_groups.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/world.hpp"

namespace trireme::rollout {
namespace {

using test::world;

// Until every rank knows.
FinishedGroups::Chosen chosen_of(FinishedGroups& groups, bool stop = false) {
  comm::wait_until("the choice", [&] { return groups.poll(stop); });
  return groups.take();
}

// Nothing of this rank is under way, so that what follows on any rank comes behind it.
void settle_mail(FinishedGroups& groups) {
  bool all = false;
  while (!all) {
    groups.receive();
    all = world().all(groups.quiet());
  }
}

// Groups 10.., written by the ranks in turns, three sequences each.
constexpr uint64_t first_group = 10;
constexpr int64_t sequences = 3;
bool writes(uint64_t group) {
  return static_cast<int>(group % static_cast<uint64_t>(world().size())) == world().rank();
}

void expect_all(FinishedGroups& groups, uint64_t count) {
  for (uint64_t g = first_group; g < first_group + count; ++g) {
    if (writes(g)) groups.expect(g, sequences);
  }
}

void finish(FinishedGroups& groups, uint64_t group) {
  for (int64_t s = 0; s < sequences && writes(group); ++s) groups.finished(group);
}

TEST(FinishedGroups, TheOldestOfThoseThatAreWholeOnEveryRank) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  FinishedGroups groups(roles, {}, 2);
  expect_all(groups, 8);
  if (writes(11)) {  // not whole: it must not be chosen, though it is older
    groups.finished(11);
    groups.finished(11);
  }
  for (const uint64_t g : {17, 12, 14}) finish(groups, g);
  settle_mail(groups);
  const auto first = chosen_of(groups);
  EXPECT_EQ(first.groups, (std::vector<uint64_t>{12, 14}));
  EXPECT_FALSE(first.left);
  if (writes(11)) groups.finished(11);  // the third
  const auto second = chosen_of(groups);
  EXPECT_EQ(second.groups, (std::vector<uint64_t>{11, 17})) << "what was left of the first choice";
  settle_mail(groups);
  EXPECT_FALSE(groups.poll(false)) << "the four others are under way";
  world().barrier();
}

// Over many iterations each group is chosen once. Only one message has room on its way, and between
// two choices no rank asks for mail.
TEST(FinishedGroups, EveryGroupIsLearnedFromOnce) {
  constexpr uint64_t count = 24;
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  FinishedGroups groups(roles, {.messages = 1, .bytes = 1 << 20}, 4);
  expect_all(groups, count);
  for (uint64_t g = first_group + count; g-- > first_group;) finish(groups, g);
  std::set<uint64_t> seen;
  for (uint64_t iteration = 0; iteration < count / 4; ++iteration) {
    const auto chosen = chosen_of(groups);
    EXPECT_EQ(chosen.groups.size(), 4u);
    EXPECT_TRUE(std::ranges::is_sorted(chosen.groups));
    EXPECT_EQ(world().broadcast_value(chosen.groups, 0), chosen.groups) << "the same on every rank";
    seen.insert(chosen.groups.begin(), chosen.groups.end());
  }
  EXPECT_EQ(seen.size(), count);
  EXPECT_EQ(*seen.begin(), first_group);
  EXPECT_EQ(*seen.rbegin(), first_group + count - 1);
  settle_mail(groups);
}

TEST(FinishedGroups, AStopEndsTheWait) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  FinishedGroups groups(roles, {}, 3);
  expect_all(groups, 2);
  finish(groups, 10);
  settle_mail(groups);
  const auto left = chosen_of(groups, world().rank() == 0);
  EXPECT_TRUE(left.left);
  EXPECT_TRUE(left.groups.empty());
  finish(groups, 11);
  groups.found(12);  // of a checkpoint: every rank says so, one counts it
  const auto then = chosen_of(groups);
  EXPECT_EQ(then.groups, (std::vector<uint64_t>{10, 11, 12})) << "the stop has taken nothing";
  EXPECT_FALSE(then.left);
  settle_mail(groups);
}

TEST(FinishedGroups, OnlyTheFirstGeneratorsStopCounts) {
  if (world().size() == 1) GTEST_SKIP() << "needs a rank that does not decide";
  config::Options options;
  options.ranks = {"1", std::to_string(world().size() - 1), ""};
  const comm::Roles roles = comm::make_roles(options, world());
  FinishedGroups groups(roles, {}, 1);
  EXPECT_FALSE(groups.poll(world().rank() == 0)) << "a trainer wants to stop";
  settle_mail(groups);
  EXPECT_FALSE(groups.poll(world().rank() == 0));
  world().barrier();
  if (world().rank() == 1) {
    groups.expect(5, 1);
    groups.finished(5);
  }
  EXPECT_EQ(chosen_of(groups).groups, std::vector<uint64_t>{5})
      << "ranks without a generator know it too";
  settle_mail(groups);
}

}  // namespace
}  // namespace trireme::rollout
