// Tool calls in turns: against vLLM's parsers and transformers' (tests/gold/tool_calls), and forms
// of our own.
#include "environment/tool_calls.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support/source_folder.hpp"
#include "trireme/base/files.hpp"
#include "trireme/text/json_text.hpp"
#include "unit/environment/support.hpp"

namespace trireme::environment {
inline void PrintTo(const ToolCall& call, std::ostream* out) {
  *out << call.name << call.arguments;
}
}  // namespace trireme::environment

namespace trireme::test {
namespace {

using environment::CallReader;
using environment::ToolCall;
using environment::ToolCalls;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CallReader reader(config::ToolCalls form, const std::string& pattern = "") {
  config::EnvironmentOptions options;
  options.tool_calls = form;
  options.tool_pattern = pattern;
  return CallReader(options);
}

// [{"name": ..., "arguments": ...}] of the stored file.
std::vector<ToolCall> calls_of(const text::OrderedJson& list) {
  std::vector<ToolCall> calls;
  for (const auto& call : list)
    calls.push_back({call["name"].get<std::string>(), text::dump(call["arguments"])});
  return calls;
}

TEST(ToolCalls, ThoseOfVllmAndTransformers) {
  const std::string file = source_folder() / "tests/gold/tool_calls/cases.json";
  const text::OrderedJson cases =
      text::parse_record(base::read_file(file, 1 << 20), {file}, text::Numbers::exact);
  int64_t called = 0, by_transformers = 0;
  for (const auto& one : cases) {
    const std::string written = one["text"].get<std::string>();
    const bool hermes = one["form"] == "hermes";
    const ToolCalls found =
        reader(hermes ? config::ToolCalls::hermes : config::ToolCalls::llama3).read(written);
    if (one["vllm"].is_null()) {
      EXPECT_TRUE(found.calls.empty() || !found.error.empty()) << written;
    } else {
      EXPECT_EQ(found.calls, calls_of(one["vllm"])) << written;
      EXPECT_EQ(found.error, "") << written;
      ++called;
    }
    // It leaves arguments that are JSON in a text as a text.
    if (hermes && !one["transformers"].is_null() && !one["vllm"].is_null()) {
      for (const auto& call : one["transformers"])
        by_transformers += !call["arguments"].is_string();
    }
    if (hermes && one["transformers"] == one["vllm"] && !one["vllm"].is_null()) {
      EXPECT_EQ(found.calls, calls_of(one["transformers"])) << written;
    }
  }
  EXPECT_GE(called, 40);
  EXPECT_GE(by_transformers, 18);
}

// What the policy seems to have meant for a call reaches the program with the reason.
TEST(ToolCalls, MalformedOnesSayWhy) {
  const std::pair<const char*, const char*> hermes[] = {
      {"<tool_call>", "tool call 1:1:1: not JSON"},
      {"<tool_call>{'name': 'f'}</tool_call>", "tool call 1:1:2: not JSON"},
      {"<tool_call>{\"name\": \"f\"}</tool_call>", "tool call 1 (f) has no \"arguments\""},
      {"<tool_call>{\"arguments\": {}}</tool_call>", "tool call 1 has no \"name\""},
      {"<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>", "\"name\" is not a text"},
      {"<tool_call>[]</tool_call>", "tool call 1 is array, expected an object"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": NaN}</tool_call>", "not JSON"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
       "tool call 1, arguments:1:1"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>", "tool call 2:1:1"},
  };
  for (const auto& [text, part] : hermes)
    EXPECT_THAT(reader(config::ToolCalls::hermes).read(text).error, HasSubstr(part)) << text;
  const std::pair<const char*, const char*> llama[] = {
      {"<|python_tag|>print(1)", "<|python_tag|> without a call"},
      {"<|python_tag|>{\"x\": 1}", "has no \"name\""},
      {"{\"name\": \"f\"}", "tool call 1 (f) has no \"parameters\""},
      {"I call {\"name\": \"f\", \"parameters\": {", "not JSON"},
  };
  for (const auto& [text, part] : llama)
    EXPECT_THAT(reader(config::ToolCalls::llama3).read(text).error, HasSubstr(part)) << text;
}

TEST(ToolCalls, OtherBracesAreText) {
  for (const char* text : {"The set {1, 2}", "{\"answer\": 42}", "{}", "{", "}{", ""}) {
    const ToolCalls found = reader(config::ToolCalls::llama3).read(text);
    EXPECT_THAT(found.calls, IsEmpty()) << text;
    EXPECT_EQ(found.error, "") << text;
  }
}

// A well-formed call beside a malformed one is there, too.
TEST(ToolCalls, TheOthersStay) {
  const ToolCalls found = reader(config::ToolCalls::hermes)
                              .read(
                                  "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"
                                  "<tool_call>{</tool_call>"
                                  "<tool_call>{\"name\":\"g\",\"arguments\":{}}");
  EXPECT_THAT(found.calls, ElementsAre(ToolCall{"f", "{}"}, ToolCall{"g", "{}"}));
  EXPECT_THAT(found.error, HasSubstr("tool call 2"));
}

TEST(ToolCalls, ThinkingIsNotLookedAt) {
  const std::string call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  const CallReader hermes = reader(config::ToolCalls::hermes);
  EXPECT_EQ(hermes.read("<think>\nI could " + call + "</think>\n\n").calls.size(), 0u);
  EXPECT_EQ(hermes.read("I could " + call + "</think>\n\n" + call).calls.size(), 1u);
  EXPECT_EQ(hermes.read("\n<think>" + call).calls.size(), 0u);
  EXPECT_EQ(hermes.read("\n<think><tool_call>").error, "");
  EXPECT_EQ(reader(config::ToolCalls::llama3)
                .read("<think>{\"name\":</think>{\"name\":\"f\",\"parameters\":{}}")
                .calls.size(),
            1u);
}

TEST(ToolCalls, ByAPattern) {
  const CallReader named =
      reader(config::ToolCalls::regex, R"(Action: (?<name>\w+)\[(?<arguments>.*?)\])");
  EXPECT_THAT(named.read("Thought: x\nAction: add[{\"a\": 1}]\nAction: say[hi \"you\"]").calls,
              ElementsAre(ToolCall{"add", "{\"a\":1}"}, ToolCall{"say", "\"hi \\\"you\\\"\""}));
  EXPECT_THAT(named.read("no action").calls, IsEmpty());
  EXPECT_THAT(
      reader(config::ToolCalls::regex, "<py>(.*?)</py>").read("<py>1+1</py><py></py>").calls,
      ElementsAre(ToolCall{"", "\"1+1\""}, ToolCall{"", "\"\""}));
  EXPECT_THAT(reader(config::ToolCalls::regex, "\\d+").read("7 and 08").calls,
              ElementsAre(ToolCall{"", "7"}, ToolCall{"", "\"08\""}));
  const ToolCalls nameless =
      reader(config::ToolCalls::regex, R"(call(?: (?<name>\w+))?!)").read("call f! call!");
  EXPECT_THAT(nameless.calls, ElementsAre(ToolCall{"f", "\"call f!\""}));
  EXPECT_THAT(nameless.error, HasSubstr("tool call 2 has no name"));
  expect_error(ExitCode::configuration, "environment.tool_pattern",
               [] { reader(config::ToolCalls::regex, "a["); });
}

TEST(ToolCalls, WhatIsNoTextAndWhatIsDeepEndsNothing) {
  const std::string deep(200'000, '{');
  for (const auto form : {config::ToolCalls::hermes, config::ToolCalls::llama3}) {
    EXPECT_NE(reader(form).read("<tool_call>{\"name\": \"\xff\", \"arguments\": {}}").error, "");
    EXPECT_NE(reader(form).read("<tool_call>\"name\"" + deep).error, "");
  }
}

}  // namespace
}  // namespace trireme::test
