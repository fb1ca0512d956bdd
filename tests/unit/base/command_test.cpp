#include "trireme/base/command.hpp"

#include <gtest/gtest.h>

namespace trireme::base {
namespace {

TEST(RunCommand, EndsACommandThatHangs) {
  const CommandResult slow = run_command({"sleep", "30"}, 0.2);
  EXPECT_FALSE(slow.ran);
  const CommandResult echo = run_command({"sh", "-c", "echo out; echo err >&2; exit 3"}, 10);
  EXPECT_TRUE(echo.ran);
  EXPECT_EQ(echo.exit_code, 3);
  EXPECT_EQ(echo.output, "out\nerr\n");
  EXPECT_FALSE(run_command({"no-such-command-of-ours"}, 1).ran);
}

}  // namespace
}  // namespace trireme::base
