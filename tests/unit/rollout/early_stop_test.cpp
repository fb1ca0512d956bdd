// What an iteration learns from that writes more groups than it needs, against the rule applied to
// all lengths at once, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "trireme/rollout/early_stop.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "support/world.hpp"

namespace trireme::rollout {
namespace {

using test::world;

// Lengths of the samples of each group.
using Lengths = std::map<uint64_t, std::vector<int64_t>>;

Lengths draw_lengths(uint64_t seed, int64_t groups, int64_t samples, int64_t longest) {
  std::mt19937_64 dice(seed);
  Lengths lengths;
  for (uint64_t g = 0; g < static_cast<uint64_t>(groups); ++g) {
    for (int64_t s = 0; s < samples; ++s)
      lengths[3 * g + 7].push_back(1 +
                                   static_cast<int64_t>(dice() % static_cast<uint64_t>(longest)));
  }
  return lengths;
}

std::vector<uint64_t> groups_of(const Lengths& lengths) {
  std::vector<uint64_t> groups;
  for (const auto& [group, samples] : lengths) groups.push_back(group);
  return groups;
}

// The shortest length at which `wanted` groups and the first `due` are whole; the oldest that are
// whole then.
std::vector<uint64_t> by_the_rule(const Lengths& lengths, int64_t wanted, int64_t due) {
  const auto longest = [&](uint64_t group) { return std::ranges::max(lengths.at(group)); };
  const std::vector<uint64_t> groups = groups_of(lengths);
  for (int64_t length = 1;; ++length) {
    std::vector<uint64_t> whole;
    std::ranges::copy_if(groups, std::back_inserter(whole),
                         [&](uint64_t group) { return longest(group) <= length; });
    const bool all_due = std::all_of(groups.begin(), groups.begin() + due,
                                     [&](uint64_t group) { return longest(group) <= length; });
    if (std::ssize(whole) < wanted || !all_due) continue;
    whole.resize(static_cast<size_t>(wanted));
    return whole;
  }
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
  EarlyStop::Chosen chosen;
  std::set<uint64_t> left;  // by this rank
  int64_t posted = 0;       // sequences of whole groups
  int64_t tokens = 0;       // of all sequences that ended on this rank
};

// A replica on each rank, which writes its groups in `slots`, a token of each sequence a step, and
// may pause; until the choice is known.
Written write(EarlyStop& stop, const Lengths& lengths, int64_t wanted, int64_t due, size_t slots,
              uint64_t seed) {
  stop.begin({.groups = groups_of(lengths),
              .samples = std::ssize(lengths.begin()->second),
              .wanted = wanted,
              .due = due});
  world().barrier();
  struct Sequence {
    uint64_t group;
    int64_t sample, written;
  };
  std::vector<Sequence> waiting, running;
  for (const auto& [group, samples] : lengths) {
    if (static_cast<int>(group % static_cast<uint64_t>(world().size())) != world().rank()) continue;
    for (int64_t s = 0; s < std::ssize(samples); ++s) waiting.push_back({group, s, 0});
  }
  std::mt19937_64 dice(seed + static_cast<uint64_t>(world().rank()));
  std::ranges::shuffle(waiting, dice);
  Written out;
  comm::wait_until("the choice", [&] {
    const bool known = stop.poll(false);
    if (dice() % 4 == 0) return known;  // a slow one
    std::set<uint64_t> too_long;
    for (const Sequence& one : running) {
      if (one.written >= stop.longest()) too_long.insert(one.group);
    }
    for (const uint64_t group : too_long) stop.left(group);
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
      out.posted += stop.finished(sequence_of(one.group, one.sample, one.written)).size();
    }
    std::erase_if(running, [&](const Sequence& one) {
      return one.written == lengths.at(one.group)[static_cast<size_t>(one.sample)];
    });
    return known;
  });
  EXPECT_TRUE(running.empty() && waiting.empty()) << "every group is finished or left";
  out.chosen = stop.take();
  return out;
}

// Only one message has room on its way, and between two rounds no rank asks for mail.
TEST(EarlyStop, LearnsFromWhatTheRuleNamesWhoeverIsFast) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  EarlyStop stop(roles, {.messages = 1, .bytes = 1 << 20});
  struct Case {
    int64_t groups, samples, wanted, due, longest;
    size_t slots;
  };
  uint64_t seed = 0;
  for (const Case& c :
       {Case{12, 1, 8, 0, 60, 100}, Case{12, 3, 8, 0, 60, 4}, Case{16, 2, 8, 3, 60, 100},
        Case{16, 2, 8, 8, 60, 3}, Case{9, 2, 9, 0, 20, 2}, Case{30, 1, 15, 5, 4, 6},
        Case{1, 1, 1, 0, 5, 1}}) {
    for (int run = 0; run < 3; ++run) {
      SCOPED_TRACE(testing::Message() << c.groups << " groups, " << c.due << " due, run " << run);
      const Lengths lengths = draw_lengths(++seed, c.groups, c.samples, c.longest);
      const Written written = write(stop, lengths, c.wanted, c.due, c.slots, seed);
      EXPECT_EQ(written.chosen.groups, by_the_rule(lengths, c.wanted, c.due));
      EXPECT_FALSE(written.chosen.stopped);
      EXPECT_EQ(world().sum(std::ssize(written.left)) + std::ssize(written.chosen.groups) +
                    std::ssize(written.chosen.surplus),
                c.groups);
      EXPECT_EQ(world().sum(written.posted), c.samples * (std::ssize(written.chosen.groups) +
                                                          std::ssize(written.chosen.surplus)));
      int64_t learned = 0;
      for (const uint64_t group : written.chosen.groups)
        learned += std::accumulate(lengths.at(group).begin(), lengths.at(group).end(), int64_t{0});
      EXPECT_EQ(world().sum(written.tokens) - world().sum(stop.take_dropped()), learned);
    }
  }
  world().barrier();
}

TEST(EarlyStop, AStopOfTheFirstGeneratorEndsTheWait) {
  const comm::Roles roles = comm::make_roles(config::Options{}, world());
  EarlyStop stop(roles, {});
  stop.begin({.groups = {5, 6}, .samples = 1, .wanted = 1, .due = 0});
  EXPECT_FALSE(stop.poll(false));
  world().barrier();
  comm::wait_until("the choice", [&] { return stop.poll(world().rank() == 0); });
  const auto chosen = stop.take();
  EXPECT_TRUE(chosen.stopped);
  EXPECT_TRUE(chosen.groups.empty());
  world().barrier();
}

}  // namespace
}  // namespace trireme::rollout
