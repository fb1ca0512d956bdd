#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

using config::Rule;

config::RewardSource rule(Rule kind) {
  config::RewardSource out;
  out.rule = kind;
  return out;
}

float score_one(const config::RewardSource& options, const std::string& response,
                const std::string& label) {
  const std::vector<reward::Request> requests{request(7, response, label)};
  return reward::make_rule(options, "rule0")->score(requests).values.at(0);
}

TEST(Rule, ExactComparesTheTrimmedResponse) {
  EXPECT_EQ(score_one(rule(Rule::exact), " Paris\n", "Paris"), 1);
  EXPECT_EQ(score_one(rule(Rule::exact), "\u00a0Paris\u3000\x1f", "Paris\u202f"), 1)
      << "as Python's strip()";
  EXPECT_EQ(score_one(rule(Rule::exact), "\u200bParis", "Paris"), 0) << "not white space";
  EXPECT_EQ(score_one(rule(Rule::exact), "\xA0x", "x"), 0) << "not UTF-8: kept";
  EXPECT_EQ(score_one(rule(Rule::exact), "paris", "Paris"), 0);
  auto any_case = rule(Rule::exact);
  any_case.case_sensitive = false;
  EXPECT_EQ(score_one(any_case, "PARIS", "Paris"), 1);
}

TEST(Rule, PatternFindsTheAnswerInTheResponse) {
  auto boxed = rule(Rule::exact);
  boxed.pattern = R"(\\boxed\{([^}]*)\})";
  EXPECT_EQ(score_one(boxed, R"(First \boxed{3}, no: \boxed{4}.)", "4"), 1)
      << "the last one counts";
  EXPECT_EQ(score_one(boxed, "4", "4"), 0) << "no box, no answer";
}

TEST(Rule, NumberTakesTheLastOne) {
  const auto number = rule(Rule::number);
  EXPECT_EQ(score_one(number, "6 x 7 makes 42.", "42"), 1);
  EXPECT_EQ(score_one(number, "42.0", "42"), 1);
  EXPECT_EQ(score_one(number, "1,234,567", "1234567"), 1);
  EXPECT_EQ(score_one(number, "1,5", "5"), 1) << "a list, not a thousand";
  EXPECT_EQ(score_one(number, "x = -3", "-3"), 1);
  EXPECT_EQ(score_one(number, "10-3", "3"), 1) << "a minus between operands is no sign";
  EXPECT_EQ(score_one(number, "(-.5)", "-0.5"), 1);
  EXPECT_EQ(score_one(number, "1e3", "1000"), 1);
  EXPECT_EQ(score_one(number, "1e999", "0"), 0);
  EXPECT_EQ(score_one(number, "no idea", "42"), 0);
  EXPECT_EQ(score_one(number, "#### 18", "work work #### 18"), 1)
      << "labels may hold their derivation";
}

struct Answer {
  const char* response;
  const char* label;
  bool right;
};

