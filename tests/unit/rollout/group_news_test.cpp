// The choice of groups, made by the first generator and told to all ranks, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "trireme/rollout/group_news.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "support/world.hpp"

namespace trireme::rollout {
namespace {

using test::world;

// Lengths of the answers of each group.
using Lengths = std::map<uint64_t, std::vector<int64_t>>;

Lengths draw_lengths(uint64_t seed, const std::vector<uint64_t>& groups, int64_t answers,
                     int64_t longest) {
  std::mt19937_64 dice(seed);
  Lengths lengths;
  for (const uint64_t group : groups) {
    for (int64_t i = 0; i < answers; ++i)
      lengths[group].push_back(1 + static_cast<int64_t>(dice() % static_cast<uint64_t>(longest)));
  }
  return lengths;
}

Samples sequence_of(uint64_t group, int64_t sample, int64_t tokens) {
  SequenceRecord record{.id = group << 20 | static_cast<uint64_t>(sample) << 8,
                        .ids = std::vector<int32_t>(static_cast<size_t>(tokens) + 2, 1),
                        .action_ranges = {{2, tokens + 2}}};
  Samples samples;
  samples.add(record);
  return samples;
}

struct Written {
  GroupBuffer::Choice choice;
  std::set<uint64_t> left;  // by this rank
  int64_t posted = 0;       // sequences
  int64_t tokens = 0;       // of all sequences that ended on this rank
};

// A replica on each rank, which writes its groups in `slots`, a token of each sequence a step, and
// may pause; until the choice is known.
Written write(GroupNews& news, const Lengths& lengths, size_t slots, uint64_t seed) {
  world().barrier();
  struct Sequence {
    uint64_t group;
    int64_t sample, written;
  };
  std::vector<Sequence> waiting, running;
  for (const auto& [group, answers] : lengths) {
    if (static_cast<int>(group % static_cast<uint64_t>(world().size())) != world().rank()) continue;
    news.expect(group, std::ssize(answers));
    for (int64_t s = 0; s < std::ssize(answers); ++s) waiting.push_back({group, s, 0});
  }
  std::mt19937_64 dice(seed + static_cast<uint64_t>(world().rank()));
  std::ranges::shuffle(waiting, dice);
  Written out;
  comm::wait_until("the choice", [&] {
    const bool known = news.poll(false);
    if (dice() % 4 == 0) return known;  // a slow one
    std::set<uint64_t> too_long;
    for (const Sequence& one : running) {
      if (one.written >= news.longest()) too_long.insert(one.group);
    }
    for (const uint64_t group : too_long) news.left(group);
    out.left.insert(too_long.begin(), too_long.end());
    for (auto* list : {&running, &waiting})
      std::erase_if(*list, [&](const Sequence& one) { return too_long.contains(one.group); });
    while (running.size() < slots && !waiting.empty()) {
      running.push_back(waiting.back());
      waiting.pop_back();
    }
    for (Sequence& one : running) {
      if (++one.written < lengths.at(one.group)[static_cast<size_t>(one.sample)]) continue;
      out.tokens += one.written;
      out.posted += news.finished(sequence_of(one.group, one.sample, one.written)).size();
    }
    std::erase_if(running, [&](const Sequence& one) {
      return one.written == lengths.at(one.group)[static_cast<size_t>(one.sample)];
    });
    return known;
  });
  out.choice = news.take();
  return out;
}

// Nothing of this rank is under way, so that what follows on any rank comes behind it.
void settle_mail(GroupNews& news) {
  bool all = false;
  while (!all) {
    news.receive();
    all = world().all(news.quiet());
  }
}

std::vector<uint64_t> begin(GroupBuffer& buffer, int64_t iteration) {
  while (const int64_t prompts = buffer.to_draw(iteration).prompts)
    buffer.admit(iteration, std::vector<int64_t>(static_cast<size_t>(prompts)));
  return buffer.start(iteration, iteration).groups;
}

// Only one message has room on its way, and between two iterations no rank asks for mail.
TEST(GroupNews, TheShortestGroupsOnEveryRank) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  struct Case {
    int64_t wanted, surplus, answers, longest;
    size_t slots;
  };
  uint64_t seed = 0;
  for (const Case& c : {Case{8, 4, 1, 60, 100}, Case{8, 4, 3, 60, 4}, Case{8, 8, 2, 60, 3},
                        Case{15, 15, 1, 4, 6}, Case{1, 1, 1, 5, 1}}) {
    const GroupPolicy policy{
        .order = Order::shortest, .iterations = 4, .wanted = c.wanted, .surplus = c.surplus};
    GroupBuffer buffer(policy), one_place(policy);  // the second decides without any message
    GroupNews news(roles, {.messages = 1, .bytes = 1 << 20}, buffer);
    for (int64_t iteration = 1; iteration <= policy.iterations; ++iteration) {
      SCOPED_TRACE(testing::Message() << c.wanted << " groups, iteration " << iteration);
      const Lengths lengths = draw_lengths(++seed, begin(buffer, iteration), c.answers, c.longest);
      const Written written = write(news, lengths, c.slots, seed);
      ASSERT_EQ(begin(one_place, iteration).size(), lengths.size());
      for (const auto& [group, answers] : lengths)
        one_place.written(group, std::ranges::max(answers));
      const auto choice = one_place.choose();
      EXPECT_EQ(written.choice.groups, choice->groups);
      EXPECT_EQ(world().broadcast_value(written.choice.surplus, 0), written.choice.surplus);
      const int64_t whole = std::ssize(written.choice.groups) + std::ssize(written.choice.surplus);
      EXPECT_EQ(world().sum(std::ssize(written.left)) + whole, std::ssize(lengths));
      EXPECT_EQ(world().sum(written.posted), c.answers * whole) << "whole groups only";
      int64_t learned = 0;
      for (const uint64_t group : written.choice.groups) {
        for (const int64_t tokens : lengths.at(group)) learned += tokens;
      }
      EXPECT_EQ(world().sum(written.tokens) - world().sum(news.take_dropped()), learned);
      for (GroupBuffer* each : {&buffer, &one_place}) {
        each->apply(written.choice);
        each->scored(written.choice.groups);
        each->take();
      }
    }
  }
  world().barrier();
}

TEST(GroupNews, EveryGroupThatIsFinishedFirstOnce) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  const GroupPolicy policy{.order = Order::finished, .iterations = 6, .wanted = 4, .ahead = 2};
  GroupBuffer buffer(policy);
  GroupNews news(roles, {.messages = 1, .bytes = 1 << 20}, buffer);
  std::set<uint64_t> seen;
  std::vector<uint64_t> mine;
  for (int64_t iteration = 1; iteration <= policy.iterations; ++iteration) {
    for (const uint64_t group : begin(buffer, iteration)) {
      if (static_cast<int>(group % static_cast<uint64_t>(world().size())) != world().rank())
        continue;
      news.expect(group, 2);
      mine.push_back(group);
    }
    world().barrier();
    comm::wait_until("the choice", [&] {
      if (!mine.empty()) {  // the youngest first
        EXPECT_EQ(news.finished(sequence_of(mine.back(), 0, 5)).size(), 1);
        EXPECT_EQ(news.finished(sequence_of(mine.back(), 1, 5)).size(), 1);
        mine.pop_back();
      }
      return news.poll(false);
    });
    const GroupBuffer::Choice choice = news.take();
    EXPECT_EQ(choice.groups.size(), 4u);
    EXPECT_EQ(world().broadcast_value(choice.groups, 0), choice.groups);
    seen.insert(choice.groups.begin(), choice.groups.end());
    buffer.apply(choice);
    buffer.scored(choice.groups);
    buffer.take();
  }
  EXPECT_EQ(seen.size(), 24u);
  settle_mail(news);
}

