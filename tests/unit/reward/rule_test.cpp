#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

using config::Rule;

config::RewardSource rule(Rule kind) {
  config::RewardSource out;
  out.rule = kind;
  return out;
}

float score_one(const config::RewardSource& options, const std::string& response, const std::string& label) {
  const std::vector<reward::Request> requests{request(7, response, label)};
  return reward::make_rule(options, "rule0")->score(requests).values.at(0);
}

TEST(Rule, ExactComparesTheTrimmedResponse) {
  EXPECT_EQ(score_one(rule(Rule::exact), " Paris\n", "Paris"), 1);
  EXPECT_EQ(score_one(rule(Rule::exact), "paris", "Paris"), 0);
  auto any_case = rule(Rule::exact);
  any_case.case_sensitive = false;
  EXPECT_EQ(score_one(any_case, "PARIS", "Paris"), 1);
}

TEST(Rule, PatternFindsTheAnswerInTheResponse) {
  auto boxed = rule(Rule::exact);
  boxed.pattern = R"(\\boxed\{([^}]*)\})";
  EXPECT_EQ(score_one(boxed, R"(First \boxed{3}, no: \boxed{4}.)", "4"), 1) << "the last one counts";
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
  EXPECT_EQ(score_one(number, "#### 18", "work work #### 18"), 1) << "labels may hold their derivation";
}

TEST(Rule, ScoresFormatAndLengthAreParts) {
  auto graded = rule(Rule::number);
  graded.score_right = 2;
  graded.score_wrong = -0.5;
  graded.format_pattern = "<think>.*</think>.*";
  graded.format_weight = 0.25;
  graded.length_target = 2;
  graded.length_weight = 0.1;
  const std::vector<reward::Request> requests{request(1, "<think>a\nb</think> 5", "5"), request(2, "4", "5")};
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
  asked.extra = "{}";
  expect_error(ExitCode::bad_data, "answer", [&] { reward::make_rule(column, "r")->score(std::vector{asked}); });
}

TEST(Rule, BadInput) {
  auto broken = rule(Rule::regex);
  broken.pattern = "(unclosed";
  expect_error(ExitCode::configuration, "(unclosed", [&] { reward::make_rule(broken, "r"); });
  expect_error(ExitCode::bad_data, "no label", [&] { score_one(rule(Rule::exact), "a", ""); });
  expect_error(ExitCode::bad_data, "holds no number", [&] { score_one(rule(Rule::number), "a", "none"); });
}

TEST(Rule, RunawayPatternDoesNotMatch) {
  auto runaway = rule(Rule::regex);
  runaway.pattern = "^(a+)+$";
  EXPECT_EQ(score_one(runaway, std::string(5000, 'a') + "b", ""), 0);
}

TEST(Rewards, WeightedSumKeepsTheParts) {
  reward::Rewards rewards;
  rewards.add(reward::make_rule(rule(Rule::number), "number"), 2);
  auto short_answers = rule(Rule::none);
  short_answers.length_target = 1;
  short_answers.length_weight = 1;
  rewards.add(reward::make_rule(short_answers, "brevity"), 0.5);
  const auto result = rewards.score(std::vector{request(1, "5", "5"), request(2, "6", "5")});
  EXPECT_EQ(result.names, (std::vector<std::string>{"number", "brevity"}));
  EXPECT_EQ(result.parts[0], (std::vector<float>{1, 0}));
  EXPECT_EQ(result.parts[1], (std::vector<float>{-3, -3}));
  EXPECT_EQ(result.reward, (std::vector<float>{0.5f, -1.5f}));
  EXPECT_EQ(result.metrics.at("number/right"), (std::vector<float>{1, 0}));
}

}  // namespace
}  // namespace trireme::test
