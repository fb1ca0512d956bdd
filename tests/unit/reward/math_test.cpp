// rule = "math" and "math_verl" against tests/gold/answers, which math-verify and verl's graders
// made; hostile answers; and equality as a property.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "reward/math_answer.hpp"
#include "reward/math_normal.hpp"
#include "support/source_folder.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

using config::Rule;

bool counts(Rule rule, const std::string& response, const std::string& label) {
  config::RewardSource options;
  options.rule = rule;
  return reward::make_rule(options, "r")
             ->score(std::vector{request(1, response, label)})
             .values.at(0) == 1;
}

bool equal(const std::string& answer, const std::string& label) {
  return counts(Rule::math, "\\boxed{" + answer + "}", label);
}

// The table, or pairs of TRIREME_ANSWERS, which math-verify alone has judged
// (tests/interop/answers.py).
TEST(MathRule, CountsAsMathVerifyAndVerlDo) {
  const char* const fresh = std::getenv("TRIREME_ANSWERS");
  std::ifstream file(fresh ? fresh : source_folder() / "tests/gold/answers/answers.jsonl");
  std::map<std::string, std::array<int, 2>> seen;  // of each kind: unequal, equal
  int differ = 0;
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    const std::string answer = row["answer"], label = row["label"];
    EXPECT_EQ(counts(Rule::math, answer, label), row["math"]) << answer << " for " << label;
    ++seen[row["kind"]][row["math"] == true ? 1 : 0];
    if (fresh) continue;
    EXPECT_EQ(counts(Rule::math_verl, answer, label), row["math_verl"])
        << answer << " for " << label;
    if (row["math"] != row["math_verl"]) ++differ;
  }
  EXPECT_EQ(seen.size(), 13u);
  for (const auto& [kind, numbers] : seen)
    EXPECT_GE(std::min(numbers[0], numbers[1]), 8) << kind << " has pairs of both sorts";
  EXPECT_TRUE(fresh || differ > 50) << "the two graders differ in " << differ;
}

// What users of verl and TRL got no reward for: 16 answers of a report.
TEST(MathRule, CountsWhatTheRuleBoxedDoesNot) {
  int more = 0;
  const char* const pairs[][2] = {{R"(\frac12)", R"(\frac{1}{2})"},
                                  {R"(50\%)", "50"},
                                  {"50", R"(50\%)"},
                                  {R"(90^\circ)", "90"},
                                  {R"(5\text{ cm})", "5"},
                                  {"x=5", "5"},
                                  {R"(\sqrt3)", R"(\sqrt{3})"},
                                  {"0.5", R"(\frac{1}{2})"},
                                  {"1/2", R"(\frac{1}{2})"},
                                  {R"(18\text{ dollars})", "18"},
                                  {"1{,}234", "1234"},
                                  {R"(\text{A})", "A"},
                                  {R"(\textbf{(C)})", "C"},
                                  {R"(-\frac{1}{2})", R"(\frac{-1}{2})"},
                                  {R"(\mathbf{7})", "7"},
                                  {"10^{3}", "1000"}};
  for (const auto& [answer, label] : pairs) {
    EXPECT_TRUE(equal(answer, label)) << answer << " for " << label;
    if (!counts(Rule::boxed, std::string("\\boxed{") + answer + "}", label)) ++more;
  }
  EXPECT_EQ(more, 15) << "all but 1{,}234, which is a number";
}

// Values that differ by less than a double shows.
TEST(MathRule, ComparesAtAnyLength) {
  EXPECT_TRUE(equal("123456789012345678901234567890", "123,456,789,012,345,678,901,234,567,890"));
  EXPECT_FALSE(equal("123456789012345678901234567891", "123456789012345678901234567890"));
  EXPECT_TRUE(equal("2^{200}", "1606938044258990275541962092341162602522202993782792835301376"));
  EXPECT_FALSE(equal("2^{200}", "1606938044258990275541962092341162602522202993782792835301377"));
  EXPECT_TRUE(equal(R"(\frac{10^{40}+1}{3})", R"(\frac{2\cdot 10^{40}+2}{6})"));
  EXPECT_FALSE(equal(R"(\frac{10^{40}+1}{3})", R"(\frac{10^{40}+2}{3})"));
  EXPECT_TRUE(equal("30!", "265252859812191058636308480000000"));
  EXPECT_FALSE(equal("30!", "265252859812191058636308480000001"));
  EXPECT_TRUE(equal(R"((x+1)^{40}-(x+1)^{40}+10^{30})", "10^{30}"));
  EXPECT_FALSE(equal("x+10^{30}", "x+10^{30}+1"));
  EXPECT_TRUE(equal(R"(\binom{60}{30})", "118264581564861424"));
}

