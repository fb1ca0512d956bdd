#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "trireme/base/text.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RoleTable role(std::string name, int ranks, double seconds, double wait) {
  RoleTable table;
  table.role = std::move(name);
  table.ranks = ranks;
  table.seconds = {seconds, seconds, seconds};
  table.wait = {wait, wait, wait};
  table.iterations = {10, seconds, wait};
  return table;
}

// Trainers: 4 ranks busy 50 of 100 s; generators: 4 ranks busy 100 s. Work 200 : 400, so 8 ranks
// split 3 : 5 (2.67 : 5.33) and the longer role takes 400 / 5 = 80 s.
TEST(Notes, SuggestsTheBalancedSplit) {
  const Table table{role("trainer, reward", 4, 100, 50), role("generator", 4, 100, 0)};
  EXPECT_THAT(
      notes(table, RolesRun::together),
      ElementsAre(AllOf(
          HasSubstr("the trainer, reward ranks waited 50 % of the time, because the generator "
                    "ranks had more to do"),
          HasSubstr("Try ranks.trainer=3 ranks.generator=5 (about 0.80 of the present time"))));
}

TEST(Notes, KeepsOneRankPerRole) {
  const Table table{role("trainer", 3, 100, 0), role("generator", 1, 100, 99)};
  EXPECT_THAT(notes(table, RolesRun::together),
              ElementsAre(HasSubstr("No other split of these ranks would be better")));
}

// All wait for something else, 36 s of 100 and more: one rank each is the best split of three, and
// a better one of six saves what the busiest has too much.
TEST(Notes, WaitingForSomethingElseIsNotSavedByASplit) {
  const Table three{role("trainer", 1, 100, 36), role("generator", 1, 100, 36),
                    role("reward", 1, 100, 59)};
  EXPECT_THAT(notes(three, RolesRun::together),
              ElementsAre(HasSubstr("No other split of these ranks would be better")));
  const Table six{role("trainer", 2, 100, 40), role("generator", 4, 100, 85)};  // 120 : 60 on 6
  EXPECT_THAT(notes(six, RolesRun::together),
              ElementsAre(HasSubstr(
                  "Try ranks.trainer=4 ranks.generator=2 (about 0.70 of the present time")));
}

TEST(Notes, RolesInTurns) {
  const Table table{role("trainer", 2, 100, 50), role("generator", 2, 100, 45)};
  EXPECT_THAT(notes(table, RolesRun::in_turns), ElementsAre(HasSubstr("train.async_depth=1")));
}

// What a run does before and behind its iterations is the same whatever the split.
TEST(Notes, SeeIterationsOnly) {
  Table table{role("trainer", 4, 100, 50), role("generator", 4, 100, 0)};
  for (RoleTable& one : table) one.seconds = {1000, 1000, 1000};
  EXPECT_THAT(notes(table, RolesRun::together),
              ElementsAre(HasSubstr(
                  "Try ranks.trainer=3 ranks.generator=5 (about 0.80 of the present time")));
}

// Trainers work 50 s of 100, generators 90: in turns 140.
TEST(Overlap, IsComparedWithTurns) {
  const Table table{role("trainer, reward", 4, 100, 50), role("generator", 4, 100, 10),
                    role("idle", 1, 100, 100)};
  EXPECT_EQ(overlap_text(table, RolesRun::together),
            "an iteration took 10.0 s; idle: trainer, reward 50 %, generator 10 %; with generators "
            "and trainers in turns (train.async_depth = 0) about 14.0 s, "
            "1.40 times as long");
  EXPECT_EQ(overlap_text(table, RolesRun::in_turns),
            "an iteration took 10.0 s; idle: trainer, reward 50 %, generator 10 %");
}

// Rank 1 does both, 100 s of 100: nothing to gain by more overlap, and none there.
TEST(Overlap, RanksOfBothRolesTakeTurnsAnyway) {
  const Table table{role("trainer", 1, 100, 60), role("trainer, generator", 1, 100, 0),
                    role("generator", 1, 100, 50)};
  EXPECT_THAT(overlap_text(table, RolesRun::together), HasSubstr("1.00 times as long"));
}

TEST(Overlap, NothingToSay) {
  EXPECT_EQ(overlap_text({}, RolesRun::together), "");
  EXPECT_EQ(overlap_text({role("all", 4, 100, 50)}, RolesRun::together), "");
  EXPECT_EQ(
      overlap_text({role("trainer", 4, 0, 0), role("generator", 4, 0, 0)}, RolesRun::together), "")
      << "no iteration yet";
}

TEST(Notes, NothingToSay) {
  EXPECT_THAT(notes({role("trainer", 2, 100, 5), role("generator", 2, 100, 0)}, RolesRun::together),
              IsEmpty());
  EXPECT_THAT(notes({role("all", 4, 100, 50)}, RolesRun::together), IsEmpty());
  EXPECT_THAT(notes({}, RolesRun::together), IsEmpty());
}

