// What is left out of a step's loss, and the totals that it is divided by.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "support/one_rank.hpp"
#include "trireme/ppo/entropy_filter.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/preference.hpp"

namespace trireme::test {
namespace {

using namespace ppo;

double quantile(std::vector<float> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(std::floor(at));
  const size_t high = std::min(low + 1, values.size() - 1);
  return double{values[low]} +
         (double{values[high]} - double{values[low]}) * (at - static_cast<double>(low));
}

TEST(EntropyFilter, IsTheQuantileOfSortedValues) {
  std::mt19937 random(5);
  for (const size_t count : {1u, 2u, 3u, 10u, 257u, 1000u}) {
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i)
      values.push_back(static_cast<float>(random() % 41) / 7 - (i % 5 == 0 ? 2.f : 0.f));
    values.front() = -0.f;
    for (const double top : {1.0, 0.9, 0.55, 0.2, 0.01}) {
      EXPECT_NEAR(top_entropy_threshold(values, top, no_ranks), quantile(values, 1 - top), 1e-12)
          << count << " values, top " << top;
    }
  }
  EXPECT_EQ(top_entropy_threshold({}, 0.2, no_ranks), -INFINITY);
}

TEST(Truncated, AnswersAreNoActionsAnyMore) {
  Samples samples;
  for (const auto reason : {FinishReason::length, FinishReason::stop}) {
    samples.add({.id = static_cast<uint64_t>(samples.size()),
                 .ids = {1, 2, 3, 4},
                 .action_ranges = {{1, 4}},
                 .finish_reason = reason});
  }
  samples.reward = {1, 0.5f};
  Experience experience = Experience::from(samples);
  EXPECT_EQ(mask_truncated(experience), 3);
  EXPECT_EQ(experience.mask.sum().item<int64_t>(), 3);
  EXPECT_EQ(action_counts(experience.samples), (std::vector<int64_t>{0, 3}));
  config::Options options;
  const auto counted = counted_sequences(experience.samples);
  EXPECT_EQ(step_normalizer(counted, options, no_ranks).sequences, 1);
  EXPECT_EQ(step_normalizer(counted, options, no_ranks).positive_tokens, 3);
  options.actor.loss_count_empty = true;
  EXPECT_EQ(step_normalizer(counted, options, no_ranks).sequences, 2);
}

TEST(Totals, TheLengthOfASequenceIsTheLongestAnswers) {
  config::Options options;
  options.data.max_len = 100;
  EXPECT_EQ(step_normalizer({}, options, no_ranks).sequence_tokens, 100);
  options.rollout.max_new_tokens = 40;
  EXPECT_EQ(step_normalizer({}, options, no_ranks).sequence_tokens, 40);
  options.actor.loss_scale_factor = 7.5;
  EXPECT_EQ(step_normalizer({}, options, no_ranks).sequence_tokens, 7.5);
}

TEST(OrderStatistics, EqualValuesShareNoMatch) {
  EXPECT_EQ(matched(std::vector<float>{3, 1, 3, 2}, std::vector<float>{10, 40, 20, 30}),
            (std::vector<float>{30, 10, 40, 20}));
  EXPECT_TRUE(matched({}, {}).empty());
}

}  // namespace
}  // namespace trireme::test
