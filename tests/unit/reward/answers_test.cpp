// What rules make of odd texts, what a plugin's lines become, and the bookkeeping of several
// sources: against answers worked out by hand.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "plugin/lines.hpp"
#include "reward/asked.hpp"
#include "trireme/plugin/answers.hpp"
#include "trireme/text/pattern.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

using config::Rule;
using reward::Scores;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using text::Pattern;

bool is_right(Rule kind, const std::string& response, const std::string& label) {
  config::RewardSource options;
  options.rule = kind;
  return reward::make_rule(options, "r")
             ->score(std::vector{request(1, response, label)})
             .values.at(0) == 1;
}

// ---- boxed answers ----

TEST(Boxed, RowsOfAMatrixAreTheSameWithAndWithoutBlanks) {
  const std::string tight = R"(\begin{pmatrix}1\\2\\3\end{pmatrix})";
  EXPECT_TRUE(is_right(Rule::boxed, R"(\boxed{\begin{pmatrix} 1 \\ 2 \\ 3 \end{pmatrix}})", tight));
  EXPECT_TRUE(is_right(Rule::boxed, R"(\boxed{)" + tight + "}",
                       R"(\begin{pmatrix} 1 \\ 2 \\ 3 \end{pmatrix})"));
  EXPECT_TRUE(
      is_right(Rule::boxed, "\\boxed{\\begin{pmatrix}1\\\\\n2\\\\\n3\\end{pmatrix}}", tight));
  EXPECT_FALSE(is_right(Rule::boxed, R"(\boxed{\begin{pmatrix}1 & 2\\3\end{pmatrix}})", tight));
}

TEST(Boxed, ALineBreakIsNoSizeOfBrackets) {
  EXPECT_FALSE(is_right(Rule::boxed, R"(\boxed{a\\left})", R"(a\)")) << "\\\\ and the word left";
  EXPECT_FALSE(is_right(Rule::boxed, R"(\boxed{a\\dfrac})", R"(a\\frac)"));
  EXPECT_TRUE(is_right(Rule::boxed, R"(\boxed{a\\!b})", R"(a\\!b)"));
}

TEST(Boxed, AnAmountOfDollarsIsItsNumber) {
  EXPECT_TRUE(is_right(Rule::boxed, R"(\boxed{18.90})", R"(\$18.90)"));
  EXPECT_TRUE(is_right(Rule::boxed, R"(\boxed{\$18.9})", R"(18.90)"));
  EXPECT_TRUE(is_right(Rule::boxed, R"(\boxed{\$32,348})", R"($\$32,\!348$)"));
  EXPECT_FALSE(is_right(Rule::boxed, R"(\boxed{\$18.91})", R"(\$18.90)"));
}

TEST(Boxed, NumbersOfOneValueInSeveralWritings) {
  for (const char* same : {"0.5", ".5", "0.50", "5e-1", "+0.5", "0.5.", " 0.5 ", "$0.5$"}) {
    EXPECT_TRUE(is_right(Rule::boxed, std::string("\\boxed{") + same + "}", "0.5")) << same;
  }
  for (const char* other : {"-0.5", "0.5x", "0.51", "x0.5", "0,5", "1/2", "0.5%"}) {
    EXPECT_FALSE(is_right(Rule::boxed, std::string("\\boxed{") + other + "}", "0.5")) << other;
  }
}

TEST(Boxed, BracesThatDoNotMatch) {
  EXPECT_FALSE(is_right(Rule::boxed, R"(\boxed{{1})", "1")) << "never closed";
  EXPECT_TRUE(is_right(Rule::boxed, R"(\boxed{1}})", "1")) << "one too many behind it";
  EXPECT_TRUE(is_right(Rule::boxed, R"(\boxed{\boxed{1}})", "1")) << "the inner one is the last";
  EXPECT_FALSE(is_right(Rule::boxed,
                        R"(\boxed{1)"
                        "\\",
                        "1"))
      << "a backslash at the end of the text";
  EXPECT_FALSE(is_right(Rule::boxed, R"(\boxed{1\})", "1")) << "a brace that is a sign";
}

// ---- patterns ----

Pattern pattern(const char* text) {
  return {text, "key", Pattern::Case::sensitive, Pattern::Extent::part};
}

// An empty match in front of a character of several bytes: the search goes on behind the character,
// not inside it.
TEST(Patterns, EmptyMatchesStepOverWholeCharacters) {
  const auto digit_or_start = pattern("(?=([0-9]))|^");
  for (const char* front : {"a", "\u00e9", "\u65e5", "\U0001F600", "\u65e5\u672c"}) {
    const std::string text = std::string(front) + "4";
    EXPECT_EQ(digit_or_start.find_last(text), "4") << front;
  }
  EXPECT_EQ(digit_or_start.given_up(), 0) << "no error of PCRE2's";
}