TEST(Notes, UnevenRanksNameTheDeepestRegion) {
  RoleTable table = role("trainer", 4, 100, 0);
  const auto row = [](std::string path, double avg, double max,
                      Category category = Category::work) {
    TableRow r;
    r.path = std::move(path);
    r.category = category;
    r.seconds = {avg, avg, max};
    return r;
  };
  table.rows = {row("iteration", 50, 90), row("iteration/forward", 20, 60),
                row("iteration/all_gather", 10, 80, Category::communication), row("tiny", 0.1, 1)};
  EXPECT_THAT(notes({table}, RolesRun::together),
              ElementsAre(HasSubstr(
                  "'iteration/forward' took 1 min 0 s on the slowest of the trainer ranks")));
}

TEST(Notes, DroppedEventsAreSaid) {
  Table table{role("all", 1, 100, 0)};
  table[0].dropped = 12;
  EXPECT_THAT(notes(table, RolesRun::together), ElementsAre(HasSubstr("leaves out 12")));
}

// ---- the split of simulated jobs ----

constexpr const char* role_names[] = {"trainer", "generator", "reward"};

// Ranks by role as "Try ranks.trainer=3 ranks.generator=5" says; empty: no such advice.
std::vector<int> advised(const std::string& note) {
  std::vector<int> out;
  for (size_t at = 0; (at = note.find("ranks.", at)) != std::string::npos; ++at) {
    const size_t end = note.find_first_of(" =", at);
    if (end != std::string::npos && note[end] == '=')
      out.push_back(std::atoi(note.c_str() + end + 1));
  }
  return out;
}

double longest(const std::vector<double>& work, const std::vector<int>& ranks) {
  double out = 0;
  for (size_t i = 0; i < work.size(); ++i) out = std::max(out, work[i] / ranks[i]);
  return out;
}

// All jobs of two and three roles with one to four ranks each, whose ranks are busy for none, a
// hundredth, a half or all of 100 s.
template <class Check>
void for_all_jobs(Check check) {
  for (int job = 0; job < 16 * 16 * 17; ++job) {
    Table table;
    std::vector<double> work;
    for (int r = 0, rest = job; r < 3; ++r, rest /= 16) {
      if (r == 2 && rest == 16) break;  // two roles only
      const int ranks = 1 + rest % 4;
      const double busy = std::array{0.0, 1.0, 50.0, 100.0}[static_cast<size_t>(rest / 4 % 4)];
      table.push_back(role(role_names[r], ranks, 100, 100 - busy));
      work.push_back(busy * ranks);
    }
    check(table, work);
  }
}

TEST(Notes, EverySplitUsesAllRanksLeavesNoRoleWithoutAndIsAsGoodAsItSays) {
  int splits = 0;
  for_all_jobs([&splits](const Table& table, const std::vector<double>& work) {
    int ranks = 0;
    std::vector<int> present;
    for (const RoleTable& one : table) {
      ranks += one.ranks;
      present.push_back(one.ranks);
    }
    for (const std::string& note : notes(table, RolesRun::together)) {
      const std::vector<int> split = advised(note);
      if (split.empty()) continue;
      ++splits;
      ASSERT_EQ(split.size(), table.size()) << note;
      EXPECT_EQ(std::accumulate(split.begin(), split.end(), 0), ranks) << note;
      EXPECT_GE(*std::min_element(split.begin(), split.end()), 1) << note;
      const double share = 1 - (longest(work, present) - longest(work, split)) / 100;
      EXPECT_LE(share, 0.97) << note;
      EXPECT_NE(note.find("about " + base::fixed(share, 2) + " of"), std::string::npos)
          << share << ": " << note;
    }
  });
  EXPECT_GT(splits, 500);
}

TEST(Notes, RanksWithoutARoleAreNoRole) {
  const Table table{role("trainer", 2, 100, 0), role("generator", 1, 100, 20),
                    role("idle", 3, 100, 100)};
  const auto all = notes(table, RolesRun::together);
  for (const std::string& note : all)
    EXPECT_THAT(note, testing::Not(HasSubstr("ranks.idle"))) << "the deck has no such key";
  EXPECT_THAT(all, testing::Contains(HasSubstr("ranks.trainer=4 ranks.generator=2")))
      << "200 : 80 on all six";
}

// All wait for the same thing and have as much to do: none of them is blamed for its own waiting.
TEST(Notes, NobodyWaitsForItself) {
  for (const RolesRun run : {RolesRun::together, RolesRun::in_turns}) {
    for_all_jobs([run](const Table& table, const std::vector<double>&) {
      for (const std::string& note : notes(table, run)) {
        for (const RoleTable& one : table) {
          const bool waits = note.starts_with("NOTE: the " + one.role + " ranks waited");
          EXPECT_FALSE(waits &&
                       note.find("because the " + one.role + " ranks") != std::string::npos)
              << note;
        }
      }
    });
  }
}

TEST(Notes, TheThresholdIsAboveIt) {
  const Table table{role("trainer", 2, 100, 8), role("generator", 2, 100, 0)};
  EXPECT_THAT(notes(table, RolesRun::together, 0.08), IsEmpty());
  EXPECT_THAT(notes(table, RolesRun::together, 0.0799), testing::SizeIs(1));
}

}  // namespace
}  // namespace trireme::trace
