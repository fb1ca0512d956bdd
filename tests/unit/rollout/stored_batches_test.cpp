// What a checkpoint has of batches, by their ids.
#include "trireme/rollout/stored_batches.hpp"

#include <gtest/gtest.h>

#include "support/samples.hpp"

namespace trireme::rollout {
namespace {

Samples samples_with(const std::vector<uint64_t>& ids, const std::vector<size_t>& unfinished = {}) {
  std::vector<uint64_t> small;  // the fixture makes lengths of the ids
  for (const uint64_t id : ids) small.push_back(id % 1009);
  Samples samples = test::samples_of(small);
  samples.id = ids;
  for (const size_t i : unfinished) samples.finish_reason[i] = FinishReason::unfinished;
  return samples;
}

TEST(StoredBatches, AreToldApartByTheirFirstGroup) {
  // Two draws of iteration 3 that begin at multiples of 4, one of iteration 5, in no order.
  const Samples stored =
      samples_with({request_id(5, 0, 0), request_id(3, 5, 1), request_id(3, 0, 0),
                    request_id(3, 1, 2), request_id(3, 4, 0), request_id(3, 0, 1)},
                   {1, 5});
  const auto found = stored_batches(stored, [](uint64_t id) {
    return group_of(request_id(iteration_of(id), prompt_of(id) / 4 * 4, 0));
  });
  ASSERT_EQ(found.size(), 3u);
  const auto group = [](int64_t iteration, int64_t prompt) {
    return group_of(request_id(iteration, prompt, 0));
  };
  EXPECT_EQ(found[0].iteration(), 3);
  EXPECT_EQ(found[0].groups, (std::vector{group(3, 0), group(3, 1)}));
  EXPECT_EQ(found[0].sequences, 3);
  EXPECT_EQ(found[0].n, 3);
  EXPECT_EQ(found[0].unfinished.id, std::vector{request_id(3, 0, 1)});
  EXPECT_EQ(found[1].groups, (std::vector{group(3, 4), group(3, 5)}));
  EXPECT_EQ(found[1].unfinished.id, std::vector{request_id(3, 5, 1)});
  EXPECT_EQ(found[2].iteration(), 5);
}

TEST(StoredBatches, WhatIsUnfinishedIsDealtOutByGroups) {
  const Samples unfinished =
      samples_with({request_id(2, 7, 0), request_id(2, 1, 3), request_id(2, 7, 1)});
  const UnfinishedGroups groups = unfinished_groups(unfinished);
  ASSERT_EQ(groups.tasks.size(), 2u);
  EXPECT_EQ(groups.tasks[0].group, group_of(request_id(2, 1, 0)));
  EXPECT_EQ(groups.sequences, (std::vector<std::vector<int64_t>>{{1}, {0, 2}}));
  EXPECT_EQ(groups.tasks[1].answers, 2);
  EXPECT_EQ(groups.tasks[1].prompt, unfinished.prompt_len[0]);
  EXPECT_EQ(groups.tasks[1].row, unfinished.prompt_row[0]);
  EXPECT_EQ(groups.tasks[1].written, unfinished.response_len(0) + unfinished.response_len(2));
}

}  // namespace
}  // namespace trireme::rollout
