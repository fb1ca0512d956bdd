// The template interpreter against jinja2 with the settings of HF transformers (gold/jinja.jsonl;
// gold/make_jinja.py made it), and what it refuses.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/text_files.hpp"
#include "trireme/text/chat_template.hpp"

namespace trireme::text {
namespace {

using nlohmann::ordered_json;

std::vector<Message> messages_of(const ordered_json& list) {
  std::vector<Message> messages;
  for (ordered_json message : list) {
    Message made{message["role"], std::nullopt, ""};
    message.erase("role");
    if (message.contains("content") && message["content"].is_string()) {
      made.content = message["content"].get<std::string>();
      message.erase("content");
    }
    if (!message.empty()) made.extra = message.dump();
    messages.push_back(made);
  }
  return messages;
}

std::string render(const std::string& text,
                   const std::vector<Message>& messages = {{"user", "hi", ""}}) {
  return ChatTemplate(text, "model/chat_template.jinja")
      .render(messages, GenerationPrompt::with, {{"bos_token", "<s>"}});
}

TEST(ChatTemplate, RendersAsJinja2) {
  std::ifstream in(test::source_folder() / "tests/unit/text/gold/jinja.jsonl");
  ASSERT_TRUE(in);
  int count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const auto gold = ordered_json::parse(line);
    const auto text = gold["template"].get<std::string>();
    const auto prompt = gold["add_generation_prompt"].get<bool>() ? GenerationPrompt::with
                                                                  : GenerationPrompt::without;
    const std::map<std::string, std::string> special{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    const auto draw = [&] {
      return ChatTemplate(text, "gold").render(messages_of(gold["messages"]), prompt, special);
    };
    if (gold["text"].is_null()) {
      EXPECT_THROW(draw(), UserError) << text;
      continue;
    }
    try {
      EXPECT_EQ(draw(), gold["text"].get<std::string>()) << text;
    } catch (const UserError& error) { ADD_FAILURE() << error.what() << "\n" << text; }
  }
  EXPECT_GT(count, 100);
}

// gold/make_templates.py: many expressions and blocks with one conversation.
TEST(ChatTemplate, RendersExpressionsAndBlocksAsJinja2) {
  std::ifstream in(test::source_folder() / "tests/unit/text/gold/templates.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  const auto inputs = ordered_json::parse(line);
  const auto messages = messages_of(inputs["messages"]);
  const TemplateInputs variables{inputs["variables"].dump(), "2026-11-27"};
  const std::map<std::string, std::string> special{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  int count = 0;
  for (; std::getline(in, line); ++count) {
    const auto gold = ordered_json::parse(line);
    const auto text = gold["template"].get<std::string>();
    const auto draw = [&] {
      return ChatTemplate(text, "gold")
          .render(messages, GenerationPrompt::with, special, variables);
    };
    if (gold["text"].is_null()) {
      EXPECT_THROW(draw(), UserError) << text;
      continue;
    }
    try {
      EXPECT_EQ(draw(), gold["text"].get<std::string>()) << text;
    } catch (const UserError& error) { ADD_FAILURE() << error.what() << "\n" << text; }
  }
  EXPECT_GT(count, 200);
}

// Whole templates with messages, tools, documents and variables; what raise_exception says arrives.
TEST(ChatTemplate, RendersChatsAsTransformers) {
  const std::map<std::string, std::string> special{
      {"bos_token", "<|bos|>"}, {"eos_token", "<|eos|>"}, {"pad_token", "<|pad|>"}};
  std::ifstream in(test::source_folder() / "tests/unit/text/gold/chats.jsonl");
  int count = 0;
  for (std::string line; std::getline(in, line);) {
    const auto gold = ordered_json::parse(line);
    for (const ordered_json& chat : gold["cases"]) {
      ++count;
      ordered_json variables = chat.value("chat_template_kwargs", ordered_json::object());
      for (const char* name : {"tools", "documents"}) {
        if (chat.contains(name) && !chat[name].is_null()) variables[name] = chat[name];
      }
      const auto prompt = chat["add_generation_prompt"].get<bool>() ? GenerationPrompt::with
                                                                    : GenerationPrompt::without;
      const auto draw = [&] {
        return ChatTemplate(gold["template"].get<std::string>(), "gold")
            .render(messages_of(chat["messages"]), prompt, special,
                    {variables.empty() ? "" : variables.dump(), "2026-11-27"});
      };
      if (chat.contains("error")) {
        const auto message = test::error_of(ExitCode::bad_data, draw);
        const auto said = chat["error"].get<std::string>();
        EXPECT_NE(message.find(said.substr(said.find(": ") + 2)), std::string::npos) << message;
        continue;
      }
      try {
        EXPECT_EQ(draw(), chat["text"].get<std::string>()) << gold["name"];
      } catch (const UserError& error) { ADD_FAILURE() << gold["name"] << error.what(); }
    }
  }
  EXPECT_GT(count, 60);
}

TEST(ChatTemplate, RefusesByNameAndPosition) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a\n  {% block x %}", "line 2, column 6: the block 'block'"},
      {"{% include 'x' %}", "the block 'include'"},
      {"{% raw %}x", "expected {% endraw %}"},
      {"{{ x | wordwrap(9) }}", "line 1, column 6: the filter 'wordwrap'"},
      {"{{ x is like(3) }}", "the test 'like'"},
      {"{% call x %}{% endcall %}", "expected a call"},
      {"{% filter shout %}{% endfilter %}", "the filter 'shout'"},
      {"{{ f(*x) }}", "arguments from a list"},
      {"{{ messages.append(1) }}", "line 1, column 12: the method 'append' of list"},
      {"{{ f(1) }}", "the function 'f'"},
      {"{{ strftime_now('%Y') }}", "the function 'strftime_now'"},
      {"{% set x %}a", "expected {% endset %}"},
      {"{% macro f(a b) %}", "expected ','"},
      {"{% macro f(a=1, b) %}", "a parameter without a default"},
      {"{% macro f() %}a", "expected {% endmacro %}"},
      {"{% for x in messages %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
       "'break' outside a loop"},
      {"{{ '\\N{DASH}' }}", "the escape \\N"},
      {"{{ x is odd is even }}", "a test after a test"},
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
      {"{{ 0x99999999999999999999 }}", "out of range"},
  };
  for (const auto& [text, expected] : cases) {
    const auto message = test::error_of(ExitCode::bad_data, [&, &text = text] { render(text); });
    EXPECT_NE(message.find(expected), std::string::npos) << text << "\n" << message;
    EXPECT_EQ(message.find("model/chat_template.jinja: chat template, line "), 0u) << message;
  }
}

TEST(ChatTemplate, ErrorsWhileRenderingNameThePosition) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{{ raise_exception('roles must alternate') }}",
       "the template refuses these messages: roles must alternate"},
      {"{{ nothing.at_all }}", "'nothing', which is undefined,"},
      {"{{ 'a' + 1 }}", "'+' does not work on str and int"},
      {"{{ 'a' + nothing }}", "'nothing', which is undefined,"},
      {"{{ messages | select }}", "the text form of a generator"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ 'x'.split('') }}", "an empty separator"},
      {"{{ range(1000000) }}", "longer than 100000"},
      {"{% set messages.x = 1 %}", "only attributes of a namespace"},
      {"{{ messages | select('like', 3) }}", "the test 'like'"},
      {"{{ 'a' | trim(1, 2) }}", "takes at most 1 arguments, found 2"},
      {"{{ 'a' | replace('b') }}", "needs the argument 'new'"},
      {"{{ messages | select('divisibleby', 3) | list }}", "needs a whole number, found dict"},
      {"{{ messages | map('upper') | length }}", "generator has no length"},
      {"{{ 2 ** 100 }}", "beyond 64 bits"},
      {"{{ 'x' * 100000000 }}", "longer than 64 MiB"},
      {"{{ '%d' % 'x' }}", "a number is needed, found str"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "takes at most 1 arguments, found 2"},
      {"{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "the argument 'b' is not known"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "call each other too deeply"},
      {"{% macro f(n) %}{% for i in [1, 2] %}{{ f(n + 1) }}{% endfor %}{% endmacro %}{{ f(0) }}",
       "too deeply"},
      {"{% set a, b = [1] %}", "cannot unpack list into 2 names"},
      {"{{ messages | map }}", "needs the argument 'attribute'"},
      {"{{ 'a' | indent(2000) }}", "width must be"},
      {"{{ none | abs }}", "needs a number"},
      {"{{ 'a' | tojson(sorted=true) }}", "the argument 'sorted'"},
      {"{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}", "steps"},
      {"{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(90) %}{% set ns.x = ns.x + ns.x "
       "%}{% endfor %}",
       "longer than 64 MiB"},
      {"{% set ns = namespace(x=[1]) %}{% for a in range(90) %}{% set ns.x = ns.x + ns.x %}{% "
       "endfor %}",
       "steps"},
  };
  for (const auto& [text, expected] : cases) {
    const auto message = test::error_of(ExitCode::bad_data, [&, &text = text] { render(text); });
    EXPECT_NE(message.find(expected), std::string::npos) << text << "\n" << message;
    EXPECT_NE(message.find("line 1, column "), std::string::npos) << message;
  }
}

