#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  return table;
}

// Trainers: 4 ranks busy 50 of 100 s; generators: 4 ranks busy 100 s. Work 200 : 400, so 8 ranks split 3 : 5 (2.67 : 5.33) and
// the longer role takes 400 / 5 = 80 s.
TEST(Notes, SuggestsTheBalancedSplit) {
  const Table table{role("trainer, reward", 4, 100, 50), role("generator", 4, 100, 0)};
  EXPECT_THAT(notes(table, RolesRun::together),
              ElementsAre(AllOf(
                  HasSubstr("the trainer, reward ranks waited 50 % of the time, because the generator ranks had more to do"),
                  HasSubstr("Try ranks.trainer=3 ranks.generator=5 (about 0.80 of the present time"))));
}

TEST(Notes, KeepsOneRankPerRole) {
  const Table table{role("trainer", 3, 100, 0), role("generator", 1, 100, 99)};
  EXPECT_THAT(notes(table, RolesRun::together), ElementsAre(HasSubstr("No other split of these ranks would be better")));
}

TEST(Notes, RolesInTurns) {
  const Table table{role("trainer", 2, 100, 50), role("generator", 2, 100, 45)};
  EXPECT_THAT(notes(table, RolesRun::in_turns), ElementsAre(HasSubstr("train.async_depth=1")));
}

TEST(Notes, NothingToSay) {
  EXPECT_THAT(notes({role("trainer", 2, 100, 5), role("generator", 2, 100, 0)}, RolesRun::together), IsEmpty());
  EXPECT_THAT(notes({role("all", 4, 100, 50)}, RolesRun::together), IsEmpty());
  EXPECT_THAT(notes({}, RolesRun::together), IsEmpty());
}

TEST(Notes, UnevenRanksNameTheDeepestRegion) {
  RoleTable table = role("trainer", 4, 100, 0);
  const auto row = [](std::string path, double avg, double max, Category category = Category::work) {
    TableRow r;
    r.path = std::move(path);
    r.category = category;
    r.seconds = {avg, avg, max};
    return r;
  };
  table.rows = {row("iteration", 50, 90), row("iteration/forward", 20, 60),
                row("iteration/all_gather", 10, 80, Category::communication), row("tiny", 0.1, 1)};
  EXPECT_THAT(notes({table}, RolesRun::together),
              ElementsAre(HasSubstr("'iteration/forward' took 1 min 0 s on the slowest of the trainer ranks")));
}

TEST(Notes, DroppedEventsAreSaid) {
  Table table{role("all", 1, 100, 0)};
  table[0].dropped = 12;
  EXPECT_THAT(notes(table, RolesRun::together), ElementsAre(HasSubstr("leaves out 12")));
}

}  // namespace
}  // namespace trireme::trace