TEST(Rule, NumbersInEveryWriting) {
  const std::vector<Answer> answers{
      {"$1,234.50", "1234.5", true},
      {"1,234,567.8", "1234567.8", true},
      {"1234,567", "567", true},
      {"12,34", "34", true},
      {"+7", "7", true},
      {"-0", "0", true},
      {"007", "7", true},
      {"3.", "3", true},
      {"1.50", "1.5", true},
      {"2e3", "2000", true},
      {"2E-1", "0.2", true},
      {"-1e999", "-1e999", true},
      {"1e-999", "0", false},
      {"0.1", "0.10000000000000001", false},
      {"9007199254740993", "9007199254740992", false},  // equal as doubles
      {"The answer is 9007199254740993.", "9007199254740992", false},
      {"123456789012345678901", "123456789012345678900", false},
      {"123456789012345678901", "123,456,789,012,345,678,901", true},
      {"-18446744073709551616", "-18446744073709551617", false},
      {"0.1234567890123456789", "0.1234567890123456788", false},
      {"1e30", "1000000000000000000000000000000", true},
      {"1e30", "1000000000000000000000000000001", false},
      {"1e2000000000000000000", "1", false},  // beyond the limit of exponents
      {"a=-3", "-3", true},
      {"a-3", "-3", false},
      {"(2)-3", "3", true},
      {"[2]-3", "-3", false},
      {"5 - 3", "-3", false},
      {"5 -3", "-3", true},
      {"\u22123", "-3", true},
      {"\u22123", "3", false},
      {"10\u22123", "3", true},
      {"\u2212.5", "-0.5", true},
      {"\u0663", "3", false},
      {"\uff13", "3", false},
      {"42\u00b0", "42", true},
      {"\u65e5\u672c42\u5186", "42", true},
      {"3/4", "4", false},
      {"it is 3/4", "0.75", false},
      {"3/4 = 0.75", "0.75", true},
      {"km/2", "2", true},
      {"/2", "2", true},
      {"2/", "2", true},
      {"1\n2\n", "2", true},
      {"", "0", false},
      {"v2", "2", true},
      {"x.5", "5", true},
      {"1.2.3", "3", false},
      {"50%", "50", true},
  };
  for (const Answer& answer : answers) {
    EXPECT_EQ(score_one(rule(Rule::number), answer.response, answer.label), answer.right ? 1 : 0)
        << answer.response << " against " << answer.label;
  }
  expect_error(ExitCode::bad_data, "a fraction is none",
               [] { score_one(rule(Rule::number), "0.5", "1/2"); });
  EXPECT_EQ(score_one(rule(Rule::number), "24", "48/2=24 #### 24"), 1);
}

// A sign before a currency, digits in groups, and what is no number although it ends with one.
TEST(Rule, NumbersAsTheyArePrinted) {
  const std::vector<Answer> answers{
      {"-$5", "-5", true},
      {"-$5", "5", false},
      {"-\u20ac5.50", "-5.5", true},
      {"\u2212\u00a31,000", "-1000", true},
      {"-\\$5", "-5", true},
      {"$-5", "-5", true},
      {"10-$5", "5", true},
      {"it costs - $5", "5", true},
      {"\u20ac 5", "5", true},
      {"1 234", "1234", true},
      {"1 234", "234", false},
      {"12 345 678.5", "12345678.5", true},
      {"1\u00a0234", "1234", true},
      {"1\u202f234\u202f567", "1234567", true},
      {"in 2020 300", "300", true},
      {"1 2 3", "3", true},
      {"1,23,456", "123456", true},
      {"1,23,456", "456", false},
      {"12,34,56,789.25", "123456789.25", true},
      {"1'234'567", "1234567", true},
      {"1_000", "1000", true},
      {"1{,}234", "1234", true},
      {"1\\,234", "1234", true},
      {"1.234.567", "1234567", true},
      {"1.234.567", "567", false},
      {"12:30", "30", false},
      {"at 12:30.", "30", false},
      {"12:30:45", "45", false},
      {"a ratio of 3:4", "4", false},
      {"total: 30", "30", true},
      {"total:30", "30", true},
      {"1.5.2", "2", false},
      {"v1.5.2", "5.2", false},
      {"192.168.1.17", "17", false},
      {"1.2.3.4:80", "80", false},
      {"2026-11-26", "26", false},
      {"2026-11-26", "-26", false},
      {"10^3", "3", false},
      {"2**10", "10", false},
      {"2^10 = 1024", "1024", true},
      {"That is 5.", "5", true},
      {"1. 5", "5", true},
  };
  for (const Answer& answer : answers) {
    EXPECT_EQ(score_one(rule(Rule::number), answer.response, answer.label), answer.right ? 1 : 0)
        << answer.response << " against " << answer.label;
  }
  for (const char* label : {"12:30", "1.5.2", "2026-11-26", "10^3", "1e2000000000000000000"})
    expect_error(ExitCode::bad_data, "holds no number at its end",
                 [&] { score_one(rule(Rule::number), "30", label); });
}

