// What a run will ask of its reward sources, looked at before it starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <random>

#include "support/text_files.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/reward/checks.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::test {
namespace {

using config::Options;
using config::RewardKind;
using config::Rule;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Checks : public testing::Test {
 protected:
  // Of files that are called a.jsonl, b.jsonl, ...
  data::PromptSet set(const std::vector<std::vector<json>>& files,
                      const std::string& label_key = "label", const char* first = "a") const {
    data::SetOptions options;
    options.keys.label = label_key;
    for (const auto& lines : files) {
      std::string text;
      for (const json& line : lines) text += line.dump() + "\n";
      const auto name = static_cast<char>(*first + static_cast<char>(options.files.size()));
      options.files.push_back(folder_.write(std::string(1, name) + ".jsonl", text));
    }
    return data::PromptSet::load(options, tokenizer_);
  }
  static Options rules(std::initializer_list<Rule> kinds) {
    Options options;
    for (const Rule kind : kinds) options.reward.source.emplace_back().rule = kind;
    return options;
  }
  static Options plugin(const std::string& script) {
    Options options;
    auto& source = options.reward.source.emplace_back();
    source.kind = RewardKind::plugin;
    source.name = "judge";
    source.command = {"sh", "-c", script};
    return options;
  }
  std::vector<std::string> check(const Options& options, const data::PromptSet& prompts) const {
    const std::vector<const data::PromptSet*> sets{&prompts};
    return reward::check_labels(options, sets);
  }
  // Of records with these labels, from line 1 on, and without the folder.
  std::string refused(const Options& options, const data::PromptSet& prompts) const {
    std::string text = error_of(ExitCode::bad_data, [&] { check(options, prompts); });
    const std::string folder = folder_.path().string() + "/";
    for (size_t at; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
    return text;
  }
  // One record with this label; null: none.
  std::string problem(Rule kind, const json& label) const {
    json line{{"prompt", "1"}};
    line["label"] = label;
    const auto prompts = set({{{{"prompt", "1"}, {"label", "7"}}, line}});
    try {
      check(rules({kind}), prompts);
      return "";
    } catch (const UserError& error) { return error.what(); }
  }

  text::Tokenizer tokenizer_ = load_tokenizer("digits_bytelevel");
  TemporaryFolder folder_;
};

const std::vector<Rule> comparing{Rule::exact, Rule::number, Rule::boxed, Rule::math,
                                  Rule::math_verl};

json record(const json& label) { return {{"prompt", "1+1="}, {"label", label}}; }
const json bare{{"prompt", "1+1="}};

TEST_F(Checks, LabelsThatNoAnswerCanEqual) {
  for (const char* label : {"####", "work #### ", "\\boxed{}", "$$"})
    EXPECT_THAT(problem(Rule::math, label), HasSubstr("holds no answer")) << label;
  for (const char* label : {"x", "#### 5", "\\text{A}", "\\frac12", "\\emptyset", "no", "{"})
    EXPECT_EQ(problem(Rule::math, label), "") << label;
  for (const Rule rule : {Rule::exact, Rule::math, Rule::boxed})
    EXPECT_THAT(problem(rule, "\xC2\xA0\xE2\x80\x83"), HasSubstr("is blank"));
}

TEST_F(Checks, ARecordWithoutALabelIsNamedByFileAndLine) {
  const auto prompts = set({{record("1"), record("2")}, {record("3"), bare, record("5")}});
  EXPECT_THAT(refused(rules({Rule::exact}), prompts),
              AllOf(HasSubstr("b.jsonl:2: no label (reward source rule0): correct the data"),
                    Not(HasSubstr("\n")), HasSubstr("data.label_key, now \"label\"")));
  Options patterns = rules({Rule::regex, Rule::none});
  patterns.reward.source[0].pattern = "2";
  EXPECT_THAT(check(patterns, prompts), IsEmpty()) << "they compare none";
}

// All kinds of JSON, for each rule.
TEST_F(Checks, WhatALabelMayBe) {
  for (const Rule kind : comparing) {
    for (const json& good : {json("4"), json(4), json(-2.5), json(1e300), json(" 12 ")})
      EXPECT_EQ(problem(kind, good), "") << good;
    for (const json& missing : {json(nullptr), json("")})
      EXPECT_THAT(problem(kind, missing), HasSubstr(":2: no label")) << missing;
    EXPECT_THAT(problem(kind, " \n"), HasSubstr(":2: the label is blank"));
    EXPECT_THAT(problem(kind, json::array()), HasSubstr(":2: the label is a list"));
    EXPECT_THAT(problem(kind, json::array({"4"})), HasSubstr(":2: the label is a list"));
    EXPECT_THAT(problem(kind, json{{"a", 1}}), HasSubstr(":2: the label is an object"));
    EXPECT_EQ(problem(kind, "[1, 2)"), "") << "a text";
    EXPECT_EQ(problem(kind, true) == "", kind != Rule::number) << "true is a word";
  }
  EXPECT_THAT(problem(Rule::number, "none"), HasSubstr("\"none\" holds no number at its end"));
  EXPECT_THAT(problem(Rule::number, "3/4"), HasSubstr("holds no number at its end"));
}

TEST_F(Checks, SeveralMistakesAreListedAndTheRestCounted) {
  std::vector<json> lines(30, record("x"));
  lines[3] = record("7");
  lines[5] = bare;
  const auto prompts = set({lines});
  const std::string text = refused(rules({Rule::number}), prompts);
  EXPECT_THAT(text, AllOf(HasSubstr("29 records have no usable label"),
                          HasSubstr("a.jsonl:1: the label \"x\" holds no number"),
                          HasSubstr("a.jsonl:6: no label"), HasSubstr("\n  and 19 more")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 11);
  EXPECT_THAT(text, Not(HasSubstr("a.jsonl:4")));
}

TEST_F(Checks, AFileWithoutAnyIsOneLine) {
  const auto prompts = set({{record("1")}, {bare, bare, bare}, {record("2"), bare}});
  EXPECT_THAT(refused(rules({Rule::exact}), prompts),
              AllOf(HasSubstr("4 records"), HasSubstr("b.jsonl, all 3 records: no label"),
                    HasSubstr("c.jsonl:2: no label")));
  EXPECT_THAT(refused(rules({Rule::exact}), set({{bare, bare}})),
              HasSubstr("a.jsonl, all 2 records: no label"));
}

// Another column than data.label_key, which one data set of a mixture lacks.
TEST_F(Checks, EachSourceHasItsColumn) {
  const auto prompts = set({{{{"prompt", "a"}, {"label", "1"}, {"answer", 4}}},
                            {{{"prompt", "a"}, {"label", "1"}, {"answer", nullptr}},
                             {{"prompt", "b"}, {"label", "1"}, {"answer", {1, 2}}}}});
  Options options = rules({Rule::exact, Rule::number});
  EXPECT_THAT(check(options, prompts), IsEmpty());
  options.reward.source[1].label_key = "answer";
  EXPECT_THAT(refused(options, prompts),
              AllOf(HasSubstr("b.jsonl:1: no column \"answer\" (label_key) (reward source rule1)"),
                    HasSubstr("b.jsonl:2: the column \"answer\" (label_key) is a list"),
                    Not(HasSubstr("a.jsonl"))));
  options.reward.source[1].label_key = "label";
  EXPECT_THAT(check(options, prompts), IsEmpty()) << "the column of data.label_key has two names";
}

TEST_F(Checks, EvaluationSetsAreLookedAtToo) {
  const auto prompts = set({{record("1")}});
  const auto held_out = set({{record("1"), record("one")}}, "label", "h");
  const std::vector<const data::PromptSet*> sets{&prompts, &held_out};
  EXPECT_THAT(
      error_of(ExitCode::bad_data, [&] { reward::check_labels(rules({Rule::number}), sets); }),
      HasSubstr("h.jsonl:2: the label \"one\""));
}

TEST_F(Checks, AllPatternsAreCompiled) {
  Options options = rules({Rule::exact, Rule::regex, Rule::none});
  options.reward.source[0].pattern = "((";
  options.reward.source[1].pattern = "fine";
  options.reward.source[2].format_pattern = "[a-";
  options.reward.source[2].format_weight = 1;
  EXPECT_THAT(error_of(ExitCode::configuration, [&] { reward::check_rules(options); }),
              AllOf(HasSubstr("reward source rule0: pattern"), HasSubstr("\"((\""),
                    HasSubstr("reward source rule2: format_pattern"), HasSubstr("[a-")));
  options.reward.source[0].pattern = options.reward.source[2].format_pattern = "a";
  EXPECT_NO_THROW(reward::check_rules(options));
}

// An empty text is part of every answer.
TEST_F(Checks, APluginWithoutLabelsIsAWarning) {
  const Options options = plugin("cat >/dev/null");
  EXPECT_THAT(check(options, set({{record("1")}})), IsEmpty());
  const auto misspelt = set({{record("1"), record("2")}}, "lable");
  EXPECT_THAT(check(options, misspelt),
              ElementsAre(AllOf(HasSubstr("no record has a label"),
                                HasSubstr("a.jsonl:1 has the columns label"),
                                HasSubstr("reward plugin judge gets \"\""))));
  EXPECT_THAT(check(options, set({{record("1")}, {record(nullptr), record(2), record("")}})),
              ElementsAre(AllOf(HasSubstr("2 of 4 records have no label"),
                                HasSubstr("b.jsonl:1 is the first"))));
}

// Whatever JSON a label is: what the start takes no answer is refused for, and what it refuses no
// answer can be compared with.
TEST_F(Checks, AgreeWithScoring) {
  std::mt19937 random(7);
  const std::string signs = "0123456789.,/-+ e$\\{}[]()abc\"\n";
  const auto text = [&] {
    std::string out;
    for (unsigned i = random() % 9; i > 0; --i) out += signs[random() % signs.size()];
    return out;
  };
  std::vector<json> lines;
  for (int i = 0; i < 400; ++i) {
    const json choices[] = {text(),
                            json(static_cast<int>(random())),
                            json(0.5 * (random() % 99)),
                            json(nullptr),
                            json(random() % 2 == 0),
                            json::array({text()}),
                            json{{text(), 1}},
                            "\\boxed{" + text() + "}",
                            " " + text() + " "};
    const json& label = choices[random() % std::size(choices)];
    lines.push_back({{"prompt", "a"}, {"label", label}, {"answer", label}});
  }
  const auto prompts = set({lines});
  int taken = 0;
  for (const Rule kind : comparing) {
    for (const char* key : {"", "answer"}) {
      Options options = rules({kind});
      options.reward.source[0].label_key = key;
      const auto rule = reward::make_rule_of(options, 0);
      for (int64_t row = 0; row < prompts.size(); ++row) {
        auto request = reward::request_for(prompts, row);
        request.response = text();
        const bool fits = rule->label_problem(request).empty();
        taken += fits;
        const std::vector<reward::Request> asked{request};
        if (fits) {
          EXPECT_NO_THROW(rule->score(asked)) << request.label;
        } else {
          EXPECT_THAT(error_of(ExitCode::bad_data, [&] { rule->score(asked); }),
                      HasSubstr(request.where));
        }
      }
    }
  }
  EXPECT_GT(taken, 1500);
  EXPECT_LT(taken, 3500);
}

TEST_F(Checks, APluginIsAskedForTheFirstRecordOfEachFile) {
  const auto prompts = set({{record("7"), record("8")}, {{{"prompt", "b"}, {"level", 3}}}});
  const std::string heard = (folder_.path() / "heard").string();
  const Options options = plugin(
      "tee " + heard +
      R"sh( | sed -u 's/^{"v": 1, "id": "\([0-9]*\)".*/{"id":"\1","reward":0.5,"metrics":{"words":3}}/')sh");
  const std::vector<const data::PromptSet*> sets{&prompts};
  EXPECT_THAT(reward::try_plugins(options, sets),
              ElementsAre(AllOf(HasSubstr("plugin judge: an empty answer to"),
                                HasSubstr("a.jsonl:1 gets reward 0.5, words 3 (2 requests in "))));
  std::ifstream in(heard);
  std::vector<json> asked;
  for (std::string line; std::getline(in, line);) asked.push_back(json::parse(line));
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].at("response"), "");
  EXPECT_EQ(asked[0].at("label"), "7");
  EXPECT_EQ(asked[1].at("label"), "");
  EXPECT_EQ(asked[1].at("extra"), json({{"level", 3}}));
}

TEST_F(Checks, ATrialThatFailsSaysWhatThePluginSaid) {
  const auto prompts = set({{record("7")}});
  const std::vector<const data::PromptSet*> sets{&prompts};
  const auto refusal = [&](ExitCode code, const std::string& script, double seconds = 60) {
    Options options = plugin(script);
    options.reward.source[0].timeout.seconds = seconds;
    return error_of(code, [&] { reward::try_plugins(options, sets); });
  };
  EXPECT_THAT(refusal(ExitCode::unfit_environment,
                      "for i in one two three four; do echo line $i >&2; done; echo KeyError: x "
                      ">&2; echo noise; exit 1"),
              AllOf(HasSubstr("(exit code 1): its messages end with\n    line three\n    line "
                              "four\n    KeyError: x\n"),
                    Not(HasSubstr("line two")), Not(HasSubstr("noise")), HasSubstr("a.jsonl:1"),
                    HasSubstr("--dry-run=files starts no plugin")));
  EXPECT_THAT(refusal(ExitCode::unfit_environment, "cat >/dev/null", 0.3),
              AllOf(HasSubstr("no answer within"), HasSubstr("reward.source.0.timeout")));
  EXPECT_THAT(refusal(ExitCode::bad_data, "read -r x; echo '{\"id\": \"0\", \"reward\": NaN}'"),
              HasSubstr("a.jsonl:1"));
  EXPECT_THAT(refusal(ExitCode::bad_data, "read -r x"), HasSubstr("ended after 0 of 1 answers"));
  Options gone = plugin("");
  gone.reward.source[0].command = {"./no-such-program"};
  EXPECT_THAT(error_of(ExitCode::input_missing, [&] { reward::try_plugins(gone, sets); }),
              HasSubstr("no-such-program"));
}

TEST(StartOfAPlugin, SaysWhatHelps) {
  const TemporaryFolder folder;
  const auto start = [&](ExitCode code, const std::filesystem::path& program) {
    config::RewardSource source;
    source.kind = RewardKind::plugin;
    source.command = {program.string()};
    return error_of(code, [&] { reward::make_plugin(source, "judge", {}); });
  };
  const auto text = folder.write("text.py", "#!/bin/sh\n");
  EXPECT_THAT(start(ExitCode::permission, text), HasSubstr("chmod +x"));
  const auto windows = folder.write("windows.py", "#!/bin/no-such-shell\r\n");
  const auto nothing = folder.write("nothing.py", "print(1)\n");
  for (const auto& file : {windows, nothing})
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  EXPECT_THAT(start(ExitCode::input_missing, windows), HasSubstr("interpreter"));
  EXPECT_THAT(start(ExitCode::input_missing, nothing), HasSubstr("#!/usr/bin/env python3"));
}

TEST(SourceNames, ArePartsOfFileNames) {
  for (const char* good : {"judge", "a", "math-verify_2.1", "9", "A.b"})
    EXPECT_EQ(config::source_name_problem(good), "") << good;
  for (const std::string bad :
       {"math/verify", "..\\x", "a b", "a\n", "\xC3\xA4", "*", "a:b", "a\tb"}) {
    EXPECT_THAT(config::source_name_problem(bad), HasSubstr("letters, digits")) << bad;
  }
  EXPECT_EQ(config::source_name_problem(std::string(64, 'x')), "");
  EXPECT_NE(config::source_name_problem(std::string(65, 'x')), "");
}

}  // namespace
}  // namespace trireme::test
