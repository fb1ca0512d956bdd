// Phases as a device comes through them, by events of the fake run time.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "fakegpu/device_lane.hpp"
#include "support/world.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/device_clock.hpp"
#include "trireme/trace/perfetto.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::test {
namespace {

// Work that begins when `may_begin` is set.
void give_work(std::chrono::milliseconds length, const std::atomic<bool>& may_begin) {
  ASSERT_EQ(fakegpu::launch(nullptr, {},
                            [length, &may_begin] {
                              while (!may_begin)
                                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                              std::this_thread::sleep_for(length);
                            }),
            cudaSuccess);
}

class DeviceClock : public testing::Test {
 protected:
  void SetUp() override {
    own_device();
    fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
    trace::clear();
    trace::set_device_clock(comm::make_device_clock(nullptr));
  }
  void TearDown() override { trace::set_device_clock(nullptr); }
};

TEST_F(DeviceClock, TimesPhasesThatTheHostHasLeft) {
  using namespace std::chrono_literals;
  std::atomic<bool> may_begin{false};
  const double begun = base::monotonic_seconds();
  {
    const trace::Phase outer{"train", 7};
    give_work(30ms, may_begin);
    const trace::Phase inner{"evaluate"};
    give_work(20ms, may_begin);
  }
  EXPECT_TRUE(trace::device_phase_seconds().empty()) << "the device is still there";
  const double left = base::monotonic_seconds();
  may_begin = true;
  cudaStreamSynchronize(nullptr);
  const double took = base::monotonic_seconds() - begun;
  auto seconds = trace::device_phase_seconds();
  EXPECT_GE(seconds["train"], 0.05);
  EXPECT_LE(seconds["train"], took + 1e-3);
  EXPECT_GE(seconds["evaluate"], 0.02);
  EXPECT_LE(seconds["evaluate"], seconds["train"] - 0.03 + 1e-3);

  const auto events = nlohmann::json::parse(trace::merge_trace(std::vector<std::string>{
      trace::trace_events({0, "trainer", "node", 0, trace::start_seconds()})}));
  std::map<std::string, nlohmann::json> lane;
  nlohmann::json id;
  for (const auto& event : events["traceEvents"]) {
    if (event["name"] == "thread_name" && event["args"]["name"] == "GPU") id = event["tid"];
  }
  for (const auto& event : events["traceEvents"]) {
    if (event["ph"] == "X" && event["tid"] == id) lane[event["name"]] = event;
  }
  ASSERT_EQ(lane.size(), 2u);
  const auto end = [&](const char* name) {
    return lane[name]["ts"].get<double>() + lane[name]["dur"].get<double>();
  };
  EXPECT_EQ(lane["train"]["args"]["n"], 7);
  EXPECT_NEAR(lane["train"]["dur"].get<double>() * 1e-6, seconds["train"], 1e-5);
  EXPECT_GE(lane["evaluate"]["ts"].get<double>(), lane["train"]["ts"].get<double>() + 3e4);
  EXPECT_LE(end("evaluate"), end("train") + 1e-3);
  // On the host's clock, or late by as much as the first wait for the device was noticed late.
  EXPECT_GE(lane["train"]["ts"].get<double>() * 1e-6 + trace::start_seconds(), begun - 1e-3);
  EXPECT_GE(end("train") * 1e-6 + trace::start_seconds(), left - 1e-3) << "the host had left";

  trace::reset_phases();
  EXPECT_TRUE(trace::device_phase_seconds().empty());
}

TEST_F(DeviceClock, CountsAPhaseWhenTheDeviceHasEndedIt) {
  using namespace std::chrono_literals;
  std::atomic<bool> may_begin{false};
  {
    const trace::Phase phase{"rollout"};
    give_work(20ms, may_begin);
  }
  trace::reset_phases();
  may_begin = true;
  cudaStreamSynchronize(nullptr);
  EXPECT_GE(trace::device_phase_seconds()["rollout"], 0.02)
      << "of the line after the one in which the host left it";
}

}  // namespace
}  // namespace trireme::test
