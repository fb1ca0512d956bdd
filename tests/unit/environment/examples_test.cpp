// The programs in inputs/plugins, played as a run would.
#include <cstdlib>

#include <gmock/gmock.h>

#include "support/source_folder.hpp"
#include "unit/environment/support.hpp"

namespace trireme::test {
namespace {

using environment::Reply;
using testing::ElementsAre;
using testing::HasSubstr;

class EnvironmentExample : public EnvironmentTest {
 protected:
  environment::Environments play_example(const std::string& name,
                                         config::ToolCalls calls = config::ToolCalls::hermes) {
    const std::filesystem::path file = source_folder() / "inputs/plugins" / (name + ".py");
    options_.environment.command = {"python3", file.string()};
    options_.environment.tool_calls = calls;
    options_.environment.retries = 0;
    return start();
  }
  static environment::Reset record(uint64_t episode, const std::string& extra) {
    environment::Reset out = reset(episode);
    out.extra = extra;
    return out;
  }
  static std::string call(const std::string& name, const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
           "}\n</tool_call>";
  }
  static std::string said(const Reply& reply) {
    return reply.messages.empty() ? reply.text : text::content_text(reply.messages.back());
  }
  // Whether bubblewrap makes a sandbox here.
  static bool has_sandbox() {
    return std::system("bwrap --unshare-all --ro-bind / / true >/dev/null 2>&1") == 0;
  }
};

TEST_F(EnvironmentExample, Calculator) {
  auto environments = play_example("calculator");
  environment::Reset chat = reset(1);
  chat.label = "42";
  environments.reset(chat);
  EXPECT_EQ(said(reply(environments)), "");
  EXPECT_EQ(said(play(environments, 1, 0, call("calculator", R"({"expression": "6 * 7"})"))), "42");
  for (const char* bad : {"__import__('os')", "2 ** 9", "1 / 0", "("}) {
    const Reply answer =
        play(environments, 1, 1, call("calculator", base::text("{\"expression\": \"", bad, "\"}")));
    EXPECT_THAT(said(answer), HasSubstr("error: ")) << bad;
    EXPECT_EQ(answer.metrics.at("calls"), 1);
  }
  EXPECT_THAT(said(play(environments, 1, 5, "<tool_call>{")), HasSubstr("tool call 1"));
  const environment::Counters counters = environments.take_counters();
  ASSERT_EQ(counters.tools.size(), 1u) << "environment.tools names none";
  EXPECT_EQ(counters.tools.front().calls, 5);
  EXPECT_EQ(counters.tools.front().failed, 4);
  EXPECT_EQ(counters.malformed_calls, 1);
  const Reply right = play(environments, 1, 6, "First 41, but it is 42.");
  EXPECT_TRUE(right.done);
  EXPECT_EQ(right.reward, 1);
  environment::Reset plain = chat;
  plain.messages.clear();
  environments.reset(plain);
  reply(environments);
  EXPECT_EQ(play(environments, 1, 0, call("calculator", R"({"expression": "-2"})")).text, "\n-2\n");
  EXPECT_EQ(play(environments, 1, 1, "41").reward, 0);
}

// As in inputs/tutorial/calculator.toml; arguments that are JSON arrive parsed.
TEST_F(EnvironmentExample, CalculatorOfAPattern) {
  options_.environment.tool_pattern = "<<(?<arguments>.*?)>>";
  auto environments = play_example("calculator", config::ToolCalls::regex);
  begin(environments, 1);
  int64_t turn = 0;
  for (const auto& [expression, result] :
       {std::pair{"3+4", "7"}, {"12", "12"}, {"(2 - 5) * 2", "-6"}, {"-3", "-3"}}) {
    const auto text = base::text("<<", expression, ">>");
    EXPECT_EQ(said(play(environments, 1, turn++, text)), result);
  }
  for (const char* bad : {"", "x", "[1]", "{\"expr\": 1}", "null"})
    EXPECT_THAT(said(play(environments, 1, turn++, base::text("<<", bad, ">>"))),
                HasSubstr("error: "))
        << bad;
  EXPECT_TRUE(play(environments, 1, turn, "7").done);
}

TEST_F(EnvironmentExample, GuessingGame) {
  auto environments = play_example("guessing_game");
  begin(environments, 3);
  EXPECT_THAT(said(play(environments, 3, 0, "well")), HasSubstr("Say a number"));
  int low = 1, high = 100;
  Reply last;
  for (int64_t turn = 1; turn < 9 && !last.done; ++turn) {
    const int guess = (low + high) / 2;
    last = play(environments, 3, turn, base::text("I say ", guess, "."));
    if (said(last) == "higher") low = guess + 1;
    if (said(last) == "lower") high = guess - 1;
  }
  EXPECT_TRUE(last.done);
  EXPECT_EQ(last.reward, 1);
}

TEST_F(EnvironmentExample, ShellInASandbox) {
  if (!has_sandbox()) GTEST_SKIP() << "bubblewrap (bwrap) makes no sandbox here";
  auto environments = play_example("sandbox_shell");
  environments.reset(record(1, R"({"check": "grep -q right answer"})"));
  reply(environments);
  const auto shell = [&](const std::string& command) {
    return said(play(environments, 1, 0, call("shell", "{\"command\": \"" + command + "\"}")));
  };
  EXPECT_EQ(shell("echo right > answer; echo $HOME"), "/work\n");
  EXPECT_THAT(shell("cat /etc/passwd"), HasSubstr("(exit code 1)"));
  EXPECT_EQ(shell("ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -c :"), "1\n")
      << "of the interfaces there is the loopback alone";
  EXPECT_EQ(shell("touch /usr/here 2>/dev/null || echo no"), "no\n");
  EXPECT_THAT(said(play(environments, 1, 1, "<tool_call>")), HasSubstr("not JSON"));
  const Reply done = play(environments, 1, 2, "It is done.");
  EXPECT_TRUE(done.done);
  EXPECT_EQ(done.reward, 1);
}

TEST_F(EnvironmentExample, UnitTests) {
  if (!has_sandbox()) GTEST_SKIP() << "bubblewrap (bwrap) makes no sandbox here";
  auto environments = play_example("unit_tests");
  environments.reset(record(1, R"({"tests": "assert add(1, 2) == 3"})"));
  reply(environments);
  EXPECT_THAT(said(play(environments, 1, 0, "no code")), HasSubstr("Give the code in a block"));
  EXPECT_THAT(said(play(environments, 1, 1, "```python\ndef add(a, b): return a\n```")),
              HasSubstr("AssertionError"));
  EXPECT_FALSE(play(environments, 1, 2, "```python\nimport os; os._exit(0)\n```").done);
  const Reply passed = play(environments, 1, 3, "```python\ndef add(a, b): return a + b\n```");
  EXPECT_TRUE(passed.done);
  EXPECT_EQ(passed.reward, 1);
}

// A machine without user namespaces, or without bubblewrap: the program ends with the reason.
TEST_F(EnvironmentExample, NothingRunsWithoutASandbox) {
  const std::filesystem::path bin = folder_ / "bin";
  std::filesystem::create_directories(bin);
  const std::string python = "exec python3 ", path = std::getenv("PATH");
  for (const char* name : {"sandbox_shell", "unit_tests"}) {
    const std::string file = (source_folder() / "inputs/plugins" / name).string() + ".py";
    std::ofstream(bin / "bwrap") << "#!/bin/sh\necho 'No permissions to create new namespace' >&2; "
                                    "exit 1\n";
    std::filesystem::permissions(bin / "bwrap", std::filesystem::perms::owner_all);
    options_.environment.retries = 0;
    options_.environment.command = {"env", "PATH=" + bin.string() + ":" + path, "python3", file};
    auto refused = start();
    refused.reset(reset(1));
    expect_error(ExitCode::unfit_environment,
                 "makes no sandbox here (No permissions to create new namespace)",
                 [&] { reply(refused); });
  }
}

// -S: the packages of this machine are not looked at.
TEST_F(EnvironmentExample, AdaptersSayWhichPackageIsMissing) {
  for (const char* name : {"gymnasium", "verifiers"}) {
    const std::filesystem::path file =
        source_folder() / "inputs/plugins" / base::text(name, "_environment.py");
    options_.environment.retries = 0;
    options_.environment.command = {"python3", "-S", file.string(), "Game"};
    auto adapter = start();
    adapter.reset(reset(1));
    expect_error(ExitCode::unfit_environment, base::text("the package ", name),
                 [&] { reply(adapter); });
  }
}

}  // namespace
}  // namespace trireme::test
