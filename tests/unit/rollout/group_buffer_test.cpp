// Which groups an iteration learns from: random histories of runs against the rules in words.
#include "trireme/rollout/group_buffer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>

#include "trireme/base/error.hpp"
#include "trireme/base/samples.hpp"

namespace trireme::rollout {
namespace {

using ::testing::HasSubstr;

using Dice = std::mt19937_64;

int64_t below(Dice& dice, int64_t bound) {
  return static_cast<int64_t>(dice() % static_cast<uint64_t>(bound));
}

uint64_t id(int64_t iteration, int64_t ordinal) {
  return group_of(request_id(iteration, ordinal, 0));
}

// What a simulated run does with its groups: lengths and whether they teach something are drawn
// when a group is begun, replicas write in any order.
class History {
 public:
  History(const GroupPolicy& policy, uint64_t seed, bool restarts = false)
      : policy_(policy), buffer_(policy), dice_(seed), restarts_(restarts) {}

  // The groups that each iteration learned from.
  std::vector<std::vector<uint64_t>> run() {
    std::vector<std::vector<uint64_t>> learned;
    for (int64_t iteration = 1; iteration <= policy_.iterations; ++iteration) {
      learned.push_back(iterate(iteration));
      if (restarts_ && dice_() % 3 == 0) restart(iteration + 1);
    }
    return learned;
  }

  const std::vector<uint64_t>& drawn() const { return drawn_; }
  bool teaches(uint64_t group) const { return teaches_.at(group); }
  int64_t most_under_way() const { return most_under_way_; }

 private:
  void draw(int64_t iteration) {
    for (;;) {
      const GroupBuffer::Wish wish = buffer_.to_draw(iteration);
      EXPECT_GE(wish.prompts, 0);
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < wish.prompts; ++i) rows.push_back(next_row_++);
      if (wish.prompts > 0) buffer_.admit(iteration, rows);
      const GroupBuffer::Draw draw = buffer_.start(++number_, iteration);
      if (draw.groups.empty()) return;
      EXPECT_TRUE(std::ranges::is_sorted(draw.groups));
      for (size_t i = 0; i < draw.groups.size(); ++i) {
        const uint64_t group = draw.groups[i];
        if (row_.contains(group)) {
          EXPECT_EQ(row_[group], draw.rows[i]) << "a group that begins again keeps its prompt";
        } else {
          drawn_.push_back(group);
        }
        row_[group] = draw.rows[i];
        length_.emplace(group, 1 + below(dice_, 50));
        teaches_.emplace(group, !policy_.filters || dice_() % 3 == 0);
        EXPECT_TRUE(writing_.insert(group).second) << "begun twice at a time";
        draw_of_[group] = number_;
      }
      most_under_way_ = std::max(most_under_way_, std::ssize(writing_) + std::ssize(written_));
    }
  }

  // One group more is written, or left since it is too long.
  void write_one() {
    if (writing_.empty()) throw std::logic_error("it waits for nothing");
    const uint64_t group = *std::next(writing_.begin(), below(dice_, std::ssize(writing_)));
    writing_.erase(group);
    if (length_[group] > buffer_.longest()) return buffer_.left(group);
    written_.insert(group);
    buffer_.written(group, length_[group]);
  }

  std::vector<uint64_t> iterate(int64_t iteration) {
    while (!buffer_.ready()) {
      draw(iteration);
      if (buffer_.ready()) break;
      std::set<uint64_t> begun = writing_;
      begun.insert(written_.begin(), written_.end());
      auto choice = buffer_.choose();
      for (; !choice; choice = buffer_.choose()) write_one();
      expect_by_the_rule(*choice, begun, iteration);
      buffer_.apply(*choice);
      std::vector<uint64_t> kept;
      for (const uint64_t group : choice->groups) {
        writing_.erase(group);  // in the order of drawing they are written now
        written_.erase(group);
        if (teaches_[group]) kept.push_back(group);
      }
      if (policy_.order == Order::shortest) writing_.clear(), written_.clear();
      buffer_.scored(kept);
      found_ += std::ssize(kept);
    }
    const GroupBuffer::Taken taken = buffer_.take();
    found_ = taken.rest;
    return taken.groups;
  }

