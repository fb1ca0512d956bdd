#include "trireme/base/command.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "trireme/base/files.hpp"
#include "trireme/base/text.hpp"

namespace trireme::base {
namespace {

constexpr double long_enough = 60;

CommandResult shell(const std::string& script, double timeout = long_enough) {
  return run_command({"sh", "-c", script}, timeout);
}

TEST(RunCommand, EndsACommandThatHangs) {
  EXPECT_FALSE(run_command({"sleep", "30"}, 0.1).ran);
  EXPECT_FALSE(shell("exec >&- 2>&-; exec sleep 30", 0.1).ran)
      << "a closed output is not the end of a command";
  const CommandResult half = shell("echo before; exec sleep 30", 0.2);
  EXPECT_FALSE(half.ran);
  EXPECT_TRUE(half.output.empty() || half.output == "before\n") << half.output;
}

TEST(RunCommand, ReportsExitCodesAndSignals) {
  const CommandResult both = shell("echo out; echo err >&2; exit 3");
  EXPECT_TRUE(both.ran);
  EXPECT_EQ(both.exit_code, 3);
  EXPECT_EQ(both.output, "out\nerr\n");
  for (const int code : {0, 1, 127, 255}) {
    const CommandResult result = shell(text("exit ", code));
    EXPECT_TRUE(result.ran);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_EQ(result.output, "");
  }
  const CommandResult killed = shell("echo said; kill -TERM $$");
  EXPECT_FALSE(killed.ran) << "it did not end by itself";
  EXPECT_EQ(killed.output, "said\n");
}

TEST(RunCommand, WhatCannotBeStartedDidNotRun) {
  for (const char* name : {"no-such-command-of-ours", "/no/such/folder/command", "/"}) {
    const CommandResult result = run_command({name}, long_enough);
    EXPECT_TRUE(!result.ran || result.exit_code == 126 || result.exit_code == 127) << name;
  }
}

TEST(RunCommand, WordsArePassedWithoutAShell) {
  EXPECT_EQ(run_command({"printf", "%s|", "a b", "$HOME", "*", "", "'q\""}, long_enough).output,
            "a b|$HOME|*||'q\"|");
}

// Standard input of this process is `fd` while it lives.
class StandardInput {
 public:
  explicit StandardInput(int fd) : before_(::fcntl(0, F_DUPFD_CLOEXEC, 3)) { ::dup2(fd, 0); }
  ~StandardInput() { ::dup2(before_.get(), 0); }
  StandardInput(const StandardInput&) = delete;
  StandardInput& operator=(const StandardInput&) = delete;

 private:
  FileDescriptor before_;
};

TEST(RunCommand, ThereIsNothingToRead) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor read_end(ends[0]);
  write_all(FileDescriptor(ends[1]).get(), "meant for this process", "pipe");
  const StandardInput input(read_end.get());
  const CommandResult result = run_command({"cat"}, long_enough);
  EXPECT_TRUE(result.ran);
  EXPECT_EQ(result.output, "");
}

TEST(RunCommand, KeepsTheFirst64KiBOfALongOutput) {
  const CommandResult result = shell("printf start; head -c 200000 /dev/zero | tr '\\0' a");
  EXPECT_TRUE(result.ran) << "the rest is read, or the command would block";
  EXPECT_EQ(result.exit_code, 0);
  ASSERT_EQ(result.output.size(), size_t{64} << 10);
  EXPECT_TRUE(result.output.starts_with("starta"));
  EXPECT_EQ(std::count(result.output.begin(), result.output.end(), 'a'), (64 << 10) - 4)
      << "all but the other letters of 'start'";
}

TEST(RunCommand, CloseOnExecDescriptorsStayHere) {
  const FileDescriptor here = open_read("/dev/null");
  const FileDescriptor inherited(::fcntl(here.get(), F_DUPFD, 100));
  ASSERT_TRUE(inherited.valid());
  const auto is_open = [](int fd) {
    return shell(text("test -e /proc/$$/fd/", fd)).exit_code == 0;
  };
  EXPECT_TRUE(is_open(inherited.get()));
  const FileDescriptor closed(::fcntl(here.get(), F_DUPFD_CLOEXEC, 100));
  EXPECT_FALSE(is_open(closed.get()));
}

}  // namespace
}  // namespace trireme::base