TEST(ChatTemplate, NumbersInFieldsAreExact) {
  const auto shown = [](const std::string& number) {
    return render("{{ messages[0].n | tojson }}", {{"user", "hi", "{\"n\": " + number + "}"}});
  };
  for (const char* number :
       {"9223372036854775807", "-9223372036854775808", "0", "-1", "0.1", "1e+22", "1e-07", "-0.0"})
    EXPECT_EQ(shown(number), number);
  for (const char* number :
       {"9223372036854775808", "18446744073709551615", "-99999999999999999999999", "1e+300"})
    EXPECT_EQ(shown(number), number);
  EXPECT_EQ(shown("0.1000000000000000055511"), "0.1") << "as a float of Python's";
}

// Python finds a mapping's methods before its keys.
TEST(ChatTemplate, KeysNamedLikeMethods) {
  const std::vector<Message> messages{
      {"user", "hi", R"({"items": 1, "values": 2, "update": 3, "got": 4})"}};
  EXPECT_EQ(render("{{ messages[0]['items'] }}{{ messages[0].values() | list | length }}{{ "
                   "messages[0].got }}",
                   messages),
            "164");
  EXPECT_EQ(render("[{{ messages[0].update }}]", messages), "[]")
      << "the sandbox hides what would change a mapping";
  const std::vector<std::pair<std::string, std::string>> refused{
      {"{{ messages[0].items }}", "the text form of a function"},
      {"{{ messages[0].items | tojson }}", "function has no JSON form"},
      {"{{ messages[0].update() }}", "the method 'update' of dict"},
      {"{% set f = 'x'.strip %}{{ f() }}", "the function 'f'"},
  };
  for (const auto& [text, expected] : refused) {
    const auto message =
        test::error_of(ExitCode::bad_data, [&, &text = text] { render(text, messages); });
    EXPECT_NE(message.find(expected), std::string::npos) << text << "\n" << message;
  }
}