TEST(Patterns, BytesThatAreNoTextAreSteppedOverToo) {
  const auto digit_or_start = pattern("(?=([0-9]))|^");
  EXPECT_EQ(digit_or_start.find_last("\x80\xbf\xbf"
                                     "4"),
            "4")
      << "continuations of nothing";
  EXPECT_EQ(digit_or_start.find_last("\xf0\x9f"
                                     "4"),
            "4")
      << "a character that is cut off";
}

TEST(Patterns, TheLastMatchIsThatOfASearchFromEveryPlace) {
  const auto any = pattern("[0-9]+");
  EXPECT_EQ(any.find_last("1 22 333"), "333");
  EXPECT_EQ(any.find_last(""), std::nullopt);
  EXPECT_EQ(pattern("x*").find_last(""), "") << "an empty match in an empty text";
  EXPECT_EQ(pattern("a|(b)").find_last("ba"), "a") << "the group took no part in the last match";
  EXPECT_EQ(pattern("(a)|b").find_last("ab"), "b");
}

TEST(Patterns, TheWholeTextOrNothing) {
  const Pattern whole("a.b|a", "key", Pattern::Case::ignored, Pattern::Extent::whole);
  for (const char* yes : {"a\nb", "A", "AxB"}) EXPECT_TRUE(whole.matches(yes)) << yes;
  for (const char* no : {"", "ab", "xa", "a\n", "a b "}) EXPECT_FALSE(whole.matches(no)) << no;
}

TEST(Patterns, AnErrorNamesKeyPatternAndPlace) {
  expect_error(ExitCode::configuration, "format = \"ab[\"",
               [] { Pattern("ab[", "format", Pattern::Case::sensitive, Pattern::Extent::part); });
  expect_error(ExitCode::configuration, "at character 4",
               [] { Pattern("ab[", "format", Pattern::Case::sensitive, Pattern::Extent::part); });
}

// ---- a plugin's lines ----

class AskedLines : public testing::Test {
 protected:
  AskedLines() {
    for (const uint64_t id : {uint64_t{3}, uint64_t{7}, std::numeric_limits<uint64_t>::max()})
      asked.add(std::vector{request(id, "r", "l")});
  }
  void refused(const std::string& line, const std::string& why) {
    expect_error(ExitCode::bad_data, why, [&] { asked.accept(line); });
  }
  Scores take(std::vector<uint64_t> ids) {
    std::vector<reward::Request> requests;
    for (const uint64_t id : ids) requests.push_back(request(id, "r", "l"));
    return asked.take(requests);
  }
  reward::Asked asked{"judge"};
};

