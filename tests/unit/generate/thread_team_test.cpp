// The team of a generation engine: every thread takes part, and where it may run.
#include "generate/thread_team.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "trireme/job/core_share.hpp"

namespace trireme::generate {
namespace {

TEST(ThreadTeam, EveryThreadRunsTheBodyAndMeetsAtTheBarrier) {
  ThreadTeam team(3);
  std::vector<int> runs(3, 0);
  std::atomic<int> before{0};
  for (int round = 0; round < 50; ++round) {
    before = 0;
    team.run([&](int thread) {
      ++runs[static_cast<size_t>(thread)];
      ++before;
      team.barrier(thread);
      EXPECT_EQ(before, 3);
    });
  }
  EXPECT_EQ(runs, (std::vector<int>{50, 50, 50}));
}

// More threads than meet at one place, more than there are cores, and some that come late.
TEST(ThreadTeam, ManyThreadsMeetInGroups) {
  for (const int threads : {8, 9, 20}) {
    ThreadTeam team(threads);
    std::vector<int> steps(static_cast<size_t>(threads), 0);
    std::atomic<int> wrong{0};
    team.run([&](int thread) {
      for (int step = 1; step <= 10; ++step) {
        if ((thread + step) % 7 == 0) std::this_thread::yield();
        steps[static_cast<size_t>(thread)] = step;
        team.barrier(thread);
        for (const int other : steps) wrong += other != step;
        team.barrier(thread);
      }
    });
    EXPECT_EQ(wrong, 0) << threads;
  }
}

TEST(ThreadTeam, AThreadThatFailsFreesTheOthersAndTheTeamGoesOn) {
  constexpr int threads = 19;
  ThreadTeam team(threads);
  for (const int failing : {0, 7, 8, 18}) {
    EXPECT_THROW(team.run([&](int thread) {
      team.barrier(thread);
      if (thread == failing) throw std::runtime_error("on purpose");
      team.barrier(thread);
    }),
                 std::runtime_error);
    std::atomic<int> passed{0};
    team.run([&](int thread) {
      team.barrier(thread);
      ++passed;
    });
    EXPECT_EQ(passed, threads);
  }
}

TEST(ThreadTeam, UnpinnedThreadsMayRunWhereverTheProcessMay) {
  const auto home = job::cpus_of_process();
  ThreadTeam team(2);
  std::vector<std::vector<int>> allowed(2);
  team.run([&](int thread) { allowed[static_cast<size_t>(thread)] = job::cpus_of_process(); });
  EXPECT_EQ(allowed[0], home);
  EXPECT_EQ(allowed[1], home);
}

TEST(ThreadTeam, PinnedThreadsKeepToTheirProcessorAndTheCallerIsFreeAfterwards) {
  const auto home = job::cpus_of_process();
  if (home.size() < 2) GTEST_SKIP() << "needs two processors";
  ThreadTeam team(2, {home[1], home[0]});
  std::vector<std::vector<int>> allowed(2);
  team.run([&](int thread) { allowed[static_cast<size_t>(thread)] = job::cpus_of_process(); });
  EXPECT_EQ(allowed[0], std::vector<int>{home[1]});
  EXPECT_EQ(allowed[1], std::vector<int>{home[0]});
  EXPECT_EQ(job::cpus_of_process(), home) << "what starts later must not inherit one core";
  EXPECT_THROW(team.run([](int thread) {
    if (thread == 0) throw std::runtime_error("on purpose");
  }),
               std::runtime_error);
  EXPECT_EQ(job::cpus_of_process(), home);
}

}  // namespace
}  // namespace trireme::generate
