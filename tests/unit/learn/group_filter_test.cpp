// Dynamic filtering over several draws, against a count that every rank can make.
#include "torch/torch.hpp"

#include "trireme/learn/group_filter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "support/samples.hpp"
#include "trireme/base/error.hpp"

namespace trireme::learn {
namespace {

using test::world;
using ::testing::HasSubstr;

constexpr int64_t answers = 4;

bool has_something_to_teach(int64_t prompt) { return prompt % 3 == 0; }

// This rank's part of prompts first, ..., first + count - 1, of which one in `every` teaches
// something: answers of a prompt lie on different ranks.
Samples answers_of(int64_t iteration, int64_t first, int64_t count, int every) {
  std::vector<uint64_t> ids;
  std::vector<float> rewards;
  for (int64_t prompt = first; prompt < first + count; ++prompt) {
    for (int64_t s = 0; s < answers; ++s) {
      if ((prompt + s) % world().size() != world().rank()) continue;
      ids.push_back(request_id(iteration, prompt, s));
      rewards.push_back(prompt % every == 0 ? static_cast<float>(s % 2) : 1.0f);
    }
  }
  std::vector<uint64_t> small;  // the fixture makes lengths of the ids
  for (const uint64_t id : ids) small.push_back(id % 1009);
  Samples samples = test::samples_of(small);
  samples.id = ids;
  samples.reward = rewards;
  return samples;
}

Samples draw(int64_t first, int64_t count, bool any = true) {
  return answers_of(1, first, count, any ? 3 : 1 << 20);
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
  GroupFilter filter(options, world(), {}, {});
  int64_t next = 0, informative = 0;
  EXPECT_EQ(filter.next_draw(), 8) << "all are expected to teach something";
  while (const int64_t count = filter.next_draw()) {
    EXPECT_LE(count, 8);
    for (int64_t prompt = next; prompt < next + count; ++prompt)
      informative += has_something_to_teach(prompt);
    EXPECT_EQ(filter.next_ordinal(), next);
    filter.begun(count);
    filter.add(draw(next, count), count);
    next += count;
  }
  EXPECT_TRUE(filter.done());
  EXPECT_EQ(filter.state().drawn, next);
  report::IterationMetrics metrics;
  const GroupFilter::Result result = filter.finish(metrics);
  EXPECT_EQ(everywhere(result.batch), 8 * answers);
  EXPECT_EQ(everywhere(result.surplus), (informative - 8) * answers);
  EXPECT_EQ(result.skipped, next - informative);
  EXPECT_DOUBLE_EQ(result.next.share_before,
                   static_cast<double>(8 + informative) / static_cast<double>(8 + next));
  EXPECT_EQ(metrics.get("filter_drawn"), next);
  EXPECT_EQ(metrics.get("filter_skipped"), next - informative);
  EXPECT_EQ(metrics.get("filter_surplus"), informative - 8);
}

TEST(GroupFilter, ASurplusComesFirst) {
  const config::Options options = options_of(2);
  GroupFilter filter(options, world(), draw(0, 4), {.share_before = 0.5});  // prompts 0 and 3 teach
  EXPECT_EQ(filter.next_draw(), 0);
  report::IterationMetrics metrics;
  const GroupFilter::Result result = filter.finish(metrics);
  EXPECT_EQ(everywhere(result.batch), 2 * answers);
  EXPECT_EQ(result.surplus.size(), 0);
  EXPECT_EQ(result.next, (FilterState{.share_before = 0.5})) << "nothing was drawn";
}

TEST(GroupFilter, AShortageEndsTheRunOrMakesTheBatchSmaller) {
  config::Options options = options_of(2);
  options.algo.dynamic_filtering_patience = 3;
  options.algo.dynamic_filtering_shortage = config::FilteringShortage::stop;
  GroupFilter stops(options, world(), {}, {});
  int64_t next = 1;
  try {
    while (const int64_t count = stops.next_draw()) {
      stops.begun(count);
      stops.add(draw(next, count, false), count);
      next += count;
    }
    FAIL() << "it found something";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_THAT(error.what(), HasSubstr("only 0 of 2 prompts"));
    EXPECT_EQ(stops.state().drawn, 6) << "three times the batch";
  }
  options.algo.dynamic_filtering_shortage = config::FilteringShortage::smaller;
  GroupFilter smaller(options, world(), draw(3, 1), {});
  for (int64_t count = smaller.next_draw(); count > 0; count = smaller.next_draw()) {
    EXPECT_FALSE(smaller.done());
    smaller.begun(count);
    smaller.add(draw(next, count, false), count);
  }
  EXPECT_TRUE(smaller.done());
  report::IterationMetrics metrics;
  EXPECT_EQ(everywhere(smaller.finish(metrics).batch), answers) << "one of two prompts";
}

// Many iterations of batches of 8, `ahead` of them under way: draws are looked at in their order,
// and which prompts teach something is drawn in stretches.
TEST(GroupFilter, AheadItDrawsForLaterIterationsAndNothingGetsOlderThanOneVersionMore) {
  for (const int64_t ahead : {0, 1, 2, 4}) {
    config::Options options = options_of(8);
    options.train.async_depth = ahead;
    struct Draw {
      int64_t iteration, ordinal, prompts;
      int every;  // one in so many prompts teaches something
    };
    constexpr int every[] = {1, 1, 5, 2, 7};
    std::deque<Draw> under_way;
    Samples surplus;
    FilterState state;
    int64_t oldest = 0, most = 0, learned = 0, informative = 0;
    for (int64_t iteration = 1; iteration <= 60; ++iteration) {
      GroupFilter filter(options, world(), surplus, state);
      for (;;) {
        for (;;) {
          DrawsUnderWay now{.draws = std::ssize(under_way)};
          for (const Draw& one : under_way) now.prompts += one.prompts;
          const int64_t count = filter.next_draw(now, ahead);
          if (count == 0) break;
          EXPECT_LE(count, 8);
          under_way.push_back({iteration, filter.next_ordinal(), count,
                               every[(iteration / 3 + filter.state().draws) % std::ssize(every)]});
          filter.begun(count);
        }
        most = std::max(most, std::ssize(under_way));
        if (filter.done()) break;
        const Draw one = under_way.front();
        under_way.pop_front();
        filter.add(answers_of(one.iteration, one.ordinal, one.prompts, one.every), one.prompts);
        for (int64_t prompt = one.ordinal; prompt < one.ordinal + one.prompts; ++prompt)
          informative += prompt % one.every == 0;
        GroupFilter again(options, world(), filter.found(), filter.state());
        EXPECT_EQ(again.done(), filter.done()) << "as a start inside the iteration goes on";
      }
      report::IterationMetrics metrics;
      const GroupFilter::Result result = filter.finish(metrics);
      const auto ids = world().all_gather<uint64_t>(result.batch.id);
      EXPECT_EQ(std::ssize(ids), 8 * answers);
      learned += std::ssize(ids) / answers;
      for (const uint64_t id : ids) oldest = std::max(oldest, iteration - iteration_of(id));
      surplus = result.surplus;
      state = result.next;
      EXPECT_EQ(metrics.get("filter_surplus") + static_cast<double>(learned),
                static_cast<double>(informative))
          << "each once";
    }
    EXPECT_EQ(most, ahead + 1);
    EXPECT_EQ(oldest, ahead + 1) << "shares that jump bring it to its bound and not beyond";
  }
}

}  // namespace
}  // namespace trireme::learn
