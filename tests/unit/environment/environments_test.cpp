// Programs that answer the policy's turns: the lines of the protocol, many episodes in any order,
// limits, and answers that make no sense.
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/source_folder.hpp"
#include "trireme/text/tokenizer.hpp"
#include "unit/environment/support.hpp"

namespace trireme::test {
namespace {

using environment::Counters;
using environment::Reply;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(EnvironmentTest, RequestsAreLinesOfJsonWithEveryField) {
  options_.environment.max_turns = 3;
  options_.environment.tool_calls = config::ToolCalls::hermes;
  program("say(text=json.dumps(r))");
  auto environments = start();
  auto first = reset(18446744073709551615u);
  first.prompt = "p\n\"\\\t\u65e5";
  first.label = "l";
  first.extra = R"({"level":3})";
  first.seed = 0xFFFFFFFFFFFFFFFF;
  environments.reset(first);
  const Reply asked = reply(environments);
  EXPECT_EQ(asked.episode, first.episode);
  EXPECT_EQ(asked.turn, -1);
  EXPECT_EQ(nlohmann::json::parse(asked.text),
            (nlohmann::json{{"v", 1},
                            {"id", "1"},
                            {"type", "reset"},
                            {"episode", "18446744073709551615"},
                            {"prompt", first.prompt},
                            {"messages", {{{"role", "user"}, {"content", "p"}}}},
                            {"label", "l"},
                            {"extra", {{"level", 3}}},
                            {"seed", 9007199254740991},
                            {"max_turns", 3}}));
  auto turn = step(first.episode, 0, R"(<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>)");
  turn.finish_reason = FinishReason::stop_string;
  environments.step(turn);
  EXPECT_EQ(nlohmann::json::parse(reply(environments).text),
            (nlohmann::json{{"v", 1},
                            {"id", "2"},
                            {"type", "step"},
                            {"episode", "18446744073709551615"},
                            {"turn", 0},
                            {"text", turn.text},
                            {"finish_reason", std::string(to_string(FinishReason::stop_string))},
                            {"calls", {{{"name", "f"}, {"arguments", {{"a", 1}}}}}}}));
  const auto malformed = nlohmann::json::parse(
      play(environments, first.episode, 1, "<tool_call>{\"name\":\"f\"}</tool_call>").text);
  EXPECT_THAT(malformed.at("error").get<std::string>(), HasSubstr("has no \"arguments\""));
  EXPECT_TRUE(malformed.at("calls").empty());
  EXPECT_EQ(environments.take_counters().malformed_calls, 1);
}

// By name, in answered turns; a turn that is told again counts nothing, nor what a process that
// replaces one is told.
TEST_F(EnvironmentTest, CallsAreCountedByTool) {
  options_.environment.tools = {"add", "find"};
  options_.environment.tool_calls = config::ToolCalls::hermes;
  program(R"py(if r['type'] == 'step' and r['turn'] == 2 and first_time('died'): os._exit(1)
failed = [i for i, c in enumerate(r.get('calls', [])) if c['arguments'].get('bad')]
if r['type'] != 'close': say(text='x', failed=failed))py");
  const auto call = [](const std::string& name, const char* arguments = "{}") {
    return base::text("<tool_call>{\"name\":\"", name, "\",\"arguments\":", arguments,
                      "}</tool_call>");
  };
  const char* bad = R"({"bad": true})";
  auto environments = start();
  begin(environments, 1);
  EXPECT_TRUE(environments.take_counters().tools.empty()) << "there were no calls";
  play(environments, 1, 0, call("find") + call("add", bad) + call("find", bad));
  play(environments, 1, 1, call("sing", bad) + "<tool_call>{}</tool_call>");
  play(environments, 1, 2, call("add") + call(""));
  auto again = step(1, 3, call("add", bad));
  again.repeated = true;
  environments.step(again);
  reply(environments);
  const environment::Counters counters = environments.take_counters();
  EXPECT_EQ(counters.restarts, 1);
  EXPECT_EQ(counters.malformed_calls, 1);
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const auto& tool : counters.tools) found.emplace_back(tool.calls, tool.failed);
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_THAT(found, ElementsAre(Pair{2, 1}, Pair{2, 1}, Pair{2, 1})) << "add, find, all others";
  EXPECT_TRUE(environments.take_counters().tools.empty());
}

TEST_F(EnvironmentTest, FailedCallsAreCallsOfTheTurn) {
  options_.environment.tool_calls = config::ToolCalls::hermes;
  for (const char* failed :
       {"1", "{}", "[1]", "[-1]", "[0, 0]", "[0.0]", "[\"0\"]", "[True]", "[2**64]", "[None]"}) {
    program(
        base::text("say(text='x', **({'failed': ", failed, "} if r['type'] == 'step' else {}))"));
    auto environments = start();
    begin(environments, 1);
    expect_error(ExitCode::bad_data, "positions in \"calls\"", [&] {
      play(environments, 1, 0, R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)");
    });
  }
  program("say(text='x', failed=[] if r['type'] == 'reset' else None)");
  auto environments = start();
  begin(environments, 1);
  play(environments, 1, 0);
  EXPECT_TRUE(environments.take_counters().tools.empty());
}

TEST_F(EnvironmentTest, APlainPromptHasNoMessagesAndNoCallsAreLookedFor) {
  program("say(text=json.dumps(r))");
  auto environments = start();
  auto plain = reset(1);
  plain.messages.clear();
  environments.reset(plain);
  const auto heard = nlohmann::json::parse(reply(environments).text);
  EXPECT_FALSE(heard.contains("messages") || heard.contains("extra"));
  const auto turn = nlohmann::json::parse(play(environments, 1, 0, "<tool_call>").text);
  EXPECT_FALSE(turn.contains("calls") || turn.contains("error"));
}

TEST_F(EnvironmentTest, AnswersHaveAnObservationRewardAndMetrics) {
  program(R"py(if r['type'] == 'reset': say(messages=[{'role': 'user', 'content': 'go'}], reward=0)
elif r['turn'] == 0: say(messages=[{'role': 'tool', 'content': '4', 'name': 'add'}, {'role': 'user', 'content': 'on'}], reward=0.5, metrics={'calls': 1, 'right': True, 'x': None})
elif r['turn'] == 1: say(text='\nmore', reward=None, done=False)
else: say(reward=-2, done=True, messages=[{'role': 'user', 'content': 'bye'}]))py");
  auto environments = start();
  EXPECT_THAT(begin(environments, 7).messages, ElementsAre(text::Message{"user", "go", ""}));
  const Reply first = play(environments, 7, 0);
  EXPECT_THAT(first.messages, ElementsAre(text::Message{"tool", "4", R"({"name":"add"})"},
                                          text::Message{"user", "on", ""}));
  EXPECT_EQ(first.turn, 0);
  EXPECT_EQ(first.reward, 0.5);
  EXPECT_FALSE(first.done);
  EXPECT_EQ(first.metrics, (std::map<std::string, float>{{"calls", 1.f}, {"right", 1.f}}));
  const Reply second = play(environments, 7, 1);
  EXPECT_EQ(second.text, "\nmore");
  EXPECT_EQ(second.reward, 0);
  const Reply last = play(environments, 7, 2);
  EXPECT_TRUE(last.done);
  EXPECT_FALSE(last.truncated);
  EXPECT_EQ(last.reward, -2);
  EXPECT_THAT(last.messages, IsEmpty()) << "no turn answers it";
  EXPECT_EQ(environments.take_counters().requests, 4);
}

// Each process keeps seven requests back and answers the last one first.
TEST_F(EnvironmentTest, ManyEpisodesAtOnceAreAnsweredInAnyOrder) {
  options_.environment.processes = 3;
  program(R"py(kept.append(r)
if len(kept) < 7 and r['episode'] not in last: continue
for one in reversed(kept):
    turn = one.get('turn', -1)
    say(one, text=f"{one['episode']} {turn} {os.getpid()}", reward=0 if turn < 0 else int(one['episode']) + turn / 8)
kept.clear())py",
          "kept, last = [], set(str(e) for e in range(192, 210))");
  auto environments = start();
  constexpr uint64_t episodes = 210;
  std::vector<std::string> process(episodes);
  for (int64_t turn = -1; turn < 4; ++turn) {
    for (uint64_t episode = 0; episode < episodes; ++episode) {
      if (turn < 0) {
        environments.reset(reset(episode));
      } else {
        environments.step(step(episode, turn));
      }
    }
    EXPECT_EQ(environments.pending(), static_cast<int64_t>(episodes));
    const auto all = replies(environments, episodes);
    for (uint64_t episode = 0; episode < episodes; ++episode) {
      const Reply& one = all[episode];
      EXPECT_EQ(one.episode, episode);
      EXPECT_EQ(one.turn, turn);
      const std::string expected = base::text(episode, " ", turn, " ");
      EXPECT_THAT(one.text, testing::StartsWith(expected));
      EXPECT_EQ(one.reward,
                turn < 0 ? 0 : static_cast<double>(episode) + static_cast<double>(turn) / 8);
      const std::string pid = one.text.substr(std::min(expected.size(), one.text.size()));
      if (turn < 0) process[episode] = pid;
      EXPECT_EQ(process[episode], pid) << "an episode stays with its process";
    }
    EXPECT_EQ(environments.pending(), 0);
  }
  EXPECT_EQ(std::set<std::string>(process.begin(), process.end()).size(), 3u);
  const Counters counters = environments.take_counters();
  EXPECT_EQ(counters.requests, 5 * 210);
  EXPECT_EQ(counters.retries + counters.restarts + counters.broken, 0);
  EXPECT_GT(counters.wait_seconds, 0);
}