TEST(GroupNews, OnlyTheFirstGeneratorsStopEndsTheWait) {
  config::Options options;
  if (world().size() > 1) options.ranks = {"1", std::to_string(world().size() - 1), ""};
  const comm::Roles roles = comm::make_roles(options, world());
  const int decides = roles.map.generator.front();
  GroupBuffer buffer({.order = Order::finished, .iterations = 2, .wanted = 2});
  GroupNews news(roles, {}, buffer);
  const std::vector<uint64_t> groups = begin(buffer, 1);
  EXPECT_FALSE(news.poll(world().rank() != decides)) << "another rank wants to stop";
  settle_mail(news);
  EXPECT_FALSE(news.poll(false));
  world().barrier();
  comm::wait_until("the choice", [&] { return news.poll(world().rank() == decides); });
  const GroupBuffer::Choice stopped = news.take();
  EXPECT_TRUE(stopped.stopped && stopped.groups.empty());
  settle_mail(news);
  if (world().rank() == decides) {
    for (const uint64_t group : groups) {
      news.expect(group, 1);
      news.finished(sequence_of(group, 0, 3));
    }
  }
  comm::wait_until("the choice", [&] { return news.poll(false); });
  EXPECT_EQ(news.take().groups, groups) << "the stop has taken nothing";
  settle_mail(news);
}

}  // namespace
}  // namespace trireme::rollout