// Of a column that another key names: digits beyond 64 bits and of a double stay.
TEST(Rule, NumbersOfOtherColumnsKeepTheirDigits) {
  const auto right = [](const char* answer, const char* extra) {
    auto options = rule(Rule::exact);
    options.label_key = "gold";
    auto asked = request(1, answer, "");
    asked.extra = extra;
    return reward::make_rule(options, "r")->score(std::vector{asked}).values.at(0);
  };
  EXPECT_EQ(right("18446744073709551616", R"({"gold":18446744073709551616})"), 1);
  EXPECT_EQ(right("1.8446744073709552e+19", R"({"gold":18446744073709551616})"), 0);
  EXPECT_EQ(right("-9223372036854775809", R"({"gold":-9223372036854775809})"), 1);
  EXPECT_EQ(right("0.12345678901234567891", R"({"gold":0.12345678901234567891})"), 1);
  EXPECT_EQ(right("2.5", R"({"gold":2.50})"), 1) << "as before: a double holds it";
  expect_error(ExitCode::bad_data, "is a list",
               [&] { right("[1,2]", R"({"gold":[1, 18446744073709551616]})"); });
}

// As answers of mathematics data sets are written and compared.
TEST(Rule, BoxedTakesTheLastBoxAndItsMeaning) {
  const std::vector<Answer> answers{
      {R"(so \boxed{42}.)", "42", true},
      {R"(\boxed{3}, no: \boxed{4})", "4", true},
      {R"(\boxed{3}, no: \boxed{4})", "3", false},
      {R"(\boxed{\frac{1}{2}})", R"(\frac{1}{2})", true},
      {R"($\boxed{\dfrac{1}{2}}$)", R"(\frac12)", false},  // a label's own shorthand is not guessed
      {R"(\boxed{\dfrac{1}{2}})", R"(\tfrac{1}{2})", true},
      {R"(\boxed{ \left( 1, 2 \right] })", "(1,2]", true},
      {R"(\boxed{x \leftarrow y})", R"(x\leftarrowy)", true},
      {R"(\boxed{\{1, 2\}})", R"(\{1,2\})", true},
      {R"(\boxed{1,234.50})", "1234.5", true},
      {R"(\boxed{12 apples})", "12", false},
      {R"(\boxed{7})", R"(because of this, \boxed{7})", true},
      {R"(\boxed{7)", "7", false},
      {"7", "7", false},
      {R"(\boxed{})", "7", false},
      {R"(\boxed{A})", "a", false},
      {R"(\boxed{\)", "a", false},
  };
  for (const Answer& a : answers)
    EXPECT_EQ(score_one(rule(Rule::boxed), a.response, a.label), a.right ? 1 : 0)
        << a.response << " for " << a.label;
  auto any_case = rule(Rule::boxed);
  any_case.case_sensitive = false;
  EXPECT_EQ(score_one(any_case, R"(\boxed{A})", "a"), 1);
}

TEST(Rule, PatternsWithGroupsAndOtherScripts) {
  const auto found = [](const char* pattern, const Answer& answer, bool case_sensitive = true) {
    auto options = rule(Rule::exact);
    options.pattern = pattern;
    options.case_sensitive = case_sensitive;
    EXPECT_EQ(score_one(options, answer.response, answer.label), answer.right ? 1 : 0)
        << pattern << " in " << answer.response;
  };
  found("answer: .*", {"answer: 4", "answer: 4", true});
  found("answer: (.*)", {"answer: 4", "4", true});
  found("a(b)?c", {"ac", "ac", true});  // a group that took no part: the whole match
  found("(x)|(y)", {"y", "y", true});
  found("(?:x|y)(z)", {"xz yz", "z", true});
  found("(\\d+)\\s*\u5186", {"\u7d04300 \u5186", "300", true});
  found("[\u00e0-\u00ff]+", {"caf\u00e9", "\u00e9", true});
  found("\u00c9COLE", {"\u00e9cole", "\u00e9cole", false});
  found("\u00c9COLE", {"\u00c9COLE", "\u00e9cole", false},
        false);                                // labels are compared letter by letter in ASCII only
  found("z*", {"\u65e5z\u672c", "z", false});  // the last match is the empty one at the end
  found("b.", {"a\xff\xfe b\xc3 bc", "bc", true});  // what is not UTF-8 matches nothing
}

