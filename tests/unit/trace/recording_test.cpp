// What the recorder keeps of simulated call trees and threads, and how it looks in trace.json when
// names are awkward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "trireme/trace/perfetto.hpp"

namespace trireme::trace {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::SizeIs;

class Recording : public testing::Test {
 protected:
  void SetUp() override {
    clear();
    record_events(true);
    record_kernels(false);
    set_capacity(size_t{1} << 16);
  }
  void TearDown() override { set_capacity(size_t{1} << 16); }

  // Events of this process as rank 2 of a job shows them.
  static std::vector<Json> events(const std::string& kind,
                                  RankIdentity identity = {2, "trainer", "node7", 0,
                                                           start_seconds()}) {
    std::vector<Json> out;
    const Json trace = Json::parse(merge_trace(std::vector<std::string>{trace_events(identity)}));
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == kind) out.push_back(event);
    }
    return out;
  }
};

using Counts = std::map<std::string, int64_t>;

// A random tree of regions over three names; `calls` counts by path what was opened.
void grow(std::mt19937& random, const std::string& path, int depth, Counts& calls) {
  const auto go_down = [&](const char* name) {
    const std::string here = path.empty() ? name : path + "/" + name;
    ++calls[here];
    if (depth < 6) grow(random, here, depth + 1, calls);
  };
  for (auto children = random() % 4; children > 0; --children) {
    switch (random() % 3) {
      case 0: {
        const Region region{"a"};
        go_down("a");
        break;
      }
      case 1: {
        const Region region{"b", 1, Category::communication, 8};
        go_down("b");
        break;
      }
      default: {
        const Region region{"c"};
        go_down("c");
      }
    }
  }
}

TEST_F(Recording, AnyTreeIsCountedByItsPaths) {
  std::mt19937 random(7);
  Counts wanted;
  for (int i = 0; i < 20; ++i) grow(random, "", 0, wanted);
  const Summary summary = summarize(0, "");
  Counts got;
  std::map<std::string, double> seconds, of_children;
  for (const RegionTotal& region : summary.regions) {
    got[region.path] = region.calls;
    seconds[region.path] = region.seconds;
    if (const size_t slash = region.path.rfind('/'); slash != std::string::npos)
      of_children[region.path.substr(0, slash)] += region.seconds;
    EXPECT_EQ(region.bytes, region.path.ends_with('b') ? 8 * region.calls : 0) << region.path;
    EXPECT_LE(region.longest, region.seconds);
  }
  EXPECT_EQ(got, wanted);
  EXPECT_GT(wanted.size(), 100u);
  for (const auto& [path, sum] : of_children) EXPECT_LE(sum, seconds[path] * (1 + 1e-9)) << path;
  int64_t all = 0;
  for (const auto& [path, calls] : wanted) all += calls;
  EXPECT_THAT(events("X"), SizeIs(static_cast<size_t>(all)));
}

void dive(int levels, const std::function<void()>& at_the_bottom) {
  if (levels == 0) return at_the_bottom();
  const Region region{"deeper"};
  dive(levels - 1, at_the_bottom);
}

TEST_F(Recording, RecursionIsAPlacePerLevel) {
  dive(300, [] {
    const std::string here = where();
    EXPECT_EQ(std::count(here.begin(), here.end(), '>'), 299);
  });
  const Summary summary = summarize(0, "");
  EXPECT_THAT(summary.regions, SizeIs(300));
  for (const RegionTotal& region : summary.regions) EXPECT_EQ(region.calls, 1);
  EXPECT_EQ(where(), "");
}

TEST_F(Recording, FullBuffersKeepTheCourseOfCountersAndInstants) {
  set_capacity(16);
  for (int i = 0; i < 1000; ++i) {
    counter("kv_pages", i);
    instant("beat", i);
  }
  const auto samples = events("C");
  const auto instants = events("i");
  ASSERT_THAT(samples, SizeIs(testing::AllOf(testing::Ge(8u), testing::Le(16u))));
  EXPECT_EQ(summarize(0, "").dropped,
            2000 - static_cast<int64_t>(samples.size() + instants.size()));
  EXPECT_EQ(summarize(0, "").counter_max.at("kv_pages"), 999) << "the table never loses one";
  double before = -1;
  for (const Json& sample : samples) {
    EXPECT_GT(sample["args"]["value"].get<double>(), before);
    before = sample["args"]["value"].get<double>();
  }
  EXPECT_EQ(samples.front()["args"]["value"], 0) << "the first one stays";
  EXPECT_GE(before, 900) << "and a late one";
}

TEST_F(Recording, WithoutEventsTheTotalsGoOn) {
  record_events(false);
  { const Region region{"quiet"}; }
  instant("unseen");
  counter("pages", 3);
  EXPECT_THAT(events("X"), SizeIs(0));
  EXPECT_THAT(events("i"), SizeIs(0));
  EXPECT_THAT(events("C"), SizeIs(0));
  const Summary summary = summarize(0, "");
  EXPECT_THAT(summary.regions, SizeIs(1));
  EXPECT_EQ(summary.counter_max.at("pages"), 3);
  EXPECT_EQ(summary.dropped, 0);
}

