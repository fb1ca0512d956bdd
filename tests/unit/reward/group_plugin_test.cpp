// Plugins that get all answers to a prompt in one request (whole_groups).
#include <algorithm>
#include <random>

#include "reward/asked.hpp"
#include "trireme/base/samples.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

// Of each answer its place among the group's, by what it says; "die" kills it.
const char* const ranking = R"(
import json, os, sys
for line in sys.stdin:
    r = json.loads(line)
    said = [answer["response"] for answer in r["group"]]
    if "die" in said: os._exit(1)
    print(json.dumps({"id": r["id"], "rewards": [sorted(said).index(one) for one in said],
                      "metrics": [{"answers": len(said)} for one in said]}), flush=True))";

reward::Request answer(int64_t prompt, int64_t sample, const std::string& said, int64_t answers) {
  reward::Request one = request(request_id(2, prompt, sample), said, "l");
  one.answers = answers;
  return one;
}

std::unique_ptr<reward::Source> plugin(const std::string& script,
                                       config::PluginOutage outage = config::PluginOutage::stop) {
  config::RewardSource options;
  options.kind = config::RewardKind::plugin;
  options.command = {"python3", "-c", script};
  options.whole_groups = true;
  options.timeout.seconds = 120;
  reward::PluginEnvironment environment;
  environment.retries = 1;
  environment.outage = outage;
  return reward::make_plugin(options, "judge", environment);
}

// Answers come one by one, those of several prompts among each other; scores may be asked for a
// part of a group at a time.
TEST(GroupPlugin, HasAllAnswersToAPromptInOneRequest) {
  std::vector<reward::Request> requests;
  for (const int64_t prompt : {4, 5, 6}) {
    for (const int64_t sample : {0, 1, 2})
      requests.push_back(answer(prompt, sample, std::string(1, "cab"[sample]), 3));
  }
  const auto source = plugin(ranking);
  std::vector<reward::Request> order = requests;
  std::ranges::shuffle(order, std::mt19937(1));
  for (const auto& one : order) source->ask({&one, 1});
  const auto first = source->score(std::span(requests).first(4));
  EXPECT_EQ(first.values, (std::vector<float>{2, 0, 1, 2}));
  EXPECT_EQ(first.metrics.at("answers"), std::vector<float>(4, 3.f));
  EXPECT_EQ(source->score(std::span(requests).subspan(4)).values,
            (std::vector<float>{0, 1, 2, 0, 1}));
  EXPECT_EQ(source->take_counters().requests, 3);
}

// A rank may have fewer answers than there were: those that it has are a group when it needs
// their scores.
TEST(GroupPlugin, AGroupThatIsNotWholeIsAskedForInTheEnd) {
  const auto source = plugin(ranking);
  const std::vector<reward::Request> part{answer(1, 3, "b", 4), answer(1, 1, "a", 4)};
  source->ask(part);
  EXPECT_EQ(source->take_counters().requests, 0);
  EXPECT_EQ(source->score(part).values, (std::vector<float>{1, 0}));
  const std::vector<reward::Request> alone{answer(2, 0, "x", 1)};
  EXPECT_EQ(source->score(alone).values, std::vector<float>{0});
}

TEST(GroupPlugin, WithoutAnAnswerAllOfTheGroupAreMissing) {
  std::vector<reward::Request> requests{answer(1, 0, "a", 2), answer(1, 1, "die", 2),
                                        answer(2, 0, "b", 2), answer(2, 1, "a", 2)};
  const auto scores = plugin(ranking, config::PluginOutage::skip)->score(requests);
  EXPECT_EQ(scores.missing, (std::vector<uint8_t>{1, 1, 0, 0}));
  EXPECT_EQ(scores.values[2], 1);
  expect_error(ExitCode::unfit_environment, "judge", [&] { plugin(ranking)->score(requests); });
}

TEST(GroupPlugin, AnswersThatMakeNoSense) {
  const std::vector<reward::Request> group{answer(7, 0, "a", 2), answer(7, 1, "b", 2)};
  const std::string id = std::to_string(group.front().id);
  const auto refused = [&](const std::string& rest, const std::string& why) {
    reward::Asked asked("judge", true);
    asked.add(group);
    expect_error(ExitCode::bad_data, why,
                 [&] { asked.accept("{\"id\": \"" + id + "\", " + rest); });
    EXPECT_FALSE(asked.settled(group[0]));
  };
  refused("\"rewards\": [1]}", "has 1 numbers for the 2 answers");
  refused("\"rewards\": [1, 2, 3]}", "has 3 numbers for the 2 answers");
  refused("\"rewards\": 1}", "is not a list");
  refused("\"reward\": 1}", "is not a list");
  refused("\"rewards\": [1, NaN]}", "not JSON");
  refused("\"rewards\": [1, \"2\"]}", "not a finite number");
  refused("\"rewards\": [1, 2], \"metrics\": {\"a\": 1}}", "a list of an object for each");
  refused("\"rewards\": [1, 2], \"metrics\": [{\"a\": 1}]}", "a list of an object for each");
  refused("\"rewards\": [1, 2], \"metrics\": [{\"a\": 1}, {\"a\": \"b\"}]}", "not a finite number");
  reward::Asked asked("judge", true);
  asked.add(group);
  EXPECT_EQ(
      asked.accept("{\"id\": " + id + ", \"rewards\": [1, -2.5], \"metrics\": [null, {\"a\": 3}]}"),
      group.front().id);
  const auto scores = asked.take(group);
  EXPECT_EQ(scores.values, (std::vector<float>{1, -2.5}));
  EXPECT_FALSE(asked.has(group[1]));
}

}  // namespace
}  // namespace trireme::test
