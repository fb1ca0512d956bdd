// Dynamic filtering over several draws, against a count that every rank can make.
#include "torch/torch.hpp"

#include "trireme/learn/group_filter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/samples.hpp"
#include "trireme/base/error.hpp"

namespace trireme::learn {
namespace {

using ::testing::HasSubstr;
using test::world;

constexpr int64_t answers = 4;

bool has_something_to_teach(int64_t prompt) { return prompt % 3 == 0; }

// This rank's part of prompts first, ..., first + count - 1: answers of a prompt lie on different ranks.
Samples draw(int64_t first, int64_t count, bool any = true) {
  std::vector<uint64_t> ids;
  std::vector<float> rewards;
  for (int64_t prompt = first; prompt < first + count; ++prompt) {
    for (int64_t s = 0; s < answers; ++s) {
      if ((prompt + s) % world().size() != world().rank()) continue;
      ids.push_back(request_id(1, prompt, s));
      rewards.push_back(any && has_something_to_teach(prompt) ? static_cast<float>(s % 2) : 1.0f);
    }
  }
  std::vector<uint64_t> small;  // the fixture makes lengths of the ids
  for (const uint64_t id : ids) small.push_back(id % 1009);
  Samples samples = test::samples_of(small);
  samples.id = ids;
  samples.reward = rewards;
  return samples;
}

config::Options options_of(int64_t batch) {
  config::Options options;
  options.rollout.batch_size = batch;
  options.rollout.n_samples_per_prompt = answers;
  options.algo.dynamic_filtering_enable = true;
  return options;
}

int64_t everywhere(const Samples& samples) { return world().sum(samples.size()); }

TEST(GroupFilter, DrawsWhatIsMissingAndKeepsTheRest) {
  const config::Options options = options_of(8);
  GroupFilter filter(options, world(), {}, 1.0);
  int64_t next = 0, informative = 0;
  EXPECT_EQ(filter.next_draw(), 8) << "all are expected to teach something";
  while (const int64_t count = filter.next_draw()) {
    EXPECT_LE(count, 8);
    for (int64_t prompt = next; prompt < next + count; ++prompt) informative += has_something_to_teach(prompt);
    filter.add(draw(next, count), count);
    next += count;
  }
  EXPECT_EQ(filter.drawn(), next);
  report::IterationMetrics metrics;
  const GroupFilter::Result result = filter.finish(metrics);
  EXPECT_EQ(everywhere(result.batch), 8 * answers);
  EXPECT_EQ(everywhere(result.surplus), (informative - 8) * answers);
  EXPECT_EQ(result.skipped, next - informative);
  EXPECT_DOUBLE_EQ(result.informative_share, static_cast<double>(8 + informative) / static_cast<double>(8 + next));
  EXPECT_EQ(metrics.get("filter_drawn"), next);
  EXPECT_EQ(metrics.get("filter_skipped"), next - informative);
  EXPECT_EQ(metrics.get("filter_surplus"), informative - 8);
}

TEST(GroupFilter, ASurplusComesFirst) {
  const config::Options options = options_of(2);
  GroupFilter filter(options, world(), draw(0, 4), 0.5);  // prompts 0 and 3 teach
  EXPECT_EQ(filter.next_draw(), 0);
  report::IterationMetrics metrics;
  const GroupFilter::Result result = filter.finish(metrics);
  EXPECT_EQ(everywhere(result.batch), 2 * answers);
  EXPECT_EQ(result.surplus.size(), 0);
  EXPECT_EQ(result.informative_share, 0.5) << "nothing was drawn";
}

TEST(GroupFilter, AShortageEndsTheRunOrMakesTheBatchSmaller) {
  config::Options options = options_of(2);
  options.algo.dynamic_filtering_patience = 3;
  options.algo.dynamic_filtering_shortage = config::FilteringShortage::stop;
  GroupFilter stops(options, world(), {}, 1.0);
  int64_t next = 1;
  try {
    while (const int64_t count = stops.next_draw()) {
      stops.add(draw(next, count, false), count);
      next += count;
    }
    FAIL() << "it found something";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_THAT(error.what(), HasSubstr("only 0 of 2 prompts"));
    EXPECT_EQ(stops.drawn(), 6) << "three times the batch";
  }
  options.algo.dynamic_filtering_shortage = config::FilteringShortage::smaller;
  GroupFilter smaller(options, world(), draw(3, 1), 1.0);
  for (int64_t count = smaller.next_draw(); count > 0; count = smaller.next_draw()) smaller.add(draw(next, count, false), count);
  report::IterationMetrics metrics;
  EXPECT_EQ(everywhere(smaller.finish(metrics).batch), answers) << "one of two prompts";
}

}  // namespace
}  // namespace trireme::learn
