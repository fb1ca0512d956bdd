#include "trireme/comm/liveness.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "support/world.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/job/facts.hpp"

namespace trireme::comm {
namespace {

constexpr Deadlines deadlines{.usual = 10, .io = 100};

RankLife working(double silent, const std::string& where = "train") {
  return {{.silent = silent, .host = "n1", .where = where}, 0};
}
RankLife waiting(double silent) {
  return {{.silent = silent,
           .waiting = true,
           .host = "n1",
           .where = "train",
           .call = "all_reduce of 8 B"},
          0};
}
RankLife reading(double silent) {
  return {{.silent = silent, .io = true, .host = "n1", .where = "resume"}, 0};
}

TEST(Liveness, NobodyIsBlamedBeforeItsDeadline) {
  EXPECT_FALSE(find_hang(std::vector{working(9), waiting(500), reading(99)}, deadlines))
      << "a rank may wait for as long as others work";
  EXPECT_FALSE(find_hang(std::vector{waiting(9), waiting(500)}, deadlines));
}

TEST(Liveness, TheRankThatDidNotArriveIsNamed) {
  const auto words = find_hang(
      std::vector{waiting(11), working(11, "train > actor step"), waiting(11)}, deadlines);
  ASSERT_TRUE(words);
  EXPECT_NE(words->find("did not arrive: rank 1 (n1) in train > actor step"), std::string::npos)
      << *words;
  EXPECT_NE(words->find("2 of 3 ranks wait: rank 0 (n1) in train, in all_reduce of 8 B"),
            std::string::npos)
      << *words;
}

TEST(Liveness, ReadingAndWritingHaveTheirOwnDeadline) {
  EXPECT_TRUE(find_hang(std::vector{reading(101), waiting(101)}, deadlines));
  EXPECT_FALSE(find_hang(std::vector{reading(1e9)}, {.usual = 10, .io = 0})) << "0: never";
  EXPECT_FALSE(find_hang(std::vector{reading(9)}, {.usual = 10, .io = 5}))
      << "never shorter than the usual one";
}

TEST(Liveness, ZeroMeansNever) {
  std::vector<RankLife> ranks{working(1e9), waiting(1e9)};
  ranks[1].unheard = 1e9;
  EXPECT_FALSE(find_hang(ranks, {.usual = 0, .io = 0}));
}

TEST(Liveness, ARankThatIsNotHeardOfIsNamedFirst) {
  std::vector<RankLife> ranks{waiting(60), working(3, "rollout"), working(60, "reward")};
  ranks[1].unheard = 11;
  const auto words = find_hang(ranks, deadlines);
  ASSERT_TRUE(words);
  EXPECT_NE(words->find("not been heard of for 11"), std::string::npos) << *words;
  EXPECT_NE(words->find("rank 1 (n1) in rollout"), std::string::npos) << *words;
}

TEST(Liveness, AllWaitForEachOther) {
  const auto words = find_hang(std::vector{waiting(11), waiting(12)}, deadlines);
  ASSERT_TRUE(words);
  EXPECT_NE(words->find("all ranks wait for each other"), std::string::npos) << *words;
}

WatchdogOptions options_for_test(std::atomic<uint64_t>& count) {
  return {.deadlines = {.usual = 1.5, .io = 1.5},
          .report_folder = "/nonexistent",
          .thread_multiple = true,
          .look = [] { return LifeSign{.where = "testing"}; },
          .activity = [&count] { return ++count; }};
}

TEST(Watchdog, ActivityIsProgress) {
  std::atomic<uint64_t> count{0};
  const Watchdog watchdog(test::world(), options_for_test(count));
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // longer than the deadline
}

TEST(Watchdog, LeavesNothingBehind) {
  std::atomic<uint64_t> count{0};
  for (int i = 0; i < 20; ++i) {
    const Watchdog watchdog(test::world(), options_for_test(count));
    if (i % 2 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(60 * (test::world().rank() + 1)));
  }
  EXPECT_EQ(test::world().sum(1), test::world().size());
}

using WatchdogDeath = testing::Test;

TEST(WatchdogDeath, SaysWhereAndEnds) {
  const job::LaunchFacts launch = job::read_launch(job::process_environment);
  if (launch.size > 0)
    GTEST_SKIP()
        << "the process that dies is started again, without the launcher that started this one";
  // The process that dies is the program started again: it takes the folder from its parent.
  const std::string own =
      std::filesystem::temp_directory_path() / base::text("trireme-hang-", getpid());
  setenv("TRIREME_TEST_HANG_FOLDER", own.c_str(), 0);
  const std::filesystem::path folder = std::getenv("TRIREME_TEST_HANG_FOLDER");
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        std::atomic<uint64_t> none{0};
        auto options = options_for_test(none);
        options.activity = [] { return uint64_t{7}; };
        options.report_folder = folder;
        const Watchdog watchdog({}, options);
        std::this_thread::sleep_for(std::chrono::seconds(30));
      },
      testing::ExitedWithCode(70), "HANG: a rank makes no progress: rank 0 in testing");
  EXPECT_TRUE(std::filesystem::exists(folder / "rank-00000.json"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::comm