  void expect_by_the_rule(const GroupBuffer::Choice& choice, const std::set<uint64_t>& begun,
                          int64_t iteration) {
    std::vector<uint64_t> wanted;
    const auto enough = static_cast<size_t>(policy_.wanted - found_);
    if (policy_.order == Order::drawn) {  // the oldest draw
      for (const uint64_t group : begun) {
        if (draw_of_[group] == draw_of_[*begun.begin()]) wanted.push_back(group);
      }
    } else if (policy_.order == Order::finished) {  // the oldest of those that are written
      for (const uint64_t group : written_) {
        if (wanted.size() < enough) wanted.push_back(group);
      }
    } else {
      wanted = shortest(begun, iteration, policy_.wanted - found_);
    }
    EXPECT_EQ(choice.groups, wanted);
    EXPECT_EQ(choice.groups.size() + choice.surplus.size(),
              policy_.order == Order::shortest ? written_.size() : choice.groups.size());
  }

  // The oldest that are whole within the shortest length at which enough groups, and all that have
  // waited for four iterations, are.
  std::vector<uint64_t> shortest(const std::set<uint64_t>& begun, int64_t iteration,
                                 int64_t wanted) {
    std::set<uint64_t> due;
    for (const uint64_t group : begun) {
      const bool waited = iteration_of(group << 20) + 3 < iteration;
      if (waited && std::ssize(due) < wanted) due.insert(group);
    }
    for (int64_t length = 1;; ++length) {
      std::vector<uint64_t> whole;
      const auto fits = [&](uint64_t group) { return length_[group] <= length; };
      std::ranges::copy_if(begun, std::back_inserter(whole), fits);
      if (whole.size() < begun.size() &&
          (std::ssize(whole) < wanted || !std::ranges::all_of(due, fits)))
        continue;
      whole.resize(std::min(whole.size(), static_cast<size_t>(wanted)));
      return whole;
    }
  }

  // As a checkpoint between two iterations stores the groups.
  void restart(int64_t iteration) {
    const std::vector<CarriedPrompt> waiting = buffer_.waiting();
    const FilterState filter = buffer_.filter();
    const std::vector<uint64_t> scored = scored_groups();
    buffer_ = GroupBuffer(policy_);
    buffer_.restore(waiting, filter);
    buffer_.restore_scored(scored);
    std::map<int64_t, std::vector<uint64_t>> draws;
    for (const uint64_t group : writing_) draws[draw_of_[group]].push_back(group);
    for (const uint64_t group : written_) draws[draw_of_[group]].push_back(group);
    const std::vector<uint64_t> unfinished(writing_.begin(), writing_.end());
    for (auto& [number, groups] : draws) {
      std::ranges::sort(groups);
      buffer_.restore_draw(number, iteration, groups, unfinished);
    }
  }

  // Scored ones that nobody has learned from: they come first in the next take().
  std::vector<uint64_t> scored_groups() {
    GroupBuffer copy = buffer_;
    std::vector<uint64_t> all;
    for (int64_t rest = 1; rest > 0;) {
      const GroupBuffer::Taken taken = copy.take();
      all.insert(all.end(), taken.groups.begin(), taken.groups.end());
      rest = taken.rest;
    }
    return all;
  }

