#include "trireme/report/side_output.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <stdexcept>

#include "trireme/base/error.hpp"
#include "unit/report/log_capture.hpp"

namespace trireme::report {
namespace {

using testing::HasSubstr;
using testing::Not;

void full_disk() { throw UserError(ExitCode::io_error, "the disk is full"); }

size_t lines_in(const std::string& log) {
  return static_cast<size_t>(std::count(log.begin(), log.end(), '\n'));
}

// A warning at the first failure and at each power of two; what works in between does not begin the
// count anew, and other outputs have their own.
TEST(SideOutput, WarnsLessAndLessOften) {
  for (int failure = 1; failure <= 20; ++failure) {
    const LogCapture log;
    EXPECT_FALSE(side_output("often.json", full_disk));
    EXPECT_TRUE(side_output("often.json", [] {}));
    const bool due = failure == 1 || failure == 2 || failure == 4 || failure == 8 || failure == 16;
    EXPECT_EQ(lines_in(log.text()), due ? 1u : 0u) << failure;
    if (!due) continue;
    EXPECT_THAT(log.text(),
                HasSubstr("warning: often.json could not be written (the disk is full)"));
    const auto count = HasSubstr("as " + std::to_string(failure) + " times so far");
    EXPECT_THAT(log.text(), failure > 1
                                ? testing::Matcher<std::string>(count)
                                : testing::Matcher<std::string>(Not(HasSubstr("times so far"))));
  }
  const LogCapture log;
  EXPECT_FALSE(side_output("another.json", full_disk));
  EXPECT_THAT(log.text(), HasSubstr("another.json could not be written"));
  EXPECT_THAT(log.text(), Not(HasSubstr("times so far")));
}

TEST(SideOutput, FilesAndMemoryMayBeMissing) {
  const LogCapture log;
  for (const ExitCode code : {ExitCode::io_error, ExitCode::permission, ExitCode::input_missing,
                              ExitCode::out_of_memory}) {
    EXPECT_FALSE(side_output(base::text("code ", static_cast<int>(code)),
                             [code] { throw UserError(code, "why"); }));
  }
  EXPECT_FALSE(
      side_output("folders", [] { std::filesystem::create_directories("/dev/null/below"); }));
  EXPECT_FALSE(side_output("memory", [] { throw std::bad_alloc(); }));
  EXPECT_EQ(lines_in(log.text()), 6u) << log.text();
  EXPECT_THAT(log.text(), HasSubstr("/dev/null/below"));
  EXPECT_THAT(log.text(), HasSubstr("memory could not be written (out of memory)"));
}

TEST(SideOutput, EveryOtherErrorEndsTheRun) {
  const LogCapture log;
  EXPECT_THROW(side_output("a", [] { throw UserError(ExitCode::bad_data, "broken"); }), UserError);
  EXPECT_THROW(side_output("b", [] { throw UserError(ExitCode::configuration, "wrong"); }),
               UserError);
  EXPECT_THROW(side_output("c", [] { throw std::logic_error("defect"); }), std::logic_error);
  EXPECT_THROW(side_output("d", [] { throw 7; }), int);
  EXPECT_EQ(log.text(), "");
}

}  // namespace
}  // namespace trireme::report
