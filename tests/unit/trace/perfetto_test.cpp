#include "trireme/trace/perfetto.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/files.hpp"
#include "trireme/trace/gauge.hpp"

namespace trireme::trace {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

void record_something() {
  clear();
  record_events(true);
  set_capacity(size_t{1} << 16);
  for (int i = 0; i < 3; ++i) {
    Region iteration{"iteration", i};
    Region gather{"all_gather", no_argument, Category::communication, 4096};
    for (int j = 0; j < 20; ++j) Region tiny{"tiny \"quoted\\name\""};
    counter("kv_pages", 7.5 * i);
    instant("stop requested", i);
  }
  std::thread([] {
    name_thread("checkpoint writer");
    Region write{"write", no_argument, Category::io};
  }).join();
}

RankIdentity identity(int rank) {
  RankIdentity id;
  id.rank = rank;
  id.roles = rank == 0 ? "trainer" : "generator, reward";
  id.host = "node7";
  id.origin = start_seconds();
  return id;
}

// Slices of one track must be disjoint or nested, or the viewer drops them.
void expect_nested(const std::vector<Json>& slices) {
  std::vector<double> open_until;
  double last_begin = -1e300;
  for (const Json& slice : slices) {
    const double begin = std::round(slice["ts"].get<double>() * 1000);  // whole nanoseconds
    const double end = begin + std::round(slice["dur"].get<double>() * 1000);
    EXPECT_GE(begin, last_begin);
    last_begin = begin;
    while (!open_until.empty() && open_until.back() <= begin && open_until.back() < end)
      open_until.pop_back();
    EXPECT_TRUE(open_until.empty() || end <= open_until.back()) << slice.dump();
    open_until.push_back(end);
  }
}

TEST(Perfetto, ParsesAndNests) {
  record_something();
  const std::vector<std::string> fragments{trace_events(identity(0)), trace_events(identity(1))};
  const Json trace = Json::parse(merge_trace(fragments));
  std::map<int64_t, std::vector<Json>> slices;
  std::map<std::string, int> kinds;
  for (const Json& event : trace["traceEvents"]) {
    ++kinds[event["ph"].get<std::string>()];
    if (event["ph"] == "X") slices[event["tid"].get<int64_t>()].push_back(event);
  }
  EXPECT_EQ(kinds["X"], 2 * (3 + 3 + 60 + 1));
  EXPECT_EQ(kinds["C"], 2 * 3);
  EXPECT_EQ(kinds["i"], 2 * 3);
  EXPECT_EQ(slices.size(), 4u);
  for (const auto& [track, list] : slices) expect_nested(list);
}

TEST(Perfetto, NamesProcessesThreadsAndArguments) {
  record_something();
  const std::string events = trace_events(identity(3));
  EXPECT_THAT(events, HasSubstr("rank 3 (generator, reward) on node7"));
  EXPECT_THAT(events, HasSubstr("checkpoint writer"));
  EXPECT_THAT(events, HasSubstr(R"("cat":"communication")"));
  EXPECT_THAT(events, HasSubstr(R"("args":{"n":2}})"));
  EXPECT_THAT(events, HasSubstr(R"("args":{"bytes":4096}})"));
}

TEST(Perfetto, ClockOffsetMovesEverything) {
  record_something();
  const auto first_time = [](const RankIdentity& id) {
    const Json trace = Json::parse(merge_trace(std::vector<std::string>{trace_events(id)}));
    double first = 1e300;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X") first = std::min(first, event["ts"].get<double>());
    }
    return first;
  };
  RankIdentity shifted = identity(0);
  shifted.clock_offset = 2;
  EXPECT_NEAR(first_time(shifted) - first_time(identity(0)), 2e6, 200);
}

TEST(Perfetto, OpenRegionsAreShownUpToNow) {
  clear();
  Region iteration{"iteration", 9};
  Region inner{"save"};
  const Json trace = Json::parse(merge_trace(std::vector<std::string>{trace_events(identity(0))}));
  std::vector<Json> slices;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") slices.push_back(event);
  }
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0]["name"], "iteration");
  expect_nested(slices);
}

TEST(Perfetto, RanksWithoutEventsLeaveNoGap) {
  record_something();
  const std::string mine = trace_events(identity(0));
  const std::string merged = merge_trace(std::vector<std::string>{mine, "", mine});
  EXPECT_TRUE(Json::accept(merged));
  if (const char* keep = std::getenv("TRIREME_KEEP_TRACE"))
    base::write_file_atomically(keep, merged);
}

TEST(Perfetto, NoEventsAtAllIsAFileToo) {
  for (const std::vector<std::string>& fragments :
       {std::vector<std::string>{}, {""}, {"", "", ""}}) {
    const Json trace = Json::parse(merge_trace(fragments));
    EXPECT_TRUE(trace.at("traceEvents").empty());
  }
}

// A rank whose clock is behind has times before the start of rank 0: all of them are moved by as
// much, and none loses its sign.
TEST(Perfetto, TimesBeforeTheStartAreNegative) {
  clear();
  record_events(true);
  for (int i = 0; i < 5; ++i) instant("moment", i);
  const auto times = [](double offset) {
    RankIdentity id = identity(0);
    id.clock_offset = offset;
    std::vector<double> out;
    const Json trace = Json::parse(merge_trace(std::vector<std::string>{trace_events(id)}));
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "i") out.push_back(event["ts"].get<double>());
    }
    return out;
  };
  const auto here = times(0), before = times(-1e4);
  ASSERT_EQ(here.size(), 5u);
  ASSERT_EQ(before.size(), 5u);
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_LT(before[i], 0);
    EXPECT_NEAR(before[i] - here[i], -1e10, 200) << "microseconds";
  }
}

// A gauge says what changed, and nothing where nothing did.
TEST(Perfetto, GaugesShowChanges) {
  clear();
  record_events(true);
  Gauge gauge{"waiting"};
  for (const int64_t value : {0, 3, 3, 3, 0, 0, -1}) gauge.set(value);
  std::vector<double> values;
  const Json trace = Json::parse(merge_trace(std::vector<std::string>{trace_events(identity(0))}));
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "C") values.push_back(event["args"]["value"].get<double>());
  }
  EXPECT_EQ(values, (std::vector<double>{3, 0, -1}));
}

}  // namespace
}  // namespace trireme::trace
