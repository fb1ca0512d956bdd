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
      team.barrier();
      EXPECT_EQ(before, 3);
    });
  }
  EXPECT_EQ(runs, (std::vector<int>{50, 50, 50}));
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
  EXPECT_THROW(team.run([](int thread) { if (thread == 0) throw std::runtime_error("on purpose"); }), std::runtime_error);
  EXPECT_EQ(job::cpus_of_process(), home);
}

}  // namespace
}  // namespace trireme::generate