TEST(ChatTemplate, NestingIsBounded) {
  EXPECT_NO_THROW(render("{{ " + std::string(40, '(') + "1" + std::string(40, ')') + " }}"));
  for (const auto& [open, close] :
       {std::pair{"(", ")"}, {"[", "]"}, {"not ", ""}, {"- ", ""}, {"{'a': ", "}"}}) {
    std::string text = "{{ ";
    for (int i = 0; i < 100000; ++i) text += open;
    text += "1";
    for (int i = 0; i < 100000; ++i) text += close;
    const auto message = test::error_of(ExitCode::bad_data, [&] { render(text + " }}"); });
    EXPECT_NE(message.find("nested deeper"), std::string::npos) << message;
  }
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if 1 %}";
  EXPECT_NE(test::error_of(ExitCode::bad_data, [&] { render(blocks); }).find("nested deeper"),
            std::string::npos);
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string looped(int times, const std::string& body) {
  return "{% for i in range(" + std::to_string(times) + ") %}" + body + "{% endfor %}";
}

struct Hostile {
  std::string text;
  std::string expected;
};

void expect_refused(const std::vector<Hostile>& cases) {
  for (const auto& [text, expected] : cases) {
    const auto message = test::error_of(ExitCode::bad_data, [&, &text = text] { render(text); });
    EXPECT_NE(message.find(expected), std::string::npos) << text.substr(0, 200) << "\n" << message;
    EXPECT_LT(message.size(), 400u) << text.substr(0, 200);
  }
}

