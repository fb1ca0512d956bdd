// What plugins say beside a reward, and the words of errors about an answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reward/asked.hpp"
#include "trireme/reward/reward.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Metrics : public testing::Test {
 protected:
  void SetUp() override {
    for (uint64_t id = 0; id < 3; ++id) {
      requests_.push_back(request(id, "r", "l"));
      requests_.back().where = "p.jsonl:" + std::to_string(id + 7);
    }
    for (const auto& one : requests_) asked_.add({&one, 1});
  }
  void answer(const std::string& rest, int id = 0) {
    asked_.accept("{\"id\": \"" + std::to_string(id) + "\", \"reward\": 1" + rest + "}");
  }
  // With the place of the prompt, as every error about an answer.
  void expect_refused(const std::string& metrics, const std::string& part) {
    expect_error(ExitCode::bad_data, part, [&] { answer(", \"metrics\": " + metrics); });
    SetUpAgain();
    expect_error(ExitCode::bad_data, "the prompt of p.jsonl:7",
                 [&] { answer(", \"metrics\": " + metrics); });
    SetUpAgain();
  }
  void SetUpAgain() {
    asked_ = reward::Asked("judge");
    requests_.clear();
    SetUp();
  }

  reward::Asked asked_{"judge"};
  std::vector<reward::Request> requests_;
};

TEST_F(Metrics, MayBeInSomeAnswersOnly) {
  answer(R"(, "metrics": {"right": true, "format": 0.5})", 0);
  answer(R"(, "metrics": {"right": false, "format": null, "length": 12})", 1);
  answer(R"(, "metrics": null)", 2);
  const auto scores = asked_.take(requests_);
  const auto nan = testing::NanSensitiveFloatEq(std::nanf(""));
  EXPECT_THAT(scores.metrics.at("right"), ElementsAre(1, 0, nan));
  EXPECT_THAT(scores.metrics.at("format"), ElementsAre(0.5f, nan, nan));
  EXPECT_THAT(scores.metrics.at("length"), ElementsAre(nan, 12, nan));
  EXPECT_EQ(scores.metrics.size(), 3u);
}

TEST_F(Metrics, AreNumbersByName) {
  expect_refused("[1]", "\"metrics\" is not an object");
  expect_refused("0.5", "\"metrics\" is not an object");
  expect_refused(R"({"a": "1"})", "the metric \"a\" is not a finite number");
  expect_refused(R"({"a": 1e39})", "the metric \"a\" is not a finite number");
  expect_refused(R"({"a": {"b": 1}})", "(metrics are not nested)");
  expect_refused(R"({"a": [1, 2]})", "(metrics are not nested)");
  expect_refused(R"({"a": NaN})", "NaN");
  expect_refused(R"({"": 1})", "is not a possible one");
  expect_refused(R"({"a\nb": 1})", "\"a\\nb\" is not a possible one");
  expect_refused("{\"" + std::string(101, 'x') + "\": 1}", "is not a possible one");
  answer(R"(, "metrics": {"a b/c": 1, "ä%\"": 2, "reward": 3, "kl": 4})");
  EXPECT_EQ(asked_.take(std::vector{requests_[0]}).metrics.size(), 4u);
}

TEST_F(Metrics, AreFewOnes) {
  std::string many;
  for (int i = 0; i < 64; ++i) many += (i ? ", \"m" : "\"m") + std::to_string(i) + "\": 1";
  answer(", \"metrics\": {" + many + "}");
  answer(", \"metrics\": {" + many + "}", 1);
  expect_error(ExitCode::bad_data, "\"more\" would be metric number 65",
               [&] { answer(R"(, "metrics": {"more": 1})", 2); });
}

TEST_F(Metrics, ErrorsNameThePromptAndNotANumber) {
  for (const char* reward : {"null", "\"1\"", "true", "NaN", "[1]", "{}"}) {
    for (const char* id : {"\"1\"", "1"}) {
      expect_error(ExitCode::bad_data, "reward plugin judge, the prompt of p.jsonl:8: ", [&] {
        asked_.accept(std::string("{\"reward\": ") + reward + ", \"id\": " + id + "}");
      });
      SetUpAgain();
    }
  }
  answer("", 2);
  expect_error(ExitCode::bad_data, "(the prompt of p.jsonl:9)", [&] { answer("", 2); });
  requests_[0].where.clear();
  EXPECT_EQ(reward::described(requests_[0]), "request 0") << "not from a file";
}

class Judge : public reward::Source {
 public:
  Judge(std::string name, bool is_plugin) : name_(std::move(name)), is_plugin_(is_plugin) {}
  const std::string& name() const override { return name_; }
  bool takes_time() const override { return is_plugin_; }
  reward::Scores score(std::span<const reward::Request> requests) override {
    return {std::vector<float>(requests.size(), 1),
            {{"right", std::vector<float>(requests.size(), 0.25f)}}};
  }

 private:
  std::string name_;
  bool is_plugin_;
};

// Two sources may use one name, which may be that of another metric, too.
TEST(NamesOfMetrics, HaveTheirSourceInFront) {
  reward::Rewards rewards;
  rewards.add(std::make_unique<Judge>("a", true), 1);
  rewards.add(std::make_unique<Judge>("b", true), 1);
  rewards.add(std::make_unique<Judge>("rule", false), 1);
  const auto scores = rewards.score_locally(std::vector{request(1, "x", "y")});
  EXPECT_THAT(scores.value().metrics,
              ElementsAre(testing::Key("a/right"), testing::Key("b/right")));
}

}  // namespace
}  // namespace trireme::test