TEST(Rule, ExactInUnicode) {
  EXPECT_EQ(score_one(rule(Rule::exact), "\u6771\u4eac", "\u6771\u4eac"), 1);
  EXPECT_EQ(score_one(rule(Rule::exact), "e\u0301", "\u00e9"), 0) << "texts are not normalised";
  EXPECT_EQ(score_one(rule(Rule::exact), "\t a  b \r\n", "a  b"), 1);
  EXPECT_EQ(score_one(rule(Rule::exact), "", "a"), 0);
  EXPECT_EQ(score_one(rule(Rule::exact), "\xff", "\xff"), 1);
}

// The format is that of the whole response, and a rule of none has nothing else.
TEST(Rule, FormatAlone) {
  auto format = rule(Rule::none);
  format.format_pattern = "<a>.+</a>";
  format.format_weight = 0.5;
  format.score_right = 100;
  for (const Answer& answer : {Answer{"<a>1\n2</a>", "", true}, Answer{" <a>1</a>", "", false},
                               Answer{"<a>1</a>.", "", false}, Answer{"<a></a>", "", false}}) {
    EXPECT_EQ(score_one(format, answer.response, answer.label), answer.right ? 0.5f : 0.f)
        << answer.response;
  }
  EXPECT_TRUE(reward::make_rule(format, "r")->score({}).values.empty());
}

TEST(Rule, ShortResponsesHaveNoExcess) {
  auto brief = rule(Rule::none);
  brief.length_target = 4;  // request() has four response tokens
  brief.length_weight = 1;
  EXPECT_EQ(score_one(brief, "x", ""), 0);
  brief.length_target = 1000;
  EXPECT_EQ(score_one(brief, "x", ""), 0) << "brevity below the target is not rewarded";
  brief.length_target = 0;
  expect_error(ExitCode::configuration, "length_target", [&] { reward::make_rule(brief, "r"); });
}

TEST(Rule, ScoresFormatAndLengthAreParts) {
  auto graded = rule(Rule::number);
  graded.score_right = 2;
  graded.score_wrong = -0.5;
  graded.format_pattern = "<think>.*</think>.*";
  graded.format_weight = 0.25;
  graded.length_target = 2;
  graded.length_weight = 0.1;
  const std::vector<reward::Request> requests{request(1, "<think>a\nb</think> 5", "5"),
                                              request(2, "4", "5")};
  const auto scores = reward::make_rule(graded, "graded")->score(requests);
  // 4 response tokens against a target of 2: the excess is 1
  EXPECT_FLOAT_EQ(scores.values[0], 2 + 0.25f - 0.1f);
  EXPECT_FLOAT_EQ(scores.values[1], -0.5f - 0.1f);
  EXPECT_EQ(scores.metrics.at("right"), (std::vector<float>{1, 0}));
  EXPECT_EQ(scores.metrics.at("format"), (std::vector<float>{1, 0}));
  EXPECT_EQ(scores.metrics.at("length_excess"), (std::vector<float>{1, 1}));
}

TEST(Rule, RegexIgnoresTheLabel) {
  auto regex = rule(Rule::regex);
  regex.pattern = "^yes";
  EXPECT_EQ(score_one(regex, "yes, sir", ""), 1);
  EXPECT_EQ(score_one(regex, "no", ""), 0);
}

