// Prompts over the replicas of a job, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "trireme/rollout/dispatch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "support/world.hpp"
#include "trireme/base/wire.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::rollout {
namespace {

using test::world;

std::vector<PromptTask> tasks_of(uint64_t first, int64_t count, int64_t answers) {
  std::vector<PromptTask> tasks;
  for (int64_t t = 0; t < count; ++t)
    tasks.push_back(
        {.group = first + static_cast<uint64_t>(t), .row = t, .prompt = 4, .answers = answers});
  return tasks;
}

TEST(Dispatch, EveryGroupHasOneReplicaThatAllKnow) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  Dispatch dispatch(roles);
  const auto share = dispatch.share(tasks_of(100, 10, 2), 0);
  const auto all = world().all_gather<size_t>(share.mine);
  EXPECT_EQ(std::set<size_t>(all.begin(), all.end()).size(), 10u);
  EXPECT_EQ(all.size(), 10u);
  for (const size_t t : share.mine)
    EXPECT_EQ(share.all[t], (std::pair<uint64_t, int32_t>(100 + t, world().rank())));
}

// Replicas tell each other how long answers were; the prompt with the longest is begun first, and
// alone where others fit beside it.
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
  const std::vector<uint64_t> queue{static_cast<uint64_t>(world().rank()) + 900, 7,
                                    static_cast<uint64_t>(world().rank())};
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
  EXPECT_EQ(after.share(tasks_of(40, 6, 3), (world().size() - world().rank()) * 1000).all == open,
            world().size() == 1);
}

// The bytes of a checkpoint as another job may have left them.
struct StoredDispatch {
  int64_t replicas = 0;
  GroupsOfReplicas open = {};
  std::string lengths = generate::AnswerLengths().to_bytes();
  static constexpr auto fields =
      std::tuple{&StoredDispatch::replicas, &StoredDispatch::open, &StoredDispatch::lengths};
};

// Also on ranks that generate nothing: one that went on would wait for the others for ever.
TEST(Dispatch, ARecordThatCannotBeIsRefusedByEveryRank) {
  config::Options options;
  if (world().size() > 1) options.ranks = {"1", std::to_string(world().size() - 1), ""};
  const comm::Roles roles = comm::make_roles(options, world());
  for (const int32_t replica : {-1, roles.replicas(), 1 << 30}) {
    const std::string bytes = base::to_bytes(
        StoredDispatch{.replicas = roles.replicas(), .open = {{7, 0}, {8, replica}}});
    Dispatch dispatch(roles);
    EXPECT_THAT(config::error_of(ExitCode::bad_data, [&] { dispatch.restore(bytes); }),
                testing::HasSubstr(std::to_string(replica) + " of "));
  }
  Dispatch dispatch(roles);
  EXPECT_THROW(dispatch.restore(""), UserError);
  EXPECT_THROW(dispatch.restore(base::to_bytes(StoredDispatch{}) + "x"), UserError);
}

// With another number of replicas nobody keeps a group, but how long answers were is known; a
// checkpoint without queues is an old one.
TEST(Dispatch, OtherReplicasKeepTheLengthsOnly) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  StoredDispatch stored;
  stored.replicas = world().size() + 1;
  for (uint64_t group = 0; group < 6; ++group) stored.open.emplace_back(group, world().size());
  generate::AnswerLengths lengths;
  lengths.add(3, 2, 90);
  stored.lengths = lengths.to_bytes();
  Dispatch dispatch(roles);
  dispatch.restore(world().rank() == 0 ? base::to_bytes(stored) : "");
  EXPECT_EQ(dispatch.lengths().expected(3), 45);
  EXPECT_TRUE(dispatch.queue().empty());
  for (const auto& [group, replica] : dispatch.share(tasks_of(0, 6, 1), 0).all)
    EXPECT_LT(replica, world().size()) << group;
}

// What is written of a group counts no more, prompts of other sets count as the mean, and an answer
// is at least a token.
TEST(Dispatch, WorkIsWhatIsStillToBeWritten) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  Dispatch dispatch(roles);
  if (world().rank() == 0) {
    for (const int64_t row : {0, 1, 2})
      dispatch.finished(row, 100 * (row + 1));  // 100, 200, 300; 200 on average
  }
  const std::vector<PromptTask> tasks{
      {.group = 1, .row = 0, .prompt = 1, .answers = 2, .written = 0},
      {.group = 2, .row = 2, .prompt = 1, .answers = 2, .written = 500},
      {.group = 3, .row = 1, .prompt = 1, .answers = 2, .written = 900},
      {.group = 4, .row = PromptTask::other_set, .prompt = 1, .answers = 2, .written = 0},
      {.group = 5, .row = 77, .prompt = 1, .answers = 1, .written = 50}};
  const auto share = dispatch.share(tasks, 0);
  const std::vector<int64_t> left{200, 100, 2, 400, 150};
  // Longest first, each to the replica with the fewest tokens.
  std::vector<int64_t> loads(static_cast<size_t>(world().size()), 0);
  std::vector<size_t> mine;
  for (const size_t t : {3, 0, 4, 1, 2}) {
    const auto fewest = std::ranges::min_element(loads) - loads.begin();
    EXPECT_EQ(share.all[t], (std::pair<uint64_t, int32_t>(tasks[t].group, fewest)));
    loads[static_cast<size_t>(fewest)] += 1 + left[t];
    if (fewest == world().rank()) mine.push_back(t);
  }
  EXPECT_EQ(share.mine, mine);
}

TEST(Dispatch, NoTasksIsNoWork) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  Dispatch dispatch(roles);
  const auto share = dispatch.share({}, 5);
  EXPECT_TRUE(share.mine.empty());
  EXPECT_TRUE(share.all.empty());
  EXPECT_EQ(dispatch.lengths().expected(), 1) << "nothing was answered yet";
}

}  // namespace
}  // namespace trireme::rollout
