#include "trireme/trace/region.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "trireme/base/stopwatch.hpp"
#include "trireme/trace/device_wait.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::trace {
namespace {

using testing::ElementsAre;
using testing::Pair;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

class RegionTest : public testing::Test {
 protected:
  void SetUp() override {
    clear();
    record_events(true);
    record_kernels(false);
    set_capacity(size_t{1} << 16);
  }
};

const RegionTotal& find(const Summary& summary, std::string_view path) {
  for (const auto& region : summary.regions) {
    if (region.path == path) return region;
  }
  throw std::runtime_error("no region " + std::string(path));
}

TEST_F(RegionTest, TotalsByPlaceInTheCallTree) {
  for (int i = 0; i < 3; ++i) {
    Region outer{"iteration", i};
    { Region inner{"rollout", no_argument, Category::communication, 100}; }
    {
      Region train{"train"};
      Region inner{"rollout"};
      sleep_ms(2);
    }
  }
  const Summary summary = summarize(0, "all");
  ASSERT_EQ(summary.regions.size(), 4u);
  EXPECT_EQ(find(summary, "iteration").calls, 3);
  EXPECT_EQ(find(summary, "iteration/rollout").calls, 3);
  EXPECT_EQ(find(summary, "iteration/rollout").bytes, 300);
  EXPECT_EQ(find(summary, "iteration/rollout").category, Category::communication);
  EXPECT_GE(find(summary, "iteration/train/rollout").seconds, 0.006);
  EXPECT_GE(find(summary, "iteration").seconds, find(summary, "iteration/train").seconds);
  EXPECT_LE(find(summary, "iteration/train/rollout").longest,
            find(summary, "iteration/train/rollout").seconds);
}

// The tick clock agrees with the monotonic clock.
TEST_F(RegionTest, SecondsAreSeconds) {
  const base::Stopwatch watch;
  {
    Region region{"sleep"};
    sleep_ms(50);
  }
  const double truth = watch.seconds();
  EXPECT_NEAR(find(summarize(0, ""), "sleep").seconds, truth, 0.001 + 0.01 * truth);
}

TEST_F(RegionTest, OpenRegionsCountUpToNow) {
  Region region{"iteration", 4};
  sleep_ms(3);
  const Summary summary = summarize(0, "");
  EXPECT_EQ(find(summary, "iteration").calls, 1);
  EXPECT_GE(find(summary, "iteration").seconds, 0.003);
}

TEST_F(RegionTest, OnlyOutermostWaitAndCommunicationAreExposed) {
  {
    Region wait{"wait", no_argument, Category::wait};
    Region inner{"wait inner", no_argument, Category::wait};
    sleep_ms(4);
  }
  const Summary summary = summarize(0, "");
  EXPECT_DOUBLE_EQ(summary.wait, find(summary, "wait").seconds);
  EXPECT_EQ(summary.communication, 0);
}

// A host gives a device work and goes on: what the device waits for is no region's.
TEST_F(RegionTest, WaitsOfADeviceAreExposedCommunication) {
  { Region gather{"gather", no_argument, Category::communication}; }
  add_device_wait(1.5);
  add_device_wait(0.25);
  EXPECT_EQ(device_wait(), 1.75);
  // One summary: each measures the clock's rate anew.
  const Summary summary = summarize(0, "");
  EXPECT_DOUBLE_EQ(summary.communication, find(summary, "gather").seconds + 1.75);
}

// A generator that writes while it waits for trainers is not idle, but where it waits for the other
// ranks of its replica.
TEST_F(RegionTest, WorkWithinAWaitIsNoWait) {
  {
    Region iteration{"iteration", 1};
    Region wait{"wait for trainers", no_argument, Category::wait};
    sleep_ms(4);
    Region step{"generate step"};
    sleep_ms(8);
    Region sum{"sum", no_argument, Category::communication};
    Region room{"wait for room", no_argument, Category::wait};
    sleep_ms(2);
  }
  const Summary summary = summarize(0, "");
  const RegionTotal& waits = find(summary, "iteration/wait for trainers");
  const RegionTotal& step = find(summary, waits.path + "/generate step");
  const RegionTotal& sum = find(summary, step.path + "/sum");
  const RegionTotal& room = find(summary, sum.path + "/wait for room");
  EXPECT_GT(room.seconds, 0.002);
  EXPECT_NEAR(summary.wait, waits.seconds - step.seconds + room.seconds, 1e-9);
  EXPECT_NEAR(find(summary, "iteration").wait, summary.wait, 1e-9);
  EXPECT_NEAR(step.wait, room.seconds, 1e-9);
  EXPECT_DOUBLE_EQ(summary.communication, sum.seconds);
}

TEST_F(RegionTest, PhaseSecondsSinceReset) {
  { Phase phase{"rollout", 1}; }
  reset_phases();
  {
    Phase outer{"total"};
    Region not_a_phase{"work"};
    Phase inner{"train", 1};
    sleep_ms(2);
  }
  EXPECT_THAT(phase_seconds(),
              ElementsAre(Pair("total", testing::Ge(0.002)), Pair("train", testing::Ge(0.002))));
}

TEST_F(RegionTest, PhasesRecordMemory) {
  {
    Phase phase{"allocate"};
    std::vector<char> block(size_t{64} << 20, 1);
    EXPECT_EQ(block.back(), 1);
  }
  const Summary summary = summarize(0, "");
  EXPECT_GT(find(summary, "allocate").peak, int64_t{64} << 20);
  EXPECT_GE(summary.host_peak, find(summary, "allocate").peak);
  EXPECT_GT(host_memory().resident, 0);
  set_device_memory_source([]() -> Memory { return {70, 77}; });
  EXPECT_EQ(summarize(0, "").device_peak, 77);
  set_device_memory_source(nullptr);
}

TEST_F(RegionTest, ThePeakBelongsToThePhaseThatReachedIt) {
  static Memory device;
  device = {10, 30};
  set_device_memory_source([] { return device; });
  { Phase before{"before"}; }
  int64_t at_begin = 0;
  {
    Phase reached{"reached"};
    at_begin = host_memory().resident;
    std::vector<char> block(size_t{256} << 20, 1);  // more than any test before it held
    EXPECT_EQ(block.back(), 1);
    device = {20, 50};
  }
  { Phase after{"after"}; }
  set_device_memory_source(nullptr);
  const auto memory = phase_memory();
  EXPECT_GT(memory.at("reached").host, at_begin + (int64_t{200} << 20));
  EXPECT_LT(memory.at("before").host, memory.at("reached").host);
  EXPECT_LE(memory.at("after").host, memory.at("reached").host);
  EXPECT_EQ(memory.at("before").device, 10) << "what it held: the peak is older";
  EXPECT_EQ(memory.at("reached").device, 50);
  EXPECT_EQ(memory.at("after").device, 20);
}

TEST_F(RegionTest, WhereAnExceptionCameFrom) {
  struct OpensOne {
    ~OpensOne() { Region clean{"clean up"}; }
  };
  const Region outer{"outer"};
  try {
    const Region middle{"middle", 7};
    const OpensOne cleaner;
    const Region inner{"inner"};
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(where(), "outer");
    EXPECT_EQ(where_it_failed(), "outer > middle 7 > inner");
  }
  { Region next{"next"}; }
  EXPECT_EQ(where_it_failed(), "outer") << "that one is over";
}

TEST_F(RegionTest, ShortestAreDroppedAndCounted) {
  set_capacity(100);
  {
    Region coarse{"coarse"};
    for (int i = 0; i < 1000; ++i) Region fine{"fine"};
    sleep_ms(1);
  }
  for (int i = 0; i < 150; ++i) Region fine{"fine"};
  const Summary summary = summarize(0, "");
  EXPECT_GT(summary.dropped, 1000);
  EXPECT_EQ(find(summary, "coarse/fine").calls, 1000);  // totals are never dropped
}

TEST_F(RegionTest, KernelsOnlyWhenAsked) {
  { Region kernel{"gemm", no_argument, Category::kernel}; }
  EXPECT_TRUE(summarize(0, "").regions.empty());
  record_kernels(true);
  { Region kernel{"gemm", no_argument, Category::kernel}; }
  EXPECT_EQ(summarize(0, "").regions.size(), 1u);
}

TEST_F(RegionTest, WhereFromAnotherThread) {
  Region iteration{"iteration", 12};
  Region train{"train"};
  Region step{"optimizer", 3};
  std::string seen;
  std::thread([&] {
    Region other{"watchdog"};
    seen = where();
  }).join();
  EXPECT_EQ(seen, "iteration 12 > train > optimizer 3");
}

TEST_F(RegionTest, ThreadsAndReadersAtTheSameTime) {
  std::atomic<bool> stop{false};
  std::atomic<int> started{0};
  std::vector<std::thread> writers;
  for (int t = 0; t < 3; ++t) {
    writers.emplace_back([&] {
      name_thread("writer");
      while (!stop) {
        Region a{"a"};
        Region b{"b", 1};
        counter("c", 1);
        instant("i");
        ++started;
      }
    });
  }
  for (int i = 0; i < 200 || started < 100; ++i) {
    Region main{"main"};
    summarize(0, "");
    where();
  }
  stop = true;
  for (auto& thread : writers) thread.join();
  EXPECT_EQ(summarize(0, "").counter_max.at("c"), 1);
}

TEST_F(RegionTest, CountersKeepTheirMaximum) {
  for (const double value : {1.0, 5.0, 2.0}) counter("kv_pages", value);
  EXPECT_EQ(summarize(0, "").counter_max.at("kv_pages"), 5);
}

}  // namespace
}  // namespace trireme::trace