std::set<int64_t> tracks(const std::vector<Json>& slices) {
  std::set<int64_t> out;
  for (const Json& slice : slices) out.insert(slice["tid"].get<int64_t>());
  return out;
}

TEST_F(Recording, ThreadsOfOneTimeHaveTracksOfTheirOwn) {
  constexpr int threads = 5;
  std::mutex mutex;
  std::condition_variable all_inside;
  int inside = 0;
  std::vector<std::thread> crew;
  for (int i = 0; i < threads; ++i) {
    crew.emplace_back([&] {
      const Region region{"together", 1};
      std::unique_lock lock(mutex);
      if (++inside == threads) all_inside.notify_all();
      all_inside.wait(lock, [&] { return inside == threads; });
    });
  }
  for (auto& thread : crew) thread.join();
  EXPECT_THAT(tracks(events("X")), SizeIs(threads));
  EXPECT_THAT(summarize(0, "").regions, SizeIs(0)) << "the table is about the main thread";
}

TEST_F(Recording, ThreadsOneAfterAnotherShareATrack) {
  for (int i = 0; i < 20; ++i) {
    std::thread([] {
      name_thread("worker");
      const Region region{"turn"};
    }).join();
  }
  const auto slices = events("X");
  EXPECT_THAT(slices, SizeIs(20));
  EXPECT_THAT(tracks(slices), SizeIs(1));
}

TEST_F(Recording, AwkwardNamesComeBackFromTheJson) {
  static constexpr char awkward[] =
      "a \"quoted\\ name\"\nof two lines\t\x01\x1f\x7f, M\xC3\xBCnchen \xE7\xAF\x80\xE7\x82\xB9 "
      "\xF0\x9F\x9A\xA3 <script>";
  {
    const Region region{awkward};
    counter("pages \"\\\n", 1);
    instant("stop \"now\"\r\n");
    name_thread(awkward);
  }
  const RankIdentity identity{12, awkward, awkward, 0, start_seconds()};
  EXPECT_EQ(events("X", identity)[0]["name"], awkward);
  EXPECT_EQ(events("C", identity)[0]["name"], "pages \"\\\n");
  EXPECT_EQ(events("i", identity)[0]["name"], "stop \"now\"\r\n");
  const auto names = events("M", identity);
  EXPECT_EQ(names[0]["args"]["name"], "rank 12 (" + std::string(awkward) + ") on " + awkward);
  EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const Json& m) {
    return m["name"] == "thread_name" && m["args"]["name"] == awkward;
  }));
  name_thread("main");
}

TEST_F(Recording, NumbersAtTheirLimits) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity(), -1.5e300, 0.0})
    counter("value", value);
  {
    const Region region{"argument", std::numeric_limits<int64_t>::max(), Category::work,
                        int64_t{1} << 62};
  }
  { const Region region{"least", std::numeric_limits<int64_t>::min() + 1}; }
  const auto samples = events("C");
  ASSERT_THAT(samples, SizeIs(2)) << "JSON has no NaN and no infinity";
  EXPECT_DOUBLE_EQ(samples[0]["args"]["value"].get<double>(), -1.5e300);
  const auto slices = events("X");
  EXPECT_EQ(slices[0]["args"]["n"].get<int64_t>(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(slices[0]["args"]["bytes"].get<int64_t>(), int64_t{1} << 62);
  EXPECT_EQ(slices[1]["args"]["n"].get<int64_t>(), std::numeric_limits<int64_t>::min() + 1);
}

TEST_F(Recording, TimesBeforeTheOriginAreNegative) {
  {
    const Region outer{"outer"};
    const Region inner{"inner"};
  }
  const auto slices = events("X", {2, "", "", -1000.0, start_seconds()});
  ASSERT_THAT(slices, SizeIs(2));
  for (const Json& slice : slices) {
    EXPECT_LT(slice["ts"].get<double>(), 0);
    EXPECT_GT(slice["ts"].get<double>(), -1000e6) << "this process is not 1000 s old at its start";
    EXPECT_GE(slice["dur"].get<double>(), 0);
  }
  EXPECT_LE(slices[0]["ts"].get<double>(), slices[1]["ts"].get<double>());
}

TEST(MergeTrace, NothingIsStillAValidFile) {
  EXPECT_THAT(Json::parse(merge_trace({}))["traceEvents"], SizeIs(0));
  EXPECT_THAT(Json::parse(merge_trace(std::vector<std::string>{"", ""}))["traceEvents"], SizeIs(0));
  EXPECT_THAT(Json::parse(merge_trace(
                  std::vector<std::string>{"", "{}", "", "{},\n{}", ""}))["traceEvents"],
              SizeIs(3));
}

}  // namespace
}  // namespace trireme::trace
