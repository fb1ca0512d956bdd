#include "trireme/generate/dispatch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::generate {
namespace {

std::vector<int64_t> loads_of(const Assignment& assignment, std::span<const PromptWork> prompts,
                              std::vector<int64_t> loads) {
  for (size_t p = 0; p < prompts.size(); ++p)
    loads[static_cast<size_t>(assignment.replica[p])] += prompts[p].prompt + prompts[p].answers;
  return loads;
}

TEST(Dispatch, EqualPromptsGoRound) {
  const std::vector<PromptWork> prompts(7, {.prompt = 3, .answers = 8});
  const Assignment assignment = assign(prompts, std::vector<int64_t>(3, 0));
  EXPECT_EQ(assignment.replica, (std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(assignment.order, (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(Dispatch, TheFewestOutstandingTokensGetTheNextOne) {
  const std::vector<PromptWork> prompts(4, {.prompt = 0, .answers = 10});
  const Assignment assignment = assign(prompts, std::vector<int64_t>{25, 0, 9});
  EXPECT_EQ(assignment.replica, (std::vector<int32_t>{1, 2, 1, 2}));
}

TEST(Dispatch, LongestFirst) {
  const std::vector<PromptWork> prompts{{1, 5}, {9, 5}, {1, 50}, {1, 7}};
  const Assignment assignment = assign(prompts, std::vector<int64_t>(2, 0));
  EXPECT_EQ(assignment.order, (std::vector<size_t>{2, 3, 0, 1}));
  EXPECT_EQ(assignment.replica, (std::vector<int32_t>{1, 1, 0, 1}));
}

TEST(Dispatch, WhatIsDecidedStays) {
  const std::vector<PromptWork> prompts{{0, 10, 1}, {0, 10}, {0, 10}, {0, 30, 0}};
  const Assignment assignment = assign(prompts, std::vector<int64_t>(2, 0));
  EXPECT_EQ(assignment.replica, (std::vector<int32_t>{1, 1, 1, 0}));
}

// Graham's bound for longest-first list scheduling: at most 4/3 of the best, which is at least the
// mean and the longest.
TEST(Dispatch, NoReplicaHasMuchMoreThanTheMean) {
  for (const int replicas : {1, 2, 5, 64, 128}) {
    std::vector<float> z(1024);
    base::normals(7, static_cast<uint64_t>(replicas), 0, z);
    std::vector<PromptWork> prompts;
    for (const float one : z)
      prompts.push_back({.answers = 1 + static_cast<int64_t>(500 * std::exp(one))});
    const std::vector<int64_t> idle(static_cast<size_t>(replicas), 0);
    const auto loads = loads_of(assign(prompts, idle), prompts, idle);
    const int64_t sum = std::accumulate(loads.begin(), loads.end(), int64_t{0});
    const int64_t longest = std::ranges::max(prompts, {}, &PromptWork::answers).answers;
    EXPECT_LE(3 * std::ranges::max(loads), 4 * std::max(longest, sum / replicas + 1)) << replicas;
  }
}

TEST(AnswerLengths, KnowPromptsAndAll) {
  AnswerLengths lengths;
  EXPECT_EQ(lengths.expected(3), 1);
  lengths.add(3, 4, 40);
  EXPECT_EQ(lengths.expected(3), 10);
  EXPECT_EQ(lengths.expected(5), 10) << "as all";
  lengths.add(5, 4, 120);
  EXPECT_EQ(lengths.expected(5), 30);
  EXPECT_EQ(lengths.expected(3), 10);
  EXPECT_EQ(lengths.expected(), 20);
  for (int draw = 0; draw < 20; ++draw) lengths.add(3, 4, 400);
  EXPECT_NEAR(static_cast<double>(lengths.expected(3)), 100, 2) << "what is new counts most";
}

TEST(AnswerLengths, ComeBackFromBytes) {
  AnswerLengths lengths;
  for (int64_t row = 50; row > 0; --row) lengths.add(row * row, 2, 2 * row);
  const AnswerLengths back = AnswerLengths::from_bytes(lengths.to_bytes());
  for (int64_t row = 0; row < 2600; ++row) ASSERT_EQ(back.expected(row), lengths.expected(row));
  EXPECT_EQ(back.to_bytes(), lengths.to_bytes());
  EXPECT_THROW(AnswerLengths::from_bytes(lengths.to_bytes().substr(1)), UserError);
}

}  // namespace
}  // namespace trireme::generate
