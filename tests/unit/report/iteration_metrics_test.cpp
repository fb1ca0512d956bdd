#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trireme/base/text.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/report/metrics_file.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::report {
namespace {

TEST(Metrics, JsonKeepsEveryBitAndNullsWhatIsNoNumber) {
  IterationMetrics metrics;
  metrics.iteration = 3;
  metrics.set("reward", 0.1 + 0.2);
  metrics.set("value_loss", std::numeric_limits<double>::quiet_NaN());
  metrics.seconds["total"] = 1.5;
  metrics.memory["host"] = 12;
  EXPECT_EQ(to_json(metrics),
            "{\"iteration\": 3, \"reward\": 0.30000000000000004, \"value_loss\": null, \"tokens\": "
            "0, \"version\": 0, "
            "\"seconds\": {\"total\": 1.5}, \"memory\": {\"host\": 12}}");
  metrics.set("reward", 0.5);
  EXPECT_EQ(metrics.get("reward"), 0.5);
  EXPECT_TRUE(std::isnan(metrics.get("nothing")));
}

TEST(Metrics, TheClockAndThePlanAreInTheLine) {
  IterationMetrics metrics;
  metrics.iteration = 3;
  metrics.time = 1795742000.25;
  metrics.iterations = 40;
  metrics.epoch = 1.5;
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_EQ(json.at("time"), 1795742000.25);
  EXPECT_EQ(json.at("iterations"), 40);
  EXPECT_EQ(json.at("epoch"), 1.5);
}

TEST(Metrics, ToolsAreWithTheirEnvironment) {
  IterationMetrics metrics;
  metrics.environment["calls"] = 3;
  metrics.tools["search"] = {{"calls", 3}, {"failed", 1}};
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_EQ(
      json.at("environment"),
      nlohmann::json::parse(R"({"calls": 3, "tools": {"search": {"calls": 3, "failed": 1}}})"));
}

TEST(Metrics, FileIsCutBackToTheCheckpoint) {
  const auto path =
      std::filesystem::temp_directory_path() / base::text("trireme-metrics-", getpid());
  int64_t cursor = 0;
  {
    report::MetricsFile file(path, 0);
    file.append("one");
    cursor = file.cursor();
    file.append("two, lost with the job");
  }
  {
    report::MetricsFile file(path, cursor);
    file.append("two");
  }
  EXPECT_EQ(base::read_file(path), "one\ntwo\n");
  { report::MetricsFile file(path, 10000); }  // a cursor beyond the end does not grow the file
  EXPECT_EQ(base::read_file(path), "one\ntwo\n");
  std::filesystem::remove(path);
}

TEST(Metrics, PlotShowsTheCurve) {
  const auto plot = report::text_plot({0, 0.5, 1}, "reward", 60, 3);
  EXPECT_EQ(
      plot,
      "reward\n    1.000 |  *\n          | * \n    0.000 |*  \n          +---\n           1 3\n");
  EXPECT_THAT(report::text_plot({0, 0.5, 1, 1}, "reward", 60, 3, {20, 5000}),
              testing::EndsWith("\n          +----\n           20 5000\n"));
  EXPECT_EQ(report::text_plot({1}, "reward"), "");
  EXPECT_FALSE(report::text_plot(std::vector<double>(500, 0.25), "flat").empty());
}

// Names of reward sources come from the deck.
TEST(Metrics, AnyNameAndNumberIsValidJson) {
  const std::vector<std::string> names{"reward_plain", "reward_a \"quoted\\ name\"",
                                       "reward_two\nlines\t\x01", "reward_\xE7\xAF\x80",
                                       "reward_}"};
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers{0.0,          1e-310, 1.0 / 3,
                                    6.02e23,      -1e300, std::numeric_limits<double>::max(),
                                    std::nan(""), inf,    -inf};
  for (const double value : numbers) {
    IterationMetrics metrics;
    for (const auto& name : names) metrics.set(name, value);
    metrics.seconds["a \"phase\""] = value;
    metrics.memory["host"] = int64_t{100'000'000};
    metrics.memory["all"] = std::numeric_limits<int64_t>::max();
    const std::string line = to_json(metrics);
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    ASSERT_TRUE(nlohmann::json::accept(line)) << line;
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json.size(), names.size() + 5);
    for (const auto& name : names) {
      EXPECT_EQ(json.at(name).is_null(), !std::isfinite(value)) << name;
      if (!std::isfinite(value)) continue;
      EXPECT_EQ(std::bit_cast<uint64_t>(json.at(name).get<double>()),
                std::bit_cast<uint64_t>(value))
          << name;
    }
    EXPECT_TRUE(json.at("memory").at("host").is_number_integer()) << line;
    EXPECT_EQ(json.at("memory").at("all").get<int64_t>(), std::numeric_limits<int64_t>::max());
  }
}

TEST(Metrics, NamesKeepTheOrderOfTheirFirstUse) {
  IterationMetrics metrics;
  for (const char* name : {"reward", "kl", "loss", "kl", "reward"}) metrics.set(name, 1);
  EXPECT_THAT(metrics.values, testing::ElementsAre(testing::Key("reward"), testing::Key("kl"),
                                                   testing::Key("loss")));
}