// Mappings that hold themselves have no end.
TEST(ChatTemplate, HasNoCycles) {
  const std::string expected = "a namespace in a namespace is not known";
  expect_refused(
      {{"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}", expected},
       {"{% set ns = namespace() %}{% set ns.a = [{'x': ns}] %}{{ ns | tojson }}", expected},
       {"{% set ns = namespace() %}{% set m = namespace(a=ns) %}{{ ns == m }}", expected},
       {"{% set x = namespace() %}" + repeated("{% set x = namespace(a=x) %}", 30000), expected}});
  EXPECT_EQ(render("{% set ns = namespace(a=1) %}{{ [ns, {'b': ns}] | tojson }}"),
            R"([{"a": 1}, {"b": {"a": 1}}])");
}

// a + b + c is a tree whose left side is as high as the chain is long: evaluating it and taking it
// down are recursive.
TEST(ChatTemplate, ChainsAreBounded) {
  const std::string expected = "a chain of more than 200 operations";
  for (const char* link : {" + 1", " ~ 1", " * 1", " or x", " and x", "| trim", ".a", "[0]", "[1:]",
                           "(1)", " if x", "| d"}) {
    expect_refused({{"{{ 1" + repeated(link, 90000) + " }}", expected},
                    {"{% if 1 %}{{ [1" + repeated(link, 1000) + "] }}{% endif %}", expected}});
  }
  expect_refused({{"{{ f(a=1" + repeated(" + 1", 1000) + ") }}", expected}});
  EXPECT_EQ(render("{{ 1" + repeated(" + 1", 190) + " }}"), "191");
}

TEST(ChatTemplate, ValuesAreBoundedInDepth) {
  const std::string expected = "lists and mappings nested deeper than 200";
  expect_refused(
      {{"{% set ns = namespace(l=[]) %}" + looped(10000, looped(10, "{% set ns.l = [ns.l] %}")),
        expected},
       {"{% set ns = namespace(l=1) %}" + looped(10000, looped(10, "{% set ns.l = {'a': ns.l} %}")),
        expected},
       {"{% set ns = namespace(l=[1]) %}" +
            looped(300, "{% for x in [ns.l, 1] %}{% set ns.l = loop %}{% endfor %}"),
        "a namespace in a namespace is not known"}});
  EXPECT_EQ(render("{% set ns = namespace(l=1) %}" + looped(100, "{% set ns.l = [ns.l] %}") +
                   "{{ ns.l | tojson }}"),
            std::string(100, '[') + "1" + std::string(100, ']'));
}

// Sixty lines make a list that holds another twice, and so on: 2^60 items to go through.
TEST(ChatTemplate, SharedValuesAreChargedWhenTheyAreGoneThrough) {
  const std::string two = "{% set ns = namespace(l=[1], m=[1]) %}" +
                          looped(60, "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}");
  const std::string steps = "the template took more than 2000000 steps";
  expect_refused({{two + "{{ ns.l | tojson }}", steps},
                  {two + "{{ ns.l | tojson(indent=16) }}", "a text is longer than 64 MiB"},
                  {two + "{{ ns.l == ns.m }}", steps},
                  {two + "{{ ns.l != ns.m }}", steps},
                  {two + "{{ ns.l in [ns.m] }}", steps},
                  {two + "{{ [ns.l] | select('equalto', ns.m) }}", steps},
                  {two + "{{ {'a': ns.l} == {'a': ns.m} }}", steps}});
}

