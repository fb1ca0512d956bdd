// metrics.jsonl on a disk that is full for a while, and the plot of its numbers.
#include "trireme/report/metrics_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include "support/file_size_limit.hpp"
#include "support/world.hpp"
#include "trireme/base/text.hpp"
#include "unit/config/expect_error.hpp"
#include "unit/report/log_capture.hpp"

namespace trireme::report {
namespace {

using testing::HasSubstr;

class MetricsOnDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (test::world().size() > 1) GTEST_SKIP() << "one rank writes";
    std::filesystem::remove_all(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::string content() const { return base::read_file(path_); }
  int64_t bytes() const { return static_cast<int64_t>(std::filesystem::file_size(path_)); }

  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / base::text("trireme-metrics-disk-", getpid());
};

// Wherever the disk gets full: whole lines only, and none is missing once there is room again.
TEST_F(MetricsOnDisk, WhatFoundNoRoomComesWithALaterLine) {
  const std::array<std::string, 4> lines{"first", "the second line", "3", "fourth"};
  const std::string all = "first\nthe second line\n3\nfourth\n";
  for (size_t room = 0; room < all.size(); ++room) {
    std::filesystem::remove(path_);
    MetricsFile file(path_, 0);
    std::string kept;
    {
      const test::FileSizeLimit limit(room);
      for (size_t i = 0; i + 1 < lines.size(); ++i) {
        try {
          file.append(lines[i]);
          kept = all.substr(0, all.find(lines[i]) + lines[i].size() + 1);
        } catch (const UserError& error) {
          EXPECT_EQ(error.code(), ExitCode::io_error);
          EXPECT_THAT(error.what(), HasSubstr(path_.string()));
        }
        ASSERT_EQ(content(), kept) << room;
        ASSERT_EQ(file.cursor(), bytes())
            << "a checkpoint that is made now knows the lines that are there";
      }
    }
    file.append(lines.back());
    ASSERT_EQ(content(), all) << room;
    ASSERT_EQ(file.cursor(), bytes());
  }
}

// The oldest lines go when more than 16 MiB wait; those that stay are whole and in order.
TEST_F(MetricsOnDisk, ADiskThatStaysFullKeepsTheNewestLines) {
  constexpr size_t most = size_t{16} << 20;
  MetricsFile file(path_, 0);
  std::vector<std::string> lines;
  const auto line = [&lines](char letter, size_t length) {
    return lines.emplace_back(length, letter);
  };
  {
    const test::FileSizeLimit limit(10);
    for (int i = 0; i < 30; ++i)
      EXPECT_THROW(file.append(line(static_cast<char>('a' + i % 26), 20)), UserError);
    for (int i = 0; i < 5; ++i)
      EXPECT_THROW(file.append(line(static_cast<char>('A' + i), (size_t{4} << 20) - 1)), UserError);
  }
  file.append(line('z', 3));
  std::string wanted;
  size_t first = lines.size() - 1;  // the last one came when there was room
  for (size_t waiting = 0; first > 0 && waiting + lines[first - 1].size() + 1 <= most; --first)
    waiting += lines[first - 1].size() + 1;
  for (size_t i = first; i < lines.size(); ++i) wanted += lines[i] + "\n";
  EXPECT_EQ(first, 31u) << "four of 4 MiB fit";
  EXPECT_TRUE(content() == wanted) << content().size() << " bytes instead of " << wanted.size();
}

// A checkpoint remembers the cursor behind lines that had to wait, the last one of a run too.
TEST_F(MetricsOnDisk, ASyncWritesWhatWaits) {
  MetricsFile file(path_, 0);
  file.append("one");
  {
    const test::FileSizeLimit limit(5);
    EXPECT_THROW(file.append("two"), UserError);
    EXPECT_THROW(file.sync(), UserError);
    EXPECT_EQ(file.cursor(), 4);
  }
  file.sync();
  EXPECT_EQ(file.cursor(), 8);
  EXPECT_EQ(content(), "one\ntwo\n");
}

TEST_F(MetricsOnDisk, ALineOfAnyLengthIsWrittenWhereThereIsRoom) {
  MetricsFile file(path_, 0);
  const std::string line((size_t{17} << 20), 'x');
  file.append(line);
  EXPECT_TRUE(content() == line + "\n") << bytes();
}

TEST_F(MetricsOnDisk, TheCursorCutsWhatLiesBehindIt) {
  for (const int64_t cursor : {0, 4, 8}) {
    base::write_file_atomically(path_, "one\ntwo\nthree, and half of fo");
    MetricsFile file(path_, cursor);
    EXPECT_EQ(file.cursor(), cursor);
    file.append("next");
    EXPECT_EQ(content(),
              std::string("one\ntwo\n").substr(0, static_cast<size_t>(cursor)) + "next\n");
  }
}

// Cut off, or an older copy: what is whole stays, and whoever reads the log knows that lines are
// missing.
TEST_F(MetricsOnDisk, AFileThatIsShorterThanTheCheckpointKnowsIsSaid) {
  const LogCapture log;
  base::write_file_atomically(path_, "one\ntwo\nthr");
  MetricsFile file(path_, 20);
  EXPECT_EQ(file.cursor(), 8);
  file.append("three");
  EXPECT_EQ(content(), "one\ntwo\nthree\n");
  EXPECT_THAT(
      log.text(),
      testing::AllOf(HasSubstr("warning"),
                     HasSubstr(path_.string() + " has 11 bytes where the checkpoint remembers 20"),
                     HasSubstr("12 bytes are lost")));
}

TEST_F(MetricsOnDisk, AFileWithoutALineEndIsBegunAgain) {
  base::write_file_atomically(path_, "hal");
  const MetricsFile file(path_, 20);
  EXPECT_EQ(file.cursor(), 0);
  EXPECT_EQ(content(), "");
}

TEST_F(MetricsOnDisk, ANewOneBehindACheckpointIsNoLoss) {
  const LogCapture log;
  const MetricsFile file(path_, 20);
  EXPECT_EQ(file.cursor(), 0);
  EXPECT_THAT(log.text(), testing::AllOf(HasSubstr("begins behind the checkpoint"),
                                         testing::Not(HasSubstr("warning"))));
}

TEST_F(MetricsOnDisk, ErrorsNameThePlace) {
  using config::error_of;
  std::filesystem::create_directory(path_);
  EXPECT_THAT(error_of(ExitCode::io_error, [&] { const MetricsFile file(path_, 0); }),
              HasSubstr("cannot open " + path_.string() + " ("));
  EXPECT_THAT(error_of(ExitCode::io_error, [] { MetricsFile("/dev/full", 0).sync(); }),
              HasSubstr("/dev/full"));
}

// ---- the plot ----

struct Plot {
  std::string title;
  std::vector<std::string> labels;
  std::vector<std::string> rows;
};
Plot plot_of(const std::vector<double>& values, int width, int height) {
  std::istringstream lines(text_plot(values, "title", width, height));
  Plot plot;
  std::getline(lines, plot.title);
  for (std::string line; std::getline(lines, line) && line.find('|') != std::string::npos;) {
    plot.labels.push_back(line.substr(0, line.find('|')));
    plot.rows.push_back(line.substr(line.find('|') + 1));
  }
  return plot;
}

// A column's star stands at the mean of its share of the values, to half a row.
TEST(TextPlot, ColumnsAreMeansOfTheirShare) {
  std::vector<double> values;
  for (int i = 0; i < 137; ++i) values.push_back(std::sin(0.07 * i) * 3 + (i % 5));
  constexpr int width = 30, height = 9;
  const auto [low, high] = std::ranges::minmax(values);
  const Plot plot = plot_of(values, width, height);
  ASSERT_EQ(plot.rows.size(), static_cast<size_t>(height));
  for (size_t c = 0; c < width; ++c) {
    double sum = 0;
    int count = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i < values.size() * c / width || i >= values.size() * (c + 1) / width) continue;
      sum += values[i];
      ++count;
    }
    const double from_top = (high - sum / count) / (high - low) * (height - 1);
    for (size_t r = 0; r < height; ++r) {
      const bool near = std::abs(static_cast<double>(r) - from_top) <= 0.5 + 1e-9;
      EXPECT_TRUE(near || plot.rows[r][c] != '*')
          << "column " << c << ", row " << r << " instead of " << from_top;
    }
    EXPECT_EQ(
        std::ranges::count_if(plot.rows, [c](const std::string& row) { return row[c] == '*'; }), 1)
        << c;
  }
}

