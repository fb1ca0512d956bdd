// Properties of the plan of optimizer steps and micro-batches.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "trireme/base/error.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/ppo/rewards.hpp"

namespace trireme::test {
namespace {

using namespace ppo;

std::vector<int64_t> lengths(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(5 + (i * 7919) % 300);
  return out;
}

PlanInput plan_input(int64_t n, int ranks) {
  PlanInput out;
  out.lengths = lengths(n);
  out.ranks = ranks;
  out.batch_size = 16;
  out.micro_batch_tokens = 700;
  out.seed = 42;
  return out;
}

int64_t tokens(const PlanInput& input, const std::vector<int64_t>& bin) {
  return std::accumulate(bin.begin(), bin.end(), int64_t{0}, [&](int64_t sum, int64_t i) {
    return sum + input.lengths[static_cast<size_t>(i)];
  });
}

void check_plan(const PlanInput& input) {
  const auto steps = plan_epoch(input);
  std::multiset<int64_t> seen;
  for (const OptimizerStep& step : steps) {
    EXPECT_LE(static_cast<int64_t>(step.sequences.size()), input.batch_size);
    ASSERT_EQ(step.micro_batches.size(), static_cast<size_t>(input.ranks));
    std::multiset<int64_t> in_step;
    for (size_t rank = 0; rank < step.micro_batches.size(); ++rank) {
      const Bins& mine = step.micro_batches[rank];
      EXPECT_EQ(static_cast<int64_t>(mine.size()), step.micro_batches_per_rank)
          << "collectives must match";
      bool ended = false;
      for (const auto& bin : mine) {
        EXPECT_TRUE(bin.size() <= 1 || tokens(input, bin) <= input.micro_batch_tokens);
        EXPECT_FALSE(ended && !bin.empty()) << "empty micro-batches come last";
        ended = ended || bin.empty();
        in_step.insert(bin.begin(), bin.end());
        for (const int64_t i : bin) {
          if (!input.owner.empty()) {
            EXPECT_EQ(input.owner[static_cast<size_t>(i)], static_cast<int>(rank));
          }
        }
      }
    }
    EXPECT_EQ(in_step, std::multiset<int64_t>(step.sequences.begin(), step.sequences.end()));
    seen.insert(in_step.begin(), in_step.end());
  }
  EXPECT_EQ(static_cast<int64_t>(steps.size()),
            optimizer_steps(static_cast<int64_t>(input.lengths.size()), input.batch_size));
  ASSERT_EQ(seen.size(), input.lengths.size()) << "every sequence once";
  for (size_t i = 0; i < input.lengths.size(); ++i)
    EXPECT_EQ(seen.count(static_cast<int64_t>(i)), 1u);
}

TEST(Plan, EverySequenceOnceWithinTheBudget) {
  for (const int ranks : {1, 2, 3, 8, 40}) {
    for (const int64_t n : {0, 1, 15, 16, 17, 64, 101}) check_plan(plan_input(n, ranks));
  }
}

TEST(Plan, KeepsOwners) {
  PlanInput input = plan_input(70, 3);
  for (int i = 0; i < 70; ++i) input.owner.push_back(i < 50 ? 0 : 2);  // rank 1 has nothing
  check_plan(input);
}

TEST(Plan, StepsDoNotDependOnTheRankCount) {
  const auto one = plan_epoch(plan_input(100, 1)), four = plan_epoch(plan_input(100, 4));
  ASSERT_EQ(one.size(), four.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i].sequences, four[i].sequences);
  PlanInput other = plan_input(100, 1);
  other.shuffle = 1;
  EXPECT_NE(plan_epoch(other)[0].sequences, one[0].sequences);
}

TEST(Plan, RanksAreBalanced) {
  const PlanInput input = plan_input(512, 4);
  for (const OptimizerStep& step : plan_epoch(input)) {
    int64_t most = 0, all = 0;
    for (const Bins& mine : step.micro_batches) {
      int64_t mine_tokens = 0;
      for (const auto& bin : mine) mine_tokens += tokens(input, bin);
      most = std::max(most, mine_tokens);
      all += mine_tokens;
    }
    EXPECT_LT(static_cast<double>(most) * 4, static_cast<double>(all) * 1.35);
  }
}

TEST(Plan, LongSequenceIsAMicroBatchOfItsOwn) {
  const std::vector<int64_t> with_giant{5000, 10, 10};
  const Bins bins = micro_batches(with_giant, 100, 1);
  ASSERT_EQ(bins.size(), 2u);
  EXPECT_EQ(micro_batches(with_giant, 100, 5).size(), 5u);
  EXPECT_EQ(micro_batches({}, 100, 1), Bins(1));
}

TEST(Rewards, DynamicFilteringExcludesBothEnds) {
  const std::vector<float> none{0, 0}, some{0, 1}, all{1, 1};
  EXPECT_FALSE(keep_group(none, {0, 1}));
  EXPECT_TRUE(keep_group(some, {0, 1}));
  EXPECT_FALSE(keep_group(all, {0, 1}));
}

TEST(Rewards, EqualRewardsOfAGroupGiveExactlyZero) {
  const std::vector<float> equal(
      7, 0.1f);  // not representable: a rounded mean divided by 1e-9 would not be 0
  for (const float value : apply_baseline(equal, config::Estimator::group_norm, 7))
    EXPECT_EQ(value, 0.f);
}

TEST(Rewards, BadOptionsAreNamed) {
  const std::vector<float> two(2, 1.f);
  EXPECT_THROW(apply_baseline(two, config::Estimator::rloo, 1), UserError);
  LengthPenalty penalty;
  penalty.stop_properly_coef = 1.5;
  EXPECT_THROW(apply_length_penalties({{1.f}, {1}, {1}}, penalty), UserError);
}

// The numbers of the paper's reference implementation and of prime-rl's tests.
TEST(Baselines, MaxRlWeighsSuccessesByHowRareTheyAre) {
  const std::vector<float> rewards{1, 0, 0, 0, /**/ 0, 0, 0, 0, /**/ 1, 1, 1, 1, /**/ 1, 1, 0, 0.f};
  const std::vector<float> expected{3,      -1, -1, -1, /**/ 0, 0, 0,  0,
                                    /**/ 0, 0,  0,  0,  /**/ 1, 1, -1, -1};
  EXPECT_EQ(apply_baseline(rewards, config::Estimator::max_rl, 4), expected);
  const std::vector<float> punished{1, -0.5f};
  EXPECT_THROW(apply_baseline(punished, config::Estimator::max_rl, 2), UserError);
}

}  // namespace
}  // namespace trireme::test