TEST(Metrics, TheConsoleLeavesOutWhatWasNotComputed) {
  IterationMetrics metrics;
  metrics.iteration = 12;
  metrics.set("reward", 0.7314);
  metrics.set("kl", std::nan(""));
  metrics.set("policy_loss", -0.01349);
  metrics.iterations = 40;
  EXPECT_EQ(to_console(metrics, 0, 120), "iteration 12/40  reward 0.731  loss -0.0135");
  metrics.set("mismatch_max", 0);
  metrics.tokens = 3000;
  metrics.seconds = {{"rollout", 1.25}, {"total", 1.5}, {"tiny", 0.004}};
  EXPECT_EQ(
      to_console(metrics, 90, 120),
      "iteration 12/40  reward 0.731  loss -0.0135  mismatch 0  2000 tok/s  1.5 s  1 min 30 s "
      "left  (rollout 1.25)");
  metrics.set("mismatch_max", 0.25);
  metrics.set("mismatch_mean", 1e-6);
  EXPECT_THAT(to_console(metrics, 0, 120),
              testing::HasSubstr("  mismatch max 2.5e-01 mean 1.0e-06  2000 tok/s"));
}

// Whatever there is, the line fits, and what matters most is in it.
TEST(Metrics, TheConsoleLineFitsTheTerminal) {
  IterationMetrics metrics;
  metrics.iteration = 100'000;
  metrics.iterations = 250'000;
  for (const char* name :
       {"reward", "kl", "policy_loss", "value_loss", "clip_ratio", "response_length", "grad_norm",
        "mismatch_max", "mismatch_mean", "eval_reward", "eval_pass1", "eval_pass16", "accuracy"})
    metrics.set(name, 123.456789);
  for (int i = 0; i < 30; ++i) metrics.set(base::text("reward_a long name/metric ", i), 0.5);
  metrics.tokens = 123'456;
  for (int i = 0; i < 12; ++i) metrics.seconds[base::text("phase ", i)] = 1;
  metrics.seconds["total"] = 12;
  for (const int columns : {40, 80, 120, 200, 2000}) {
    const std::string line = to_console(metrics, 7200, columns);
    EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
    EXPECT_THAT(line, testing::StartsWith("iteration 100000/250000"));
    if (columns >= 80) {
      EXPECT_THAT(line, testing::HasSubstr("eval_reward 123.457")) << columns;
      EXPECT_THAT(line, testing::HasSubstr("2 h 0 min left")) << columns;
    }
  }
  EXPECT_THAT(to_console(metrics, 0, 2000), testing::HasSubstr("phase 9 1.00")) << "room for all";
}

TEST(Metrics, TheConsoleHasWhatPluginsSay) {
  IterationMetrics metrics;
  metrics.iteration = 1;
  metrics.set("reward", 0.2);
  metrics.set("reward_judge/accuracy", 0);
  metrics.set("reward_judge/format", 0.97);
  metrics.set("reward_judge/gone", std::nan(""));
  metrics.set("reward_rule1", 5);
  metrics.set("eval_reward_judge/accuracy", 1);
  metrics.set("kl", 0.5);
  EXPECT_EQ(to_console(metrics, 0, 120),
            "iteration 1  reward 0.200  judge/accuracy 0.000  judge/format 0.970  "
            "eval_reward_judge/accuracy 1.000  kl 0.5000");
  EXPECT_EQ(to_console(metrics, 0, 90),
            "iteration 1  reward 0.200  judge/accuracy 0.000  judge/format 0.970  kl 0.5000");
}

TEST(Metrics, CurvesOfWhatPluginsSayAreReadBack) {
  const auto path =
      std::filesystem::temp_directory_path() / base::text("trireme-curves-", getpid());
  {
    report::MetricsFile file(path, 0);
    for (int i = 1; i <= 3; ++i) {
      IterationMetrics metrics;
      metrics.iteration = i;
      metrics.set("reward", i);
      metrics.set("reward_other", i);
      metrics.set("reward_judge/a", 0.5 * i);
      if (i != 2) metrics.set("reward_judge/\"b\"/c", i == 1 ? 7 : std::nan(""));
      file.append(to_json(metrics));
    }
  }
  std::ofstream(path, std::ios::app) << "{\"reward_judge/a\": 9, \"cut";
  EXPECT_THAT(
      report::reward_metric_curves(path),
      testing::ElementsAre(testing::Pair("reward_judge/a", testing::ElementsAre(0.5, 1, 1.5)),
                           testing::Pair("reward_judge/\"b\"/c", testing::ElementsAre(7))));
  std::filesystem::remove(path);
}

TEST(Metrics, FilesThatCannotBeWrittenAreErrors) {
  using config::error_of;
  EXPECT_THAT(
      error_of(ExitCode::io_error, [] { report::MetricsFile("/dev/full", 0).append("line"); }),
      testing::HasSubstr("/dev/full"));
  EXPECT_THAT(error_of(ExitCode::input_missing,
                       [] { report::MetricsFile file("/nonexistent/metrics.jsonl", 0); }),
              testing::HasSubstr("metrics.jsonl"));
}

// One star per column, higher for larger values, inside the frame.
TEST(Metrics, PlotIsAsWideAsAskedAndFollowsTheValues) {
  std::vector<double> values;
  for (int i = 0; i < 500; ++i) {
    values.push_back(std::sqrt(i));
    if (i % 7 == 0) values.push_back(std::nan(""));
  }
  constexpr int width = 40;
  constexpr int height = 12;
  std::istringstream lines(report::text_plot(values, "title", width, height));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "title");
  std::vector<int> row_of(width, -1);
  for (int row = 0; row < height; ++row) {
    std::getline(lines, line);
    const size_t left = line.find('|') + 1;
    ASSERT_LE(line.size() - left, static_cast<size_t>(width));
    for (size_t c = left; c < line.size(); ++c) {
      if (line[c] != '*') continue;
      EXPECT_EQ(row_of[c - left], -1) << "a second star in column " << c - left;
      row_of[c - left] = row;
    }
  }
  EXPECT_TRUE(std::is_sorted(row_of.rbegin(), row_of.rend())) << "a rising curve";
  EXPECT_EQ(row_of.back(), 0);
  EXPECT_GE(row_of.front(), height / 2);
}

}  // namespace
}  // namespace trireme::report