  GroupPolicy policy_;
  GroupBuffer buffer_;
  Dice dice_;
  bool restarts_;
  int64_t next_row_ = 0, number_ = 0, most_under_way_ = 0;
  int64_t found_ = 0;            // scored groups that nobody has learned from
  std::vector<uint64_t> drawn_;  // in this order
  std::map<uint64_t, int64_t> row_, length_, draw_of_;
  std::map<uint64_t, bool> teaches_;
  std::set<uint64_t> writing_, written_;
};

GroupPolicy random_policy(Dice& dice, Order order) {
  GroupPolicy policy{
      .order = order, .iterations = 1 + below(dice, 9), .wanted = 1 + below(dice, 6)};
  if (order != Order::shortest) policy.ahead = below(dice, 4);
  if (order == Order::shortest) policy.surplus = 1 + below(dice, policy.wanted);
  policy.draws_overlap = policy.ahead > 0;
  return policy;
}

// Every group that is drawn is learned from once, `wanted` an iteration, and nothing is left.
void expect_each_once(const History& history, const std::vector<std::vector<uint64_t>>& learned,
                      const GroupPolicy& policy) {
  std::vector<uint64_t> all;
  for (const auto& groups : learned) {
    EXPECT_EQ(std::ssize(groups), policy.wanted);
    EXPECT_TRUE(std::ranges::is_sorted(groups));
    all.insert(all.end(), groups.begin(), groups.end());
  }
  std::ranges::sort(all);
  std::vector<uint64_t> meant;
  for (int64_t iteration = 1; iteration <= policy.iterations; ++iteration) {
    for (int64_t ordinal = 0; ordinal < policy.wanted; ++ordinal)
      meant.push_back(id(iteration, ordinal));
  }
  EXPECT_EQ(all, meant);
  EXPECT_EQ(history.drawn(), meant) << "drawn in the order of their ids";
  EXPECT_LE(history.most_under_way(), (policy.ahead + 1) * policy.wanted + policy.surplus);
}

TEST(GroupBuffer, InTheOrderOfDrawingAnIterationLearnsFromItsOwnGroups) {
  Dice dice(1);
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const GroupPolicy policy = random_policy(dice, Order::drawn);
    History history(policy, seed, seed % 2 == 1);
    const auto learned = history.run();
    expect_each_once(history, learned, policy);
    for (size_t i = 0; i < learned.size(); ++i)
      EXPECT_EQ(learned[i].front(), id(static_cast<int64_t>(i) + 1, 0));
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(GroupBuffer, WhatIsFinishedFirstIsLearnedFromFirst) {
  Dice dice(2);
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const GroupPolicy policy = random_policy(dice, Order::finished);
    History history(policy, seed, seed % 2 == 1);
    expect_each_once(history, history.run(), policy);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(GroupBuffer, OverSamplingTakesTheShortestAndBeginsTheOthersAgain) {
  Dice dice(3);
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const GroupPolicy policy = random_policy(dice, Order::shortest);
    History history(policy, seed, seed % 2 == 1);
    const auto learned = history.run();
    expect_each_once(history, learned, policy);
    for (size_t i = 0; i < learned.size(); ++i) {
      for (const uint64_t group : learned[i])
        EXPECT_LE(static_cast<int64_t>(i) + 1 - iteration_of(group << 20), 4)
            << "none waits for longer";
    }
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(GroupBuffer, FilteringLosesNothingThatTeaches) {
  Dice dice(4);
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    GroupPolicy policy = random_policy(dice, Order::drawn);
    policy.filters = true;
    policy.patience = 1 << 20;
    History history(policy, seed, seed % 2 == 1);
    std::vector<uint64_t> all, teaching;
    const auto learned = history.run();
    for (size_t i = 0; i < learned.size(); ++i) {
      EXPECT_EQ(std::ssize(learned[i]), policy.wanted);
      for (const uint64_t group : learned[i])
        EXPECT_LE(static_cast<int64_t>(i) + 1 - iteration_of(group << 20), policy.ahead + 1)
            << "none is older than one version more";
      all.insert(all.end(), learned[i].begin(), learned[i].end());
    }
    std::ranges::copy_if(history.drawn(), std::back_inserter(teaching),
                         [&](uint64_t group) { return history.teaches(group); });
    ASSERT_GE(teaching.size(), all.size());
    teaching.resize(all.size());
    EXPECT_EQ(all, teaching) << "each once, the oldest first";
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(GroupBuffer, FilteringAndTheOrdersCompose) {
  Dice dice(6);
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    GroupPolicy policy = random_policy(dice, seed % 2 == 0 ? Order::finished : Order::shortest);
    policy.filters = true;
    policy.patience = 1 << 20;
    History history(policy, seed, seed % 4 >= 2);
    std::set<uint64_t> all;
    for (const auto& groups : history.run()) {
      EXPECT_EQ(std::ssize(groups), policy.wanted);
      for (const uint64_t group : groups)
        EXPECT_TRUE(history.teaches(group) && all.insert(group).second) << "once";
    }
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

// `drawn` prompts of an iteration, of which one in `every` teaches something.
void score_draws(GroupBuffer& buffer, int64_t iteration, int every) {
  while (!buffer.ready()) {
    const GroupBuffer::Wish wish = buffer.to_draw(iteration);
    if (buffer.ready()) return;
    const std::vector<int64_t> rows(static_cast<size_t>(wish.prompts), 0);
    buffer.admit(iteration, rows);
    buffer.start(1, iteration);
    const GroupBuffer::Choice choice = *buffer.choose();
    buffer.apply(choice);
    std::vector<uint64_t> kept;
    std::ranges::copy_if(choice.groups, std::back_inserter(kept),
                         [&](uint64_t group) { return prompt_of(group << 20) % every == 0; });
    buffer.scored(kept);
  }
}

TEST(GroupBuffer, FilteringDrawsWhatIsMissingAndKeepsTheRest) {
  GroupBuffer buffer({.wanted = 8, .filters = true});
  EXPECT_EQ(GroupBuffer(buffer).to_draw(1).prompts, 8) << "all are expected to teach something";
  score_draws(buffer, 1, 3);
  const FilterState counted = buffer.filter();
  EXPECT_EQ(counted.seen, counted.drawn);
  EXPECT_EQ(counted.informative, (counted.drawn + 2) / 3);
  const GroupBuffer::Taken taken = buffer.take();
  EXPECT_EQ(taken.groups.size(), 8u);
  EXPECT_EQ(taken.rest, counted.informative - 8);
  EXPECT_EQ(taken.skipped, counted.drawn - counted.informative);
  EXPECT_DOUBLE_EQ(buffer.filter().share_before, static_cast<double>(8 + counted.informative) /
                                                     static_cast<double>(8 + counted.drawn));
}

TEST(GroupBuffer, AShortageEndsTheRunOrMakesTheBatchSmaller) {
  GroupPolicy policy{.wanted = 2, .filters = true, .patience = 3};
  policy.shortage = config::FilteringShortage::stop;
  GroupBuffer stops(policy);
  try {
    score_draws(stops, 1, 1 << 19);  // one of them teaches something
    FAIL() << "it found enough";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_THAT(error.what(), HasSubstr("only 1 of 2 prompts"));
    EXPECT_GE(stops.filter().drawn, 6) << "three times the batch";
  }
  policy.shortage = config::FilteringShortage::smaller;
  GroupBuffer smaller(policy);
  score_draws(smaller, 1, 1 << 19);
  EXPECT_EQ(smaller.take().groups, std::vector{id(1, 0)});
  GroupBuffer none(policy);
  none.restore({}, {.drawn = 6});
  EXPECT_THAT(none.to_draw(1).warning, HasSubstr("only 0 of 2 prompts"));
  EXPECT_FALSE(none.ready()) << "from nothing nothing is learned";
}

// A checkpoint of another order or batch size goes on: nothing is lost, no id comes twice.
TEST(GroupBuffer, TakesOnWhatAnotherPolicyLeft) {
  Dice dice(5);
  for (int run = 0; run < 500; ++run) {
    const int64_t iteration = 2 + below(dice, 4), old_batch = 1 + below(dice, 6);
    GroupPolicy policy = random_policy(dice, static_cast<Order>(below(dice, 3)));
    policy.iterations = iteration + 5;
    GroupBuffer buffer(policy);
    std::set<uint64_t> open;
    std::vector<CarriedPrompt> waiting;
    for (int64_t p = 0; p < below(dice, 4); ++p) waiting.push_back({id(iteration - 1, p), p});
    buffer.restore(waiting, {});
    for (int64_t b = 0; b < below(dice, 3); ++b) {
      std::vector<uint64_t> groups;
      for (int64_t p = 0; p < old_batch; ++p) groups.push_back(id(iteration + b, p));
      buffer.restore_draw(b + 1, iteration + b, groups, {});
      open.insert(groups.begin(), groups.end());
    }
    for (const CarriedPrompt& one : waiting) open.insert(one.group);
    std::set<uint64_t> learned;
    int64_t number = 10;
    for (int64_t i = iteration; i <= policy.iterations; ++i) {
      while (!buffer.ready()) {
        for (;;) {
          const std::vector<int64_t> rows(static_cast<size_t>(buffer.to_draw(i).prompts), 0);
          if (!rows.empty()) buffer.admit(i, rows);
          const auto draw = buffer.start(++number, i);
          if (draw.groups.empty()) break;
          for (const uint64_t group : draw.groups) {
            open.insert(group);
            EXPECT_FALSE(learned.contains(group));
            if (!buffer.choice_is_known()) buffer.written(group, 1 + below(dice, 9));
          }
        }
        auto choice = buffer.choose();
        ASSERT_TRUE(choice.has_value());
        buffer.apply(*choice);
        buffer.scored(choice->groups);
      }
      for (const uint64_t group : buffer.take().groups) {
        EXPECT_TRUE(learned.insert(group).second);
        open.erase(group);
      }
    }
    if (HasFailure()) FAIL() << "run " << run;
  }
}

}  // namespace
}  // namespace trireme::rollout