TEST(Rule, LabelFromAnotherColumn) {
  auto column = rule(Rule::number);
  column.label_key = "answer";
  auto asked = request(1, "it is 12", "ignored 5");
  asked.extra = R"({"answer": 12})";
  EXPECT_EQ(reward::make_rule(column, "r")->score(std::vector{asked}).values[0], 1);
  for (const char* extra :
       {"{}", "", "[]", "{\"answer\": null}", "{\"answer\": \"\"}", "no JSON"}) {
    asked.extra = extra;
    expect_error(ExitCode::bad_data, "request 1: no column \"answer\" (label_key)",
                 [&] { reward::make_rule(column, "r")->score(std::vector{asked}); });
  }
  auto texts = rule(Rule::exact);
  texts.label_key = "answer";
  asked = request(1, "true", "");
  asked.extra = R"({"answer": true})";
  EXPECT_EQ(reward::make_rule(texts, "r")->score(std::vector{asked}).values[0], 1);
}

TEST(Rule, BadInput) {
  auto broken = rule(Rule::regex);
  broken.pattern = "(unclosed";
  expect_error(ExitCode::configuration, "(unclosed", [&] { reward::make_rule(broken, "r"); });
  expect_error(ExitCode::bad_data, "no label", [&] { score_one(rule(Rule::exact), "a", ""); });
  expect_error(ExitCode::bad_data, "holds no number",
               [&] { score_one(rule(Rule::number), "a", "none"); });
}

TEST(Rule, RunawayPatternDoesNotMatch) {
  auto runaway = rule(Rule::regex);
  runaway.pattern = "^(a+)+$";
  EXPECT_EQ(score_one(runaway, std::string(5000, 'a') + "b", ""), 0);
  const std::vector<reward::Request> requests{request(1, std::string(5000, 'a') + "b", ""),
                                              request(2, "aa", "")};
  const auto scores = reward::make_rule(runaway, "runaway")->score(requests);
  EXPECT_EQ(scores.values, (std::vector<float>{0, 1}));
  EXPECT_EQ(scores.metrics.at("pattern_limit"), (std::vector<float>{1, 0}));
}

// A group that is repeated for each character fills the stack of PCRE2's JIT after some thousand.
TEST(Rule, LongResponsesMatchAsShortOnes) {
  auto repeated = rule(Rule::regex);
  repeated.pattern = "^(.|\n)*42$";
  auto think = rule(Rule::none);
  think.format_pattern = "<think>(.|\n)*</think>(.|\n)*";
  think.format_weight = 1;
  for (const size_t length : {10u, 1000u, 20'000u, 200'000u}) {
    const std::string text = std::string(length, 'x') + "\n";
    EXPECT_EQ(score_one(repeated, text + "42", ""), 1) << length;
    EXPECT_EQ(score_one(repeated, text + "43", ""), 0) << length;
    EXPECT_EQ(score_one(think, "<think>" + text + "</think>42", ""), 1) << length;
  }
}

TEST(Rewards, WeightedSumKeepsTheParts) {
  reward::Rewards rewards;
  rewards.add(reward::make_rule(rule(Rule::number), "number"), 2);
  auto short_answers = rule(Rule::none);
  short_answers.length_target = 1;
  short_answers.length_weight = 1;
  rewards.add(reward::make_rule(short_answers, "brevity"), 0.5);
  const auto parts =
      rewards.score_locally(std::vector{request(1, "5", "5"), request(2, "6", "5")}).value().parts;
  EXPECT_EQ(parts[0], (std::vector<float>{1, 0}));
  EXPECT_EQ(parts[1], (std::vector<float>{-3, -3}));
  EXPECT_EQ(rewards.sum(parts), (std::vector<float>{0.5f, -1.5f}));
}

}  // namespace
}  // namespace trireme::test
