// The template interpreter against jinja2 with the settings of HF transformers (gold/jinja.jsonl; gold/make_jinja.py made
// it), and what it refuses.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support.hpp"
#include "trireme/data/chat_template.hpp"

namespace trireme::data {
namespace {

using nlohmann::ordered_json;

std::vector<Message> messages_of(const ordered_json& list) {
  std::vector<Message> messages;
  for (ordered_json message : list) {
    Message made{message["role"], message["content"], ""};
    message.erase("role");
    message.erase("content");
    if (!message.empty()) made.extra = message.dump();
    messages.push_back(made);
  }
  return messages;
}

std::string render(const std::string& text, const std::vector<Message>& messages = {{"user", "hi", ""}}) {
  return ChatTemplate(text, "model/chat_template.jinja").render(messages, GenerationPrompt::with, {{"bos_token", "<s>"}});
}

TEST(ChatTemplate, RendersAsJinja2) {
  std::ifstream in(test::source_folder() / "tests/unit/data/gold/jinja.jsonl");
  ASSERT_TRUE(in);
  int count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const auto gold = ordered_json::parse(line);
    const auto text = gold["template"].get<std::string>();
    const auto prompt = gold["add_generation_prompt"].get<bool>() ? GenerationPrompt::with : GenerationPrompt::without;
    const std::map<std::string, std::string> special{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    const auto draw = [&] { return ChatTemplate(text, "gold").render(messages_of(gold["messages"]), prompt, special); };
    if (gold["text"].is_null()) {
      EXPECT_THROW(draw(), UserError) << text;
      continue;
    }
    try {
      EXPECT_EQ(draw(), gold["text"].get<std::string>()) << text;
    } catch (const UserError& error) {
      ADD_FAILURE() << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(count, 100);
}

TEST(ChatTemplate, RefusesByNameAndPosition) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a\n  {% macro f(x) %}", "line 2, column 6: the block 'macro'"},
      {"{% include 'x' %}", "the block 'include'"},
      {"{% raw %}x{% endraw %}", "the block 'raw'"},
      {"{{ x | groupby('a') }}", "line 1, column 6: the filter 'groupby'"},
      {"{{ x is divisibleby(3) }}", "the test 'divisibleby'"},
      {"{{ messages.append(1) }}", "line 1, column 12: the method 'append' of list"},
      {"{{ f(1) }}", "the function 'f'"},
      {"{{ strftime_now('%Y') }}", "must not depend on the day"},
      {"{% set x %}a{% endset %}", "a set block with a body"},
      {"{% set a, b = 1, 2 %}", "set of several names"},
      {"{{ (1, 2) }}", "a tuple"},
      {"{{ 1 < 2 < 3 }}", "a chain of comparisons"},
      {"{{ 2 ** 3 }}", "the operator **"},
      {"{% for x in messages recursive %}{% endfor %}", "a recursive loop"},
      {"{{ 'a\\qb' }}", "the escape \\q"},
      {"{{ 'ab }}", "a text that does not end"},
      {"{{ 1", "a tag that does not end (no }}"},
      {"{# x", "a comment that does not end"},
      {"{% if x %}", "expected {% endif %}"},
      {"{% for x in y %}", "expected {% endfor %}"},
      {"{% endif %}", "the block 'endif'"},
      {"{% break %}", "'break' outside a loop"},
      {"{{ ) }}", "')' without its opening"},
      {"{{ }}", "expected a value"},
      {"{{ 1 2 }}", "expected }}, found '2'"},
      {"{{ $ }}", "the character '$'"},
      {"{{ 99999999999999999999 }}", "out of range"},
  };
  for (const auto& [text, expected] : cases) {
    const auto message = test::error_of(ExitCode::bad_data, [&, &text = text] { render(text); });
    EXPECT_NE(message.find(expected), std::string::npos) << text << "\n" << message;
    EXPECT_EQ(message.find("model/chat_template.jinja: chat template, line "), 0u) << message;
  }
}

TEST(ChatTemplate, ErrorsWhileRenderingNameThePosition) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{{ raise_exception('roles must alternate') }}", "the template refuses these messages: roles must alternate"},
      {"{{ nothing.at_all }}", "'nothing', which is undefined,"},
      {"{{ 'a' + 1 }}", "'+' does not work on str and int"},
      {"{{ 'a' + nothing }}", "'nothing', which is undefined,"},
      {"{{ messages }}", "the text form of a list"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ messages[1.5] }}", "an index must be"},
      {"{{ 'x'.split('') }}", "an empty separator"},
      {"{{ range(1000000) }}", "longer than 10000"},
      {"{% set messages.x = 1 %}", "only attributes of a namespace"},
      {"{{ '\xC3\xA9' | upper }}", "outside ASCII"},
      {"{{ messages | select('divisibleby', 3) }}", "the test 'divisibleby'"},
      {"{{ 'a' | trim(1, 2) }}", "takes 0 to 1 arguments"},
      {"{{ 'a' | tojson(sort_keys=true) }}", "the argument 'sort_keys'"},
      {"{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}", "steps"},
      {"{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "steps"},
      {"{% set ns = namespace(x=[1]) %}{% for a in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "steps"},
  };
  for (const auto& [text, expected] : cases) {
    const auto message = test::error_of(ExitCode::bad_data, [&, &text = text] { render(text); });
    EXPECT_NE(message.find(expected), std::string::npos) << text << "\n" << message;
    EXPECT_NE(message.find("line 1, column "), std::string::npos) << message;
  }
}

TEST(ChatTemplate, NumbersInFieldsAreExactOrRefused) {
  const auto shown = [](const std::string& number) { return render("{{ messages[0].n | tojson }}", {{"user", "hi", "{\"n\": " + number + "}"}}); };
  for (const char* number : {"9223372036854775807", "-9223372036854775808", "0", "-1", "0.1", "1e+22", "1e-07", "-0.0"}) EXPECT_EQ(shown(number), number);
  for (const char* number : {"9223372036854775808", "18446744073709551615"}) {
    const auto message = test::error_of(ExitCode::bad_data, [&] { shown(number); });
    EXPECT_NE(message.find(std::string(number) + " (a number beyond 64 bits"), std::string::npos) << message;
  }
}

// Python finds a mapping's methods before its keys.
TEST(ChatTemplate, KeysNamedLikeMethods) {
  const std::vector<Message> messages{{"user", "hi", R"({"items": 1, "values": 2, "update": 3, "got": 4})"}};
  EXPECT_EQ(render("{{ messages[0]['items'] }}{{ messages[0].values() | list | length }}{{ messages[0].got }}", messages), "164");
  EXPECT_EQ(render("[{{ messages[0].update }}]", messages), "[]") << "the sandbox hides what would change a mapping";
  const std::vector<std::pair<std::string, std::string>> refused{
      {"{{ messages[0].items }}", "the text form of a function"},
      {"{{ messages[0].items | tojson }}", "function has no JSON form"},
      {"{{ messages[0].update() }}", "the method 'update' of dict"},
      {"{% set f = 'x'.strip %}{{ f() }}", "the function 'f'"},
  };
  for (const auto& [text, expected] : refused) {
    const auto message = test::error_of(ExitCode::bad_data, [&, &text = text] { render(text, messages); });
    EXPECT_NE(message.find(expected), std::string::npos) << text << "\n" << message;
  }
}

TEST(ChatTemplate, NestingIsBounded) {
  EXPECT_NO_THROW(render("{{ " + std::string(40, '(') + "1" + std::string(40, ')') + " }}"));
  for (const auto& [open, close] : {std::pair{"(", ")"}, {"[", "]"}, {"not ", ""}, {"- ", ""}, {"{'a': ", "}"}}) {
    std::string text = "{{ ";
    for (int i = 0; i < 100000; ++i) text += open;
    text += "1";
    for (int i = 0; i < 100000; ++i) text += close;
    const auto message = test::error_of(ExitCode::bad_data, [&] { render(text + " }}"); });
    EXPECT_NE(message.find("nested deeper"), std::string::npos) << message;
  }
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if 1 %}";
  EXPECT_NE(test::error_of(ExitCode::bad_data, [&] { render(blocks); }).find("nested deeper"), std::string::npos);
}

TEST(ChatTemplate, TheClockIsNotDefined) {
  EXPECT_EQ(render("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}"), "26 Jul 2024");
}

TEST(ChatTemplate, MayBeRenderedAgain) {
  const ChatTemplate chat("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "x");
  const std::vector<Message> two{{"user", "a", ""}, {"assistant", "b", ""}};
  EXPECT_EQ(chat.render(two, GenerationPrompt::without, {}), "2");
  EXPECT_EQ(chat.render(two, GenerationPrompt::without, {}), "2");
}

}  // namespace
}  // namespace trireme::data
