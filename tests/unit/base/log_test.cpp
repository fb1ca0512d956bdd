#include "trireme/base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"

namespace trireme::base {
namespace {

using testing::ElementsAre;
using testing::EndsWith;

class Log : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override {
    log::close();
    std::filesystem::remove_all(folder_);
  }
  std::vector<std::string> lines(const char* name) const {
    std::istringstream in(read_file(folder_ / name));
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / text("trireme-log-", getpid());
};

void write_one_of_each() {
  log::debug("d");
  log::info("i");
  log::warning("w");
  log::error("e");
}

TEST_F(Log, ARankThatAnotherOneSpeaksForSaysItsErrorsOnly) {
  log::open({.console = false, .main_file = {}, .rank_file = {}});
  testing::internal::CaptureStderr();
  log::info("i");
  log::warning("w");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  log::error("e");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "error: e\n");
  log::close();
  testing::internal::CaptureStderr();
  log::info("i");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "i\n");
}

TEST_F(Log, FilesHaveWhatTheLevelLetsThrough) {
  log::open({.console = false,
             .main_file = folder_ / "main",
             .rank_file = folder_ / "logs" / "rank",
             .level = log::Level::debug});
  write_one_of_each();
  log::open({.console = false,
             .main_file = folder_ / "warnings",
             .rank_file = {},
             .level = log::Level::warning});
  write_one_of_each();
  log::close();
  EXPECT_THAT(lines("main"), ElementsAre(EndsWith("] d"), EndsWith("] i"), EndsWith("] warning: w"),
                                         EndsWith("] error: e")));
  EXPECT_EQ(lines("logs/rank"), lines("main")) << "the same lines with the same times";
  EXPECT_THAT(lines("warnings"), ElementsAre(EndsWith("] warning: w"), EndsWith("] error: e")));
}

TEST_F(Log, MessagesAreOnDiskAtOnceAndTakenLiterally) {
  log::open({.console = false, .main_file = folder_ / "main", .rank_file = {}});
  log::info("{} {0} %s %v {");
  EXPECT_THAT(lines("main"), ElementsAre(EndsWith("] {} {0} %s %v {")))
      << "before anybody closes the log";
}

TEST_F(Log, ARestartedRunAppends) {
  for (const char* run : {"first", "second"}) {
    log::open({.console = false, .main_file = folder_ / "main", .rank_file = {}});
    log::info(run);
    log::close();
  }
  testing::internal::CaptureStderr();
  log::info("after the end");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "after the end\n")
      << "to stderr once the files are closed";
  EXPECT_THAT(lines("main"), ElementsAre(EndsWith("] first"), EndsWith("] second")));
}

TEST_F(Log, OneRankTalksToTheTerminal) {
  testing::internal::CaptureStderr();
  log::open({.console = false, .main_file = folder_ / "main", .rank_file = {}});
  write_one_of_each();
  log::open({.console = true, .main_file = {}, .rank_file = {}});
  write_one_of_each();
  log::live("a progress line is for terminals, not for files");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "i\nwarning: w\nerror: e\n");
}

TEST_F(Log, LinesOfSeveralThreadsStayWhole) {
  log::open({.console = false, .main_file = folder_ / "main", .rank_file = folder_ / "rank"});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 100; ++i) log::info(text("thread ", t, " line ", i, " end"));
      });
    }
  }
  log::close();
  const auto written = lines("main");
  EXPECT_EQ(written.size(), 400u);
  std::vector<int> next(4, 0);
  for (const std::string& line : written) {
    int thread = -1, number = -1;
    ASSERT_EQ(
        std::sscanf(line.c_str() + line.find(']'), "] thread %d line %d end", &thread, &number), 2)
        << line;
    EXPECT_EQ(number, next.at(static_cast<size_t>(thread))++);
  }
  EXPECT_EQ(lines("rank"), written);
}

TEST_F(Log, AFileThatCannotBeWrittenIsTheUsersError) {
  write_file_atomically(folder_ / "file", "");
  for (const auto& path : {folder_, folder_ / "file" / "log.txt"}) {
    try {
      log::open({.console = false, .main_file = path, .rank_file = {}});
      ADD_FAILURE() << "opened " << path;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::io_error);
      EXPECT_THAT(error.what(), testing::HasSubstr(path.string()));
    }
  }
}

}  // namespace
}  // namespace trireme::base
