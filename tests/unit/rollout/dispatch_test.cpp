// Prompts over the replicas of a job, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "trireme/rollout/dispatch.hpp"

#include <gtest/gtest.h>

#include <set>

#include "support/world.hpp"

namespace trireme::rollout {
namespace {

using test::world;

std::vector<PromptTask> tasks_of(uint64_t first, int64_t count, int64_t answers) {
  std::vector<PromptTask> tasks;
  for (int64_t t = 0; t < count; ++t) tasks.push_back({.group = first + static_cast<uint64_t>(t), .row = t, .prompt = 4, .answers = answers});
  return tasks;
}

TEST(Dispatch, EveryGroupHasOneReplicaThatAllKnow) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  Dispatch dispatch(roles);
  const auto share = dispatch.share(tasks_of(100, 10, 2), 0);
  const auto all = world().all_gather<size_t>(share.mine);
  EXPECT_EQ(std::set<size_t>(all.begin(), all.end()).size(), 10u);
  EXPECT_EQ(all.size(), 10u);
  for (const size_t t : share.mine) EXPECT_EQ(share.all[t], (std::pair<uint64_t, int32_t>(100 + t, world().rank())));
}

// Replicas tell each other how long answers were; the prompt with the longest is begun first, and alone where others fit beside it.
TEST(Dispatch, LearnsLengthsFromAllReplicas) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  Dispatch dispatch(roles);
  const int last = world().size() - 1;
  for (int64_t row = 0; row < 8; ++row) {
    if (world().rank() == (row == 6 ? last : 0)) dispatch.finished(row, row == 6 ? 1000 : 10);
  }
  const auto share = dispatch.share(tasks_of(0, 8, 2), 0);
  EXPECT_EQ(dispatch.lengths().expected(6), 1000);
  EXPECT_EQ(dispatch.lengths().expected(2), 10);
  const int32_t alone = share.all[6].second;
  EXPECT_EQ(alone, 0);
  for (size_t t = 0; t < 8 && last > 0; ++t) EXPECT_EQ(share.all[t].second == alone, t == 6);
  EXPECT_EQ(!share.mine.empty() && share.mine.front() == 6, world().rank() == 0);
}

TEST(Dispatch, BusyReplicasGetLess) {
  if (world().size() == 1) return;
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  Dispatch dispatch(roles);
  const auto share = dispatch.share(tasks_of(0, 6, 1), world().rank() == 0 ? 1'000'000 : 0);
  EXPECT_EQ(share.mine.empty(), world().rank() == 0);
}

// What a checkpoint says stays while there are as many replicas; then it is dealt out anew.
TEST(Dispatch, TheRecordIsKept) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  Dispatch before(roles);
  before.finished(7, 50);
  const GroupsOfReplicas open = before.share(tasks_of(40, 6, 3), world().rank() * 100).all;
  std::string bytes;
  const std::vector<uint64_t> queue{static_cast<uint64_t>(world().rank()) + 900, 7, static_cast<uint64_t>(world().rank())};
  for (const auto& part : world().all_gather(before.stored(open, queue))) bytes += part;
  Dispatch after(roles);
  after.restore(world().rank() == 0 ? bytes : std::string());
  EXPECT_EQ(after.lengths().expected(7), 50);
  // Read back before the batches are open again, it is still there.
  std::string again;
  for (const auto& part : world().all_gather(after.stored({}, {}))) again += part;
  EXPECT_EQ(again, bytes);
  EXPECT_EQ(after.queue(), queue);
  EXPECT_EQ(after.share(tasks_of(40, 6, 3), (world().size() - world().rank()) * 1000).all, open);
  after.forget_writers();
  EXPECT_TRUE(after.queue().empty());
  EXPECT_EQ(after.share(tasks_of(40, 6, 3), (world().size() - world().rank()) * 1000).all == open, world().size() == 1);
}

}  // namespace
}  // namespace trireme::rollout