TEST(MathRule, ThePatternChoosesTheAnswer) {
  config::RewardSource options;
  options.rule = Rule::math;
  options.pattern = "<answer>(.*)</answer>";
  const auto score = [&](const char* response) {
    return reward::make_rule(options, "r")
        ->score(std::vector{request(1, response, "0.5")})
        .values.at(0);
  };
  EXPECT_EQ(score(R"(\boxed{7} <answer>$\frac12$</answer> \boxed{8})"), 1);
  EXPECT_EQ(score(R"(\boxed{0.5})"), 0) << "no answer";
  EXPECT_EQ(score(R"(<answer>\boxed{\frac13}</answer>)"), 0);
}

// Each of these made a reader by backtracking or by recursion slow or fall; what counts is that
// they end.
TEST(MathRule, HostileAnswersEnd) {
  const auto times = [](const std::string& part, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += part;
    return out;
  };
  const std::string answers[] = {times("{", 5000) + "1" + times("}", 5000),
                                 times("(", 3000) + "1,2" + times(")", 3000),
                                 times("([", 40) + "1,2" + times(")]", 40),
                                 times("\\frac{1}{", 500) + "2" + times("}", 500),
                                 times("|", 999),
                                 times("x^", 999) + "2",
                                 times("\\sin ", 999) + "x",
                                 times("f(", 500) + "x" + times(")", 500),
                                 times("\\{1,", 500) + "2" + times("\\}", 500),
                                 "10^{10^{10^{10^{10}}}}",
                                 "1000000000!",
                                 "1E99999999999",
                                 R"(\binom{10000000000}{5000000000})",
                                 R"(\frac{1}{0})",
                                 R"(5\mod 0)",
                                 R"(0^{-1})",
                                 R"(\ln 0)",
                                 R"(\frac{\infty}{\infty})",
                                 std::string(4000, '9'),
                                 times("\\frac", 1000),
                                 times("\\text{", 999),
                                 times("\\", 999),
                                 times("1,", 999),
                                 times("x+", 999) + "x",
                                 times("(1,2)\\cup", 300) + "(1,2)",
                                 "\xff\xfe",
                                 std::string("1\0002", 3)};
  for (const std::string& answer : answers) {
    counts(Rule::math, "\\boxed{" + answer + "}", "1");
    counts(Rule::math, "\\boxed{" + answer + "}", answer);
    counts(Rule::math_verl, "\\boxed{" + answer + "}", answer);
  }
  for (const char* part : {"$", "$a$ ", "\\boxed{1}", "\\boxed{", " [ ", "answer: = ",
                           "final answer is ", "1 ", "1+", "#### ", "\\[", "\\fbox"}) {
    counts(Rule::math, times(part, 3000), "1");
    counts(Rule::math_verl, times(part, 3000), "1");
  }
}

// Undefined is equal to nothing, itself included.
TEST(MathRule, WhatHasNoValueIsNotEqual) {
  EXPECT_FALSE(equal(R"(\frac{1}{0})", "0"));
  EXPECT_FALSE(equal(R"(\frac{1}{0})", R"(\frac{2}{0})"));
  EXPECT_FALSE(counts(Rule::math, "", "1"));
  EXPECT_FALSE(counts(Rule::math_verl, "", "1"));
}

// A random expression equals its rewritings (a+b as b+a, a product expanded, a fraction extended),
// and not itself plus one.
TEST(MathRule, RewritingsAreEqual) {
  std::mt19937_64 random(46);
  const auto number = [&] { return std::to_string(1 + random() % 1000); };
  for (int time = 0; time < 300; ++time) {
    const std::string a = number(), b = number(), c = number();
    const std::string products = std::to_string(std::stoll(a) * std::stoll(c)),
                      others = std::to_string(std::stoll(b) * std::stoll(c));
    const std::pair<std::string, std::string> same[] = {
        {"\\frac{" + a + "}{" + b + "}", products + "/" + others},
        {a + "x+" + b + "y", b + "y + " + a + "x"},
        {c + "(" + a + "x+" + b + ")", products + "x+" + others},
        {"\\sqrt{" + a + "}\\cdot\\sqrt{" + b + "}", "\\sqrt{" + a + "\\cdot " + b + "}"},
        {"\\{" + a + "," + b + "\\}", b + ", " + a},
        {"(" + a + "," + b + ".5]",
         "( " + a + " , \\frac{" + std::to_string(2 * std::stoll(b) + 1) + "}{2} ]"}};
    for (const auto& [left, right] : same) {
      EXPECT_TRUE(equal(left, right)) << left << " " << right;
      EXPECT_TRUE(equal(right, left)) << left << " " << right;
    }
    for (size_t i = 0; i < 4; ++i)
      EXPECT_FALSE(equal(same[i].first, same[i].second + "+1")) << same[i].first;
  }
}

TEST(MathRule, NormalFormIsReachedOnce) {
  for (const char* text : {R"(\frac12)", R"(\left( 1, 2 \right])", R"(5\text{ cm}^2)",
                           R"(\dfrac{3}4)", "50 percent", ".5"}) {
    const std::string once = reward::math::normal_latex(text, reward::math::Boxes::last);
    EXPECT_EQ(reward::math::normal_latex(once, reward::math::Boxes::last), once) << text;
  }
}

}  // namespace
}  // namespace trireme::test
