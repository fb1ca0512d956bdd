// The thread plan of simulated nodes, and of this one.
#include "torch/torch.hpp"

#include "trireme/machine/threads.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "support/world.hpp"
#include "trireme/job/core_share.hpp"
#include "trireme/kernels/parallel.hpp"

namespace trireme::machine {
namespace {

using testing::HasSubstr;

std::vector<int> range(int first, int count) {
  std::vector<int> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// `nodes` nodes of `ranks` ranks that have all roles; rank r of a node has cores [r * stride, r *
// stride + each).
std::vector<job::RankPlace> places_of(int nodes, int ranks, int each, int stride) {
  std::vector<job::RankPlace> places;
  for (int node = 0; node < nodes; ++node) {
    for (int r = 0; r < ranks; ++r) {
      job::RankPlace place;
      place.rank = node * ranks + r;
      place.node = node;
      place.cores = range(r * stride, each);
      place.threads = {1, 1, 1};
      place.bound = stride > 0;
      places.push_back(place);
    }
  }
  return places;
}

using Plan = std::array<int, 3>;

void expect_all(const std::vector<job::RankPlace>& places, const Plan& plan) {
  for (const auto& place : places) EXPECT_EQ(place.threads, plan) << "rank " << place.rank;
}

TEST(ThreadPlan, EveryBoundRankOfAnEightByEightNodeUsesItsEightCores) {
  for (const char* wish : {"auto", "phase"}) {
    auto places = places_of(2, 8, 8, 8);
    share_threads(wish, places);
    expect_all(places, {8, 8, 8});
  }
}

TEST(ThreadPlan, UnboundRanksDivideTheirNodeOnly) {
  for (const char* wish : {"auto", "phase"}) {
    auto places = places_of(4, 8, 64, 0);
    share_threads(wish, places);
    expect_all(places, {8, 8, 8});
  }
}

TEST(ThreadPlan, PhaseGivesARoleTheCoresOfTheRanksThatWait) {
  const auto split = [] {
    auto places = places_of(1, 8, 64, 0);  // six trainers, two generators, unbound
    for (auto& place : places) place.threads = place.rank < 6 ? Plan{1, 0, 1} : Plan{0, 1, 0};
    return places;
  };
  auto places = split();
  share_threads("auto", places);
  EXPECT_EQ(places[0].threads, (Plan{8, 0, 8}));
  EXPECT_EQ(places[7].threads, (Plan{0, 8, 0}));
  places = split();
  share_threads("phase", places);
  EXPECT_EQ(places[0].threads, (Plan{10, 0, 10}));
  EXPECT_EQ(places[7].threads, (Plan{0, 32, 0}));
}

TEST(ThreadPlan, PhaseOfBoundRanksTakesNobodysCores) {
  auto places = places_of(1, 8, 8, 8);
  for (auto& place : places) place.threads = place.rank < 6 ? Plan{1, 0, 0} : Plan{0, 1, 0};
  share_threads("phase", places);
  EXPECT_EQ(places[0].threads, (Plan{8, 0, 0}));
  EXPECT_EQ(places[7].threads, (Plan{0, 8, 0}));
}

TEST(ThreadPlan, RanksWithoutARoleNeedNoCores) {
  auto places = places_of(1, 4, 16, 0);
  places[3].threads = {0, 0, 0};
  share_threads("auto", places);
  EXPECT_EQ(places[0].threads, (Plan{5, 5, 5}));
  EXPECT_EQ(places[3].threads, (Plan{0, 0, 0}));
}

TEST(ThreadPlan, AQuotaCaps) {
  auto places = places_of(1, 2, 64, 0);
  for (auto& place : places) place.quotas = {{1, 8}};
  share_threads("auto", places);
  expect_all(places, {4, 4, 4});
}

TEST(ThreadPlan, ANumberIsTaken) {
  auto places = places_of(1, 2, 8, 8);
  share_threads("3", places);
  expect_all(places, {3, 3, 3});
}

TEST(ThreadPlan, PinnedWhereTheLauncherGaveCores) {
  config::Options options;
  auto places = places_of(1, 2, 8, 8);
  share_threads("auto", places);
  const bool user_binds = !job::own_binding([](const char* name) {
                             const char* value = std::getenv(name);
                             return value ? std::optional<std::string>(value) : std::nullopt;
                           }).empty();
  EXPECT_EQ(plan_threads(options, places, 1).not_pinned.empty(), !user_binds);
  EXPECT_EQ(plan_threads(options, places, 1).trainer.count, 8);
  options.run.pin_threads = config::PinThreads::never;
  EXPECT_THAT(plan_threads(options, places, 1).not_pinned, HasSubstr("never"));
  options.run.pin_threads = config::PinThreads::automatic;
  places[0].cores = range(7, 8);  // core 8 is rank 1's as well
  share_threads("8", places);
  EXPECT_THAT(plan_threads(options, places, 1).not_pinned, HasSubstr("share"));
  EXPECT_TRUE(plan_threads(options, places, 1).trainer.cpus.empty());
}

TEST(ThreadPlan, OfThisNode) {
  config::Options options;
  const auto topology = comm::discover(test::world());
  const auto places = gather_places(options, test::world(), topology, {1, 1, 1});
  ASSERT_EQ(static_cast<int>(places.size()), test::world().size());
  for (int r = 0; r < test::world().size(); ++r) {
    EXPECT_EQ(places[static_cast<size_t>(r)].rank, r);
    EXPECT_FALSE(places[static_cast<size_t>(r)].cores.empty());
    EXPECT_FALSE(places[static_cast<size_t>(r)].node_cores.empty());
  }
  const auto plan = plan_threads(options, test::world(), topology, {1, 1, 1});
  const auto cores = static_cast<int>(places[0].cores.size());
  EXPECT_EQ(plan.trainer.count, std::max(1, cores / test::world().size()))
      << "unbound, as the tests are started";
}

// Our loops run on LibTorch's threads: compiled without OpenMP they would run on one.
TEST(Threads, OfLibTorchTakePartInOurLoops) {
  Threads{.count = 3, .cpus = {}}.use();
  std::array<int, 3> tasks{};
  kernels::parallel_for(0, 3, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) tasks[static_cast<size_t>(at::get_thread_num())] += 1;
  });
  EXPECT_EQ(tasks, (std::array<int, 3>{1, 1, 1}));
  Threads{}.use();
}

TEST(Threads, PinnedOnesKeepToTheirCoreAndTheCallersStaysFree) {
  const auto all = job::cpus_of_process();
  if (all.size() < 2) GTEST_SKIP() << "needs two cores";
  Threads{.count = 2, .cpus = {all[0], all[1]}}.use();
  std::array<std::vector<int>, 2> allowed;
  kernels::parallel_for(0, 2, 1, [&](int64_t first, int64_t) {
    allowed[static_cast<size_t>(first)] = job::cpus_of_process();
  });
  EXPECT_EQ(allowed[0], all);
  EXPECT_EQ(allowed[1], std::vector<int>{all[1]});
  std::vector<int> of_new_thread;
  std::thread([&] { of_new_thread = job::cpus_of_process(); }).join();
  EXPECT_EQ(of_new_thread, all);
  Threads{}.use();
}

TEST(ThreadMeter, CountsThreadsThatWork) {
  // Processor time, not time on the wall: other programs may have the cores meanwhile.
  const auto burn = [](double seconds) {
    timespec now{};
    do {
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while (static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) < seconds);
  };
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  const double before =
      static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
  ThreadMeter meter;
  EXPECT_EQ(meter.worked(), 0);
  bool leave = false;
  std::atomic<bool> burnt{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::thread idle([&] {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return leave; });
  });
  meter.start();
  std::thread busy([&] {
    burn(0.4);
    burnt = true;
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return leave; });
  });
  burn(before + 0.5);
  while (!burnt) std::this_thread::yield();
  meter.stop();
  EXPECT_EQ(meter.worked(), 2);
  {
    const std::lock_guard lock(mutex);
    leave = true;
  }
  wake.notify_all();
  busy.join();
  idle.join();
}

}  // namespace
}  // namespace trireme::machine