// The labels of the first and the last row are the largest and the smallest value, whatever their
// size, and the frame stays straight.
TEST(TextPlot, LabelsTellTheLevelsOfAnySize) {
  const std::vector<std::pair<double, double>> ranges{
      {0, 1},        {-99.5, 12345}, {1e-6, 5e-6}, {0.5, 0.5004}, {-1e9, 3e8}, {1e15, 4e15},
      {-2e99, 1e99}, {99999.9, 1e5}, {-9999, -1},  {0, 0.012},    {-123456, 3}};
  for (const auto& [low, high] : ranges) {
    const Plot plot = plot_of({low, high, low}, 60, 10);
    ASSERT_EQ(plot.labels.size(), 10u);
    for (const std::string& label : plot.labels) EXPECT_EQ(label.size(), 10u) << label;
    const double tolerance = std::max(0.01 * std::abs(low), 0.01 * std::abs(high));
    EXPECT_NEAR(std::stod(plot.labels.front()), high, tolerance);
    EXPECT_NEAR(std::stod(plot.labels.back()), low, tolerance);
    EXPECT_EQ(plot.rows.front(), " * ") << high;
    EXPECT_EQ(plot.rows.back(), "* *") << low;
  }
}

TEST(TextPlot, AFlatCurveLiesAtItsValue) {
  for (const double value : {0.0, -3.0, 0.25, 1e17, -1e17}) {
    const Plot plot = plot_of(std::vector<double>(5, value), 60, 4);
    ASSERT_EQ(plot.rows.size(), 4u) << value;
    EXPECT_EQ(plot.rows.back(), "*****") << value;
    EXPECT_NEAR(std::stod(plot.labels.back()), value, 1e-3 * std::abs(value)) << plot.labels.back();
  }
}

TEST(TextPlot, NumbersThatAreNoneAreLeftOut) {
  const double none = std::nan(""), inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(text_plot({none, 1, -inf, 2, inf}, "t", 10, 3), text_plot({1, 2}, "t", 10, 3));
  for (const std::vector<double>& values : {std::vector<double>{}, {none, none}, {3, inf}})
    EXPECT_EQ(text_plot(values, "t"), "") << values.size();
}

}  // namespace
}  // namespace trireme::report
