#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "driver/metrics.hpp"
#include "trireme/base/text.hpp"

namespace trireme::driver {
namespace {

TEST(Metrics, JsonKeepsEveryBitAndNullsWhatIsNoNumber) {
  IterationMetrics metrics;
  metrics.iteration = 3;
  metrics.set("reward", 0.1 + 0.2);
  metrics.set("value_loss", std::numeric_limits<double>::quiet_NaN());
  metrics.seconds["total"] = 1.5;
  metrics.memory["host"] = 12;
  EXPECT_EQ(to_json(metrics), "{\"iteration\":3,\"reward\":0.30000000000000004,\"value_loss\":null,\"tokens\":0,\"version\":0,"
                              "\"seconds\":{\"total\":1.5},\"memory\":{\"host\":12}}");
  metrics.set("reward", 0.5);
  EXPECT_EQ(metrics.get("reward"), 0.5);
  EXPECT_TRUE(std::isnan(metrics.get("nothing")));
}

TEST(Metrics, FileIsCutBackToTheCheckpoint) {
  const auto path = std::filesystem::temp_directory_path() / base::text("trireme-metrics-", getpid());
  int64_t cursor = 0;
  {
    MetricsFile file(path, 0);
    file.append("one");
    cursor = file.cursor();
    file.append("two, lost with the job");
  }
  {
    MetricsFile file(path, cursor);
    file.append("two");
  }
  EXPECT_EQ(base::read_file(path), "one\ntwo\n");
  { MetricsFile file(path, 10000); }  // a cursor beyond the end does not grow the file
  EXPECT_EQ(base::read_file(path), "one\ntwo\n");
  std::filesystem::remove(path);
}

TEST(Metrics, PlotShowsTheCurve) {
  const auto plot = text_plot({0, 0.5, 1}, "reward", 60, 3);
  EXPECT_EQ(plot, "reward\n    1.000 |  *\n          | * \n    0.000 |*  \n          +---\n           1 3\n");
  EXPECT_EQ(text_plot({1}, "reward"), "");
  EXPECT_FALSE(text_plot(std::vector<double>(500, 0.25), "flat").empty());
}

}  // namespace
}  // namespace trireme::driver