TEST_F(AskedLines, IdsOfSixtyFourBitsComeBackWhole) {
  EXPECT_EQ(asked.accept(R"({"id": "18446744073709551615", "reward": 1})"),
            std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(asked.accept(R"({"id": 7, "reward": -2.5})"), 7u);
  EXPECT_TRUE(asked.settled(request(7, "", "")));
  EXPECT_FALSE(asked.settled(request(3, "", "")));
  refused(R"({"id": 18446744073709551616, "reward": 1})", "neither a text nor a whole number");
  refused(R"({"id": "18446744073709551616", "reward": 1})", "was not asked for");
}

TEST_F(AskedLines, IdsThatAreNone) {
  for (const char* id : {"\"\"", "\"3 \"", "\" 3\"", "\"3x\"", "-3", "\"-3\"", "\"0x3\"", "4"}) {
    refused(std::string(R"({"reward": 1, "id": )") + id + "}", "was not asked for");
  }
  for (const char* id : {"3.0", "null", "true", "[3]", "{}"})
    refused(std::string(R"({"reward": 1, "id": )") + id + "}", "neither a text nor");
  refused(R"({"reward": 1})", "without an id");
  refused(R"({"id": 3})", "the reward is not a finite number");
}

TEST_F(AskedLines, RewardsOutsideOfAFloat) {
  for (const char* value :
       {"1e39", "-1e39", "1e400", "null", "\"1\"", "true", "[1]", "NaN", "Infinity"}) {
    expect_error(ExitCode::bad_data, "reward plugin judge",
                 [&] { asked.accept(std::string(R"({"id": 3, "reward": )") + value + "}"); });
  }
  EXPECT_FALSE(asked.settled(request(3, "", ""))) << "a refused answer settles nothing";
  EXPECT_EQ(asked.accept(R"({"id": 3, "reward": 3.4e38})"), 3u);
  refused(R"({"id": 3, "reward": 3.4e38})", "a second answer for id 3");
}

TEST_F(AskedLines, MetricsOutsideOfAFloat) {
  for (const char* value : {"1e39", "-1e39", "\"1\"", "[1]", "{\"a\": 1}"}) {
    asked.add(std::vector{request(9, "r", "l")});
    refused(std::string(R"({"id": 9, "reward": 1, "metrics": {"style": )") + value + "}}",
            "the metric \"style\" is not a finite number");
    take({9});
  }
}

TEST_F(AskedLines, NoiseIsNoAnswer) {
  for (const char* noise :
       {"", " ", "loading ...", "{", "[]", "{}", "3", "null", R"({"progress": 1})", R"("reward")",
        "\xff\xfe", R"([{"id": 3, "reward": 1}])"}) {
    EXPECT_EQ(asked.accept(noise), std::nullopt) << noise;
  }
  EXPECT_EQ(asked.accept(std::string(200'000, '[')), std::nullopt)
      << "depth is no way to end the run";
}

TEST_F(AskedLines, LongLinesAreQuotedByTheirStart) {
  EXPECT_EQ(plugin::excerpt(std::string(200, 'x')), std::string(200, 'x'));
  EXPECT_EQ(plugin::excerpt(std::string(201, 'x')), std::string(200, 'x') + "...");
}

TEST_F(AskedLines, WhatIsTakenIsInTheOrderOfTheRequestsAndForgotten) {
  asked.accept(R"({"id": 3, "reward": 0.5, "metrics": {"style": 2}})");
  asked.accept(R"({"id": 7, "reward": 1.5, "metrics": {"length": 9}})");
  asked.give_up(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(asked.line(std::numeric_limits<uint64_t>::max()), "");
  const Scores scores = take({7, std::numeric_limits<uint64_t>::max(), 3});
  EXPECT_THAT(scores.values, ElementsAre(1.5f, 0.0f, 0.5f));
  EXPECT_THAT(scores.missing, ElementsAre(0, 1, 0));
  const auto& style = scores.metrics.at("style");
  const auto& length = scores.metrics.at("length");
  ASSERT_EQ(style.size(), 3u);
  ASSERT_EQ(length.size(), 3u);
  EXPECT_TRUE(std::isnan(style[0]) && std::isnan(style[1]));
  EXPECT_EQ(style[2], 2);
  EXPECT_EQ(length[0], 9);
  EXPECT_TRUE(std::isnan(length[1]) && std::isnan(length[2]));
  EXPECT_FALSE(asked.has(request(3, "", "")));
  asked.add(std::vector{request(3, "again", "")});
  EXPECT_FALSE(asked.settled(request(3, "", "")))
      << "a new request of that id knows nothing of the old one";
  expect_error(ExitCode::internal, "two requests have one id",
               [&] { asked.add(std::vector{request(3, "", "")}); });
}

TEST_F(AskedLines, NothingMissingIsAnEmptyList) {
  asked.accept(R"({"id": 3, "reward": 0})");
  EXPECT_THAT(take({3}).missing, IsEmpty());
  EXPECT_THAT(take({}).values, IsEmpty());
}

TEST(Lines, AreTheSameHoweverTheBytesCome) {
  const std::string bytes = "one\n\ntwo\r\n\r\n three\rfour\nlast";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    plugin::Lines lines;
    std::vector<std::string> found;
    const auto take = [&](std::string_view line) { found.emplace_back(line); };
    for (size_t at = 0; at < bytes.size(); at += piece) lines.add(bytes.substr(at, piece), take);
    EXPECT_EQ(lines.begun(), "last");
    lines.end(take);
    EXPECT_THAT(found, ElementsAre("one", "two", " three\rfour", "last"));
    EXPECT_EQ(lines.begun(), "");
  }
}

// ---- several sources ----

// Gives what it was told to.
class Fixed : public reward::Source {
 public:
  Fixed(std::string name, Scores scores, bool model = false)
      : name_(std::move(name)), scores_(std::move(scores)), model_(model) {}
  const std::string& name() const override { return name_; }
  Scores score(std::span<const reward::Request>) override {
    Scores scores = scores_;
    scores.left = stops;
    return scores;
  }
  bool collective() const override { return model_; }
  bool takes_time() const override { return slow; }
  reward::PluginCounters take_counters() override { return std::exchange(counters, {}); }
  bool stops = false;
  bool slow = false;
  reward::PluginCounters counters;

 private:
  std::string name_;
  Scores scores_;
  bool model_;
};

std::vector<reward::Request> requests_of(size_t count) {
  std::vector<reward::Request> out;
  for (size_t i = 0; i < count; ++i) out.push_back(request(10 + i, "r", "l"));
  return out;
}

TEST(Sources, TheSumIsThatOfWeightsTimesParts) {
  reward::Rewards rewards;
  rewards.add(std::make_unique<Fixed>("a", Scores{{1, 2}, {}}), 0.5);
  rewards.add(std::make_unique<Fixed>("m", Scores{{4, 8}, {}}, true), -1);
  rewards.add(std::make_unique<Fixed>("b", Scores{{16, 32}, {}}), 2);
  auto parts = rewards.score_locally(requests_of(2)).value().parts;
  EXPECT_THAT(parts, ElementsAre(ElementsAre(1, 2), ElementsAre(0, 0), ElementsAre(16, 32)))
      << "models have not been asked";
  rewards.score_with_models(requests_of(2), parts);
  EXPECT_THAT(rewards.sum(parts), ElementsAre(0.5f - 4 + 32, 1 - 8 + 64.0f));
}

// 1e8 and its opposite cancel before anything is rounded to a float.
TEST(Sources, TheSumIsTakenInDouble) {
  reward::Rewards rewards;
  for (const double weight : {1.0, 1.0, -1.0})
    rewards.add(std::make_unique<Fixed>("x", Scores{{0}, {}}), weight);
  EXPECT_THAT(rewards.sum({{1e8f}, {1}, {1e8f}}), ElementsAre(1.0f));
  EXPECT_THAT(rewards.sum({}), IsEmpty());
}

TEST(Sources, WhatIsWrongWithAnAnswerNamesSourceAndRequest) {
  const auto error = [](std::vector<float> values, ExitCode code, const std::string& part) {
    reward::Rewards rewards;
    rewards.add(std::make_unique<Fixed>("taste", Scores{std::move(values), {}}), 1);
    expect_error(code, part, [&] { rewards.score_locally(requests_of(2)); });
  };
  error({1}, ExitCode::internal, "taste gave 1 scores for 2 requests");
  error({1, 2, 3}, ExitCode::internal, "taste gave 3 scores for 2 requests");
  error({0, std::nanf("")}, ExitCode::bad_data, "for request 11");
  error({std::numeric_limits<float>::infinity(), 0}, ExitCode::bad_data, "for request 10");
}

TEST(Sources, MissingIsWhatAnySourceGaveUp) {
  reward::Rewards rewards;
  rewards.add(std::make_unique<Fixed>("a", Scores{.values = {1, 1, 1}, .missing = {0, 1, 0}}), 1);
  rewards.add(std::make_unique<Fixed>("b", Scores{{1, 1, 1}, {}}), 1);
  rewards.add(std::make_unique<Fixed>("c", Scores{.values = {1, 1, 1}, .missing = {0, 0, 1}}), 1);
  EXPECT_THAT(rewards.score_locally(requests_of(3)).value().missing, ElementsAre(0, 1, 1));
}

TEST(Sources, AStopOfAnyRankEndsTheScoring) {
  for (const bool others : {false, true}) {
    for (const bool mine : {false, true}) {
      reward::Rewards rewards;
      auto slow = std::make_unique<Fixed>("slow", Scores{{1}, {}});
      slow->slow = true;
      slow->stops = mine;
      rewards.add(std::move(slow), 1);
      int asked = 0;
      const auto scores = rewards.score_locally(requests_of(1), [&](bool here) {
        ++asked;
        EXPECT_EQ(here, mine);
        return here || others;
      });
      EXPECT_EQ(scores.has_value(), !mine && !others);
      EXPECT_EQ(asked, 1);
    }
  }
}

TEST(Sources, CountersAreSummedAndStartAnew) {
  reward::Rewards rewards;
  for (const int64_t n : {1, 10}) {
    auto source = std::make_unique<Fixed>("x", Scores{});
    source->counters = {.requests = n,
                        .retries = 2 * n,
                        .restarts = 3 * n,
                        .skipped_groups = 4 * n,
                        .wait_seconds = 0.5 * static_cast<double>(n)};
    rewards.add(std::move(source), 1);
  }
  const auto sum = rewards.take_counters();
  EXPECT_EQ(sum.requests, 11);
  EXPECT_EQ(sum.retries, 22);
  EXPECT_EQ(sum.restarts, 33);
  EXPECT_EQ(sum.skipped_groups, 44);
  EXPECT_EQ(sum.wait_seconds, 5.5);
  EXPECT_EQ(rewards.take_counters().requests, 0);
}

TEST(Sources, NamesAreTheirOwnOrKindAndPlace) {
  config::Options options;
  options.reward.source.resize(3);
  options.reward.source[0].kind = config::RewardKind::rule;
  options.reward.source[1].kind = config::RewardKind::plugin;
  options.reward.source[1].name = "judge";
  options.reward.source[2].kind = config::RewardKind::model;
  EXPECT_THAT(reward::source_names(options), ElementsAre("rule0", "judge", "model2"));
}

}  // namespace
}  // namespace trireme::test