// Requests of 100 episodes to three processes: ten thousand, or TRIREME_ENVIRONMENT_MESSAGES.
TEST_F(EnvironmentTest, TenThousandMessages) {
  const char* const wish = std::getenv("TRIREME_ENVIRONMENT_MESSAGES");
  const int64_t turns = (wish != nullptr ? std::stoll(wish) : 10'000) / 100 - 1;
  program("say(text='x', reward=0 if r['type'] == 'reset' else 1)");
  options_.environment.max_turns = turns;
  options_.environment.processes = 3;
  auto environments = start();
  for (uint64_t episode = 0; episode < 100; ++episode) environments.reset(reset(episode));
  std::vector<int64_t> next(100, -1);
  int64_t over = 0;
  while (over < 100 && !HasFailure()) {
    for (const Reply& one : environments.poll()) {
      EXPECT_EQ(one.turn, next[one.episode]++) << "lost or doubled";
      EXPECT_EQ(one.done, one.turn == turns - 1);
      over += one.done;
      if (!one.done) environments.step(step(one.episode, one.turn + 1));
    }
  }
  EXPECT_EQ(environments.take_counters().requests, 100 * (turns + 1));
}

TEST_F(EnvironmentTest, TheLimitOfTurnsEndsAnEpisodeAndTellsTheProgram) {
  options_.environment.max_turns = 2;
  program(
      "heard.write(r['type'] + ' ' + r['episode'] + '\\n'); heard.flush()\n"
      "say(text='x')",
      "heard = open(folder + '/heard', 'w')");
  auto environments = start();
  begin(environments, 5);
  EXPECT_FALSE(play(environments, 5, 0).done);
  const Reply last = play(environments, 5, 1);
  EXPECT_TRUE(last.done && last.truncated);
  EXPECT_EQ(last.text, "");
  EXPECT_THAT(lines_of("heard", 4, environments),
              ElementsAre("reset 5", "step 5", "step 5", "close 5"));
}

// Late answers to an episode that was left are dropped, also where its id is in use again.
TEST_F(EnvironmentTest, AnEpisodeThatIsLeftIsForgotten) {
  program(
      "heard.write(r['type'] + '\\n'); heard.flush()\n"
      "if r['type'] == 'reset': kept.append(r)\n"
      "if len(kept) == 2:\n"
      "    for n, one in enumerate(kept): say(one, text=str(n))\n"
      "    kept.clear()",
      "kept = []; heard = open(folder + '/heard', 'w')");
  auto environments = start();
  environments.reset(reset(5));
  environments.close(5);
  environments.close(6);
  EXPECT_EQ(environments.pending(), 0);
  environments.reset(reset(5));
  const Reply second = reply(environments);
  EXPECT_EQ(second.text, "1");
  EXPECT_THAT(lines_of("heard", 3, environments), ElementsAre("reset", "close", "reset"));
  environments.close(5);
}

struct Nonsense {
  const char* answer;  // of the turn, without its braces and id
  const char* part;    // of the message
};
const Nonsense of_a_turn[] = {
    {R"("messages": 3)", "`messages` is number"},
    {R"("messages": ["x"])", "messages[0] is string"},
    {R"("messages": [{"content": "x"}])", "has no `role`"},
    {R"("messages": [{"role": "user"}])", "has no `content`"},
    {R"("messages": [{"role": "assistant", "content": "x"}])", "the role \"assistant\""},
    {R"("messages": [{"role": "user", "content": "x"}], "text": "y")", "one of the two"},
    {R"("text": 3)", "\"text\" is number"},
    {R"("text": ["x"])", "\"text\" is array"},
    {R"("reward": 1)", "neither \"messages\" nor \"text\" nor \"done\""},
    {R"("messages": [], "text": "")", "neither \"messages\" nor \"text\" nor \"done\""},
    {R"("text": "x", "reward": "1")", "the reward is not a finite number"},
    {R"("text": "x", "reward": true)", "the reward is not a finite number"},
    {R"("text": "x", "reward": NaN)", "not JSON"},
    {R"("text": "x", "reward": 1e400)", "number"},
    {R"("text": "x", "reward": 1e39)", "the reward is not a finite number"},
    {R"("text": "x", "done": 1)", "\"done\" is neither true nor false"},
    {R"("text": "x", "metrics": 3)", "\"metrics\" is not an object"},
    {R"("text": "x", "metrics": {"a": "1"})", "the metric \"a\""},
    {R"("text": "x", "metrics": {"a": {"b": 1}})", "metrics are not nested"},
    {R"("text": "x", "text": "y")", "stands twice"},
    {R"("text": "x")"
     "\xff",
     "not UTF-8"},
    {R"("text": )", "not JSON"},
};
const Nonsense of_a_reset[] = {
    {R"("reward": 1)", "a reset has no reward"},
    {R"("done": true)", "before the first turn"},
};

class EnvironmentNonsense : public EnvironmentTest {
 protected:
  // Answers request `n` of the case, in episode n.
  void answer_with(const std::string& type, const std::vector<Nonsense>& cases) {
    std::ofstream out(folder_ / "answers", std::ios::binary);
    for (const Nonsense& one : cases) out << one.answer << "\n";
    out.close();
    program(base::text("n = int(r['episode'])\n"
                       "if r['type'] != '",
                       type, "' or n >= len(answers): say(text='ok')\n",
                       "else:\n"
                       "    sys.stdout.buffer.write(b'{\"id\": \"' + r['id'].encode() + b'\", ' + "
                       "answers[n] + b'}\\n'); sys.stdout.flush()"),
            "answers = open(folder + '/answers', 'rb').read().split(b'\\n')[:-1]");
  }
};

TEST_F(EnvironmentNonsense, EndsTheRun) {
  const std::vector<Nonsense> cases(std::begin(of_a_turn), std::end(of_a_turn));
  answer_with("step", cases);
  for (uint64_t n = 0; n < cases.size(); n += 6) {
    auto environments = start();
    begin(environments, n);
    expect_error(ExitCode::bad_data, cases[n].part, [&] { play(environments, n, 0); });
  }
}

TEST_F(EnvironmentNonsense, EndsItsEpisodeWithTheOutageSkip) {
  options_.environment.outage = config::PluginOutage::skip;
  options_.environment.broken_reward = -3;
  for (const char* type : {"step", "reset"}) {
    const bool turns = std::string(type) == "step";
    const std::vector<Nonsense> cases =
        turns ? std::vector<Nonsense>(std::begin(of_a_turn), std::end(of_a_turn))
              : std::vector<Nonsense>(std::begin(of_a_reset), std::end(of_a_reset));
    answer_with(type, cases);
    auto environments = start();
    const uint64_t good = cases.size();
    for (uint64_t n = 0; n <= good; ++n) environments.reset(reset(n));
    auto all = replies(environments, good + 1);
    if (turns) {
      for (uint64_t n = 0; n <= good; ++n) environments.step(step(n, 0));
      all = replies(environments, good + 1);
    }
    for (uint64_t n = 0; n < good; ++n) {
      EXPECT_TRUE(all[n].done);
      EXPECT_EQ(all[n].reward, -3);
      EXPECT_EQ(all[n].turn, turns ? 0 : -1);
      EXPECT_THAT(all[n].error, HasSubstr(cases[n].part));
      EXPECT_THAT(all[n].error, HasSubstr(base::text("data.jsonl:", n)));
    }
    EXPECT_EQ(all[good].error, "");
    EXPECT_EQ(play(environments, good, turns ? 1 : 0).text, "ok") << "the others go on";
    const Counters counters = environments.take_counters();
    EXPECT_EQ(counters.broken, static_cast<int64_t>(good));
    EXPECT_EQ(counters.restarts, 0);
  }
}

TEST_F(EnvironmentNonsense, MessagesNeedAConversation) {
  program("say(messages=[{'role': 'user', 'content': 'x'}])");
  auto environments = start();
  auto plain = reset(1);
  plain.messages.clear();
  environments.reset(plain);
  expect_error(ExitCode::bad_data, "data.apply_chat_template", [&] { reply(environments); });
}

TEST_F(EnvironmentNonsense, IdsThatWereNotAskedFor) {
  for (const char* answer :
       {"{'id': '77', 'text': 'x'}", "{'id': 'x', 'text': 'x'}", "{'id': None}", "{'id': 1.5}"}) {
    program(base::text("print(json.dumps(", answer, "), flush=True)"));
    auto environments = start();
    environments.reset(reset(1));
    expect_error(ExitCode::bad_data, "environment: ", [&] { reply(environments); });
  }
  program("say(text='x')\nsay(text='x')");
  auto twice = start();
  expect_error(ExitCode::bad_data, "", [&] {
    twice.reset(reset(1));
    twice.reset(reset(2));
    replies(twice, 3);
  });
}

TEST_F(EnvironmentTest, WhatIsNoAnswerGoesToTheLog) {
  program(
      "print('hello'); print('[1]'); print('{\"progress\": 3}'); print('why', file=sys.stderr)\n"
      "say(text='x')");
  auto environments = start();
  EXPECT_EQ(begin(environments, 1).text, "x");
  std::ifstream in(folder_ / "environment-0.log");
  const std::string log{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(log, HasSubstr("stdout: hello\n"));
  EXPECT_THAT(log, HasSubstr("stdout: {\"progress\": 3}\n"));
  EXPECT_THAT(log, HasSubstr("why"));
}

// --dry-run: a reset and an empty turn for the first record of each file.
TEST_F(EnvironmentTest, ATrialPlaysTheFirstRecordOfEachFile) {
  data::SetOptions files;
  for (const char* name : {"a.jsonl", "b.jsonl"}) {
    files.files.push_back(folder_ / name);
    std::ofstream(files.files.back()) << R"({"prompt": "1+", "label": "7", "level": 3})"
                                      << "\n{\"prompt\": \"2+\"}\n";
  }
  const auto prompts = data::PromptSet::load(
      files, text::Tokenizer::load(source_folder() / "inputs/tutorial/tokenizer"));
  const std::vector<const data::PromptSet*> sets{&prompts};
  EXPECT_THAT(environment::try_environment(options_, sets), IsEmpty()) << "there is none";
  options_.environment.processes = 4;
  program(
      "heard.write(line); heard.flush()\n"
      "if r['type'] == 'reset': say()\n"
      "else: say(reward=0.5, text='\\nNo.\\n')",
      "heard = open(folder + '/heard', 'a')");
  EXPECT_THAT(environment::try_environment(options_, sets),
              ElementsAre(testing::AllOf(
                  HasSubstr("environment: an empty turn after "),
                  HasSubstr("a.jsonl:1 is answered by 5 bytes of text, with reward 0.5 (4 "
                            "requests in "))));
  std::ifstream in(folder_ / "heard");
  std::vector<nlohmann::json> heard;
  for (std::string line; std::getline(in, line);) heard.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(heard.size(), 4u);
  EXPECT_EQ(heard[0].at("label"), "7");
  EXPECT_EQ(heard[0].at("extra").at("level"), 3);
  EXPECT_EQ(heard[1].at("prompt"), "1+");
  EXPECT_EQ(heard[2].at("text"), "");
  program("sys.exit('KeyError: x')");
  expect_error(ExitCode::unfit_environment, "its messages end with\n    KeyError: x\n  (a reset",
               [&] { environment::try_environment(options_, sets); });
  options_.environment.timeout.seconds = 0.3;
  program("pass");
  expect_error(ExitCode::unfit_environment, "environment.timeout = 300",
               [&] { environment::try_environment(options_, sets); });
  options_.environment.tool_calls = config::ToolCalls::regex;
  options_.environment.tool_pattern = "(";
  expect_error(ExitCode::configuration, "environment.tool_pattern",
               [&] { environment::check_environment(options_); });
}

}  // namespace
}  // namespace trireme::test