// What is made of texts is charged, and refused, before the memory is taken.
TEST(ChatTemplate, TextsAreBoundedBeforeTheyAreMade) {
  const std::string mebibyte = "{% set ns = namespace(x='a') %}" +
                               looped(20, "{% set ns.x = ns.x + ns.x %}") + "{% set x = ns.x %}";
  const std::string longer = "a text is longer than 64 MiB";
  expect_refused({{mebibyte + "{{ x | replace('a', x) }}", longer},
                  {mebibyte + "{{ x.replace('a', x) }}", longer},
                  {mebibyte + "{{ range(10000) | join(x) }}", longer},
                  {mebibyte + "{{ [" + repeated("x, ", 100) + "] | join }}", longer},
                  {mebibyte + "{{ x" + repeated(" ~ x", 100) + " }}", "steps"},
                  {mebibyte + looped(100, "{{ x }}"), longer},
                  {mebibyte + "{{ {'a': [" + repeated("x, ", 100) + "]} | tojson }}", longer},
                  {mebibyte + "{% set y = x ~ x %}{{ y | list | length }}", "steps"},
                  {mebibyte + "{% for c in x ~ x %}{% endfor %}", "steps"}});
  EXPECT_EQ(render(mebibyte + "{{ [" + repeated("x, ", 9000) + "] | length }}"), "9000")
      << "a list holds no copies";
  // Worst cases of a search and of a set of characters: linear, not the product of the lengths.
  EXPECT_EQ(render(mebibyte + "{% set n = x[:500000] ~ 'b' %}{{ n in x }} {{ x.replace(n, '') == x "
                              "}} {{ x.strip(n) }}."),
            "False True .");
}

TEST(ChatTemplate, LongTemplatesAreRefused) {
  EXPECT_EQ(render(std::string(1 << 20, 'a')).size(), size_t{1} << 20);
  EXPECT_NE(test::error_of(ExitCode::bad_data, [] { render(std::string((1 << 20) + 1, 'a')); })
                .find("1048577 bytes (the limit is 1048576)"),
            std::string::npos);
}

TEST(ChatTemplate, TheClockIsNotDefined) {
  EXPECT_EQ(render("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul "
                   "2024{% endif %}"),
            "26 Jul 2024");
  const std::vector<Message> messages{{"user", "hi", ""}};
  const auto dated = [&](const std::string& format, const std::string& date) {
    return ChatTemplate("{{ strftime_now('" + format + "') }}", "x")
        .render(messages, GenerationPrompt::with, {}, {"", date});
  };
  // By Python's datetime(...).strftime(...).
  EXPECT_EQ(dated("%d %b %Y|%A|%j|%H:%M:%S.%f|%z|%-d|%%", "2024-02-29"),
            "29 Feb 2024|Thursday|060|00:00:00.000000||29|%");
  EXPECT_EQ(dated("%U %W %V %G %u %w %p %I", "2027-01-01"), "00 00 53 2026 5 5 AM 12");
  EXPECT_EQ(dated("", "2024-02-29"), "");
  for (const char* format : {"%s", "%Ey", "%9Y", "%", "%-", "a%"})
    EXPECT_THROW(dated(format, "2024-02-29"), UserError) << format;
  EXPECT_TRUE(ChatTemplate("{{ strftime_now('%Y') }}", "x").asks_for_date());
  EXPECT_FALSE(ChatTemplate("{{ messages }}", "x").asks_for_date());
}

TEST(ChatTemplate, DatesAreChecked) {
  for (const char* date : {"2026-01-31", "1999-12-01", "2024-02-29"})
    EXPECT_NO_THROW(check_date(date, "data.date", ExitCode::configuration)) << date;
  for (const char* date : {"", "today", "2026-1-31", "2026-02-29", "2026-13-01", "2026/01/31",
                           "26-01-31", "2026-01-31 ", "0999-01-01", "2026-00-10", "+026-01-01"})
    EXPECT_NE(test::error_of(ExitCode::configuration,
                             [&] { check_date(date, "data.date", ExitCode::configuration); })
                  .find("data.date = \""),
              std::string::npos)
        << date;
  EXPECT_NO_THROW(check_date(today(), "today", ExitCode::internal));
}

TEST(ChatTemplate, MayBeRenderedAgain) {
  const ChatTemplate chat(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ "
      "ns.n }}",
      "x");
  const std::vector<Message> two{{"user", "a", ""}, {"assistant", "b", ""}};
  EXPECT_EQ(chat.render(two, GenerationPrompt::without, {}), "2");
  EXPECT_EQ(chat.render(two, GenerationPrompt::without, {}), "2");
}

}  // namespace
}  // namespace trireme::text
