// Plugins written in a line of shell: what they do wrong must end in the right words and the right
// exit code.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/trace/activity.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

// Answers every request with 0.5; the id as it came.
const std::string answer_all =
    R"sh(sed -u 's/^{"v": 1, "id": "\([0-9]*\)".*/{"id":"\1","reward":0.5,"metrics":{"words":3}}/')sh";
// Reads $n requests into $ids.
std::string read_ids(int n) {
  return "ids=; for i in $(seq " + std::to_string(n) +
         R"sh(); do read -r line; id=${line#*\"id\": \"}; ids="$ids ${id%%\"*}"; done; )sh";
}

class Plugin : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("trireme-plugin-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    environment_.log_dir = folder_;
    environment_.retries = 1;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<reward::Source> plugin(const std::string& script, double timeout = 120) const {
    config::RewardSource options;
    options.kind = config::RewardKind::plugin;
    options.command = {"sh", "-c", script};
    options.timeout.seconds = timeout;
    return reward::make_plugin(options, "judge", environment_);
  }
  static std::vector<reward::Request> requests(int n) {
    std::vector<reward::Request> out;
    for (int i = 0; i < n; ++i)
      out.push_back(request(100 + static_cast<uint64_t>(i), "r\"\n\u00e9", "l"));
    return out;
  }
  std::string log() const {
    std::stringstream text;
    text << std::ifstream(folder_ / "plugin-judge-0.log").rdbuf();
    return text.str();
  }

  // Where nobody reaps it, a process that has ended stays as a zombie, which has no program any
  // more.
  static bool runs(pid_t process) {
    return ::kill(process, 0) == 0 &&
           std::filesystem::exists(base::text("/proc/", process, "/exe"));
  }

  std::filesystem::path folder_;
  reward::PluginEnvironment environment_;
};

TEST_F(Plugin, AnswersSeveralBatches) {
  const auto source = plugin(answer_all);
  for (int round = 0; round < 3; ++round) {
    const auto scores = source->score(requests(4));
    EXPECT_EQ(scores.values, std::vector<float>(4, 0.5f));
    EXPECT_EQ(scores.metrics.at("words"), std::vector<float>(4, 3.f));
  }
  EXPECT_TRUE(source->score({}).values.empty());
}

TEST_F(Plugin, AnswersInAnyOrderAmongNoise) {
  const auto source = plugin(
      read_ids(3) +
      R"sh(set -- $ids; echo hello; echo warning >&2; echo '{"progress": 1}'; )sh"
      R"sh(printf '{"reward":3,"id":"%s"}\r\n' $3; echo '[]'; echo "{\"id\":$1,\"reward\":-1e-3}"; )sh"
      R"sh(echo "{\"id\":\"$2\",\"reward\":2,\"metrics\":{\"a\":1}}"; cat >/dev/null)sh");
  const auto scores = source->score(requests(3));
  EXPECT_EQ(scores.values, (std::vector<float>{-1e-3f, 2, 3}));
  EXPECT_TRUE(std::isnan(scores.metrics.at("a")[0]));
  EXPECT_EQ(scores.metrics.at("a")[1], 1);
  EXPECT_NE(log().find("hello"), std::string::npos);
  EXPECT_NE(log().find("warning"), std::string::npos);
  EXPECT_NE(log().find("progress"), std::string::npos);
}

TEST_F(Plugin, LargeBatchDoesNotBlockThePipes) {
  // It prints every request before it answers it: both pipes are full long before the batch is
  // through.
  const auto source = plugin(
      R"sh(sed -u -e h -e 's/^/heard: /p' -e g -e 's/^{"v": 1, "id": "\([0-9]*\)".*/{"id":"\1","reward":0.5}/')sh");
  auto many = requests(40);
  for (auto& one : many) one.response.assign(10'000, 'x');
  EXPECT_EQ(source->score(many).values, std::vector<float>(40, 0.5f));
}

TEST_F(Plugin, CrashIsRepairedByARestart) {
  const std::string flag = (folder_ / "crashed").string();
  const auto source = plugin("if [ ! -e " + flag + " ]; then touch " + flag +
                             "; read -r x; kill -9 $$; fi; " + answer_all);
  EXPECT_EQ(source->score(requests(3)).values, std::vector<float>(3, 0.5f));
}

TEST_F(Plugin, SignalsMeantForTheRunDoNotEndIt) {
  environment_.retries = 0;
  const auto source = plugin("for s in USR1 USR2; do kill -$s $$; done; " + answer_all);
  EXPECT_EQ(source->score(requests(2)).values, std::vector<float>(2, 0.5f));
}

TEST_F(Plugin, CrashAfterAllRestarts) {
  const auto source = plugin("exit 3");
  expect_error(ExitCode::unfit_environment, "exit code 3", [&] { source->score(requests(2)); });
}

// Whatever it printed last on its standard output, and another process before it.
TEST_F(Plugin, TheLastLinesOfItsMessagesArePartOfTheError) {
  const auto source = plugin(
      "read -r x; echo noise; echo one >&2; echo; printf 'two\\ttabs\\033[1m\\n' >&2; echo three "
      ">&2; "
      "printf four >&2; echo '{\"progress\": 1}'; exit 3");
  expect_error(ExitCode::unfit_environment,
               "plugin-judge-0.log and end with\n    two tabs?[1m\n    three\n    four",
               [&] { source->score(requests(2)); });
  EXPECT_NE(log().find("stdout: noise\n"), std::string::npos);
  const auto early = plugin("echo why >&2; read -r x");
  expect_error(ExitCode::bad_data, "and end with\n    why", [&] { early->score(requests(1)); });
  const auto silent = plugin("read -r x; exit 3");
  expect_error(ExitCode::unfit_environment, "its messages are in",
               [&] { silent->score(requests(1)); });
  environment_.log_dir.clear();
  environment_.retries = 0;
  expect_error(ExitCode::unfit_environment, ": its messages end with\n    slow",
               [&] { plugin("echo slow >&2; cat >/dev/null", 0.5)->score(requests(1)); });
}

TEST_F(Plugin, HangRunsIntoTheDeadlineAndItsGroupIsKilled) {
  const std::string pid_file = (folder_ / "pid").string();
  environment_.retries = 0;
  const auto source = plugin("sleep 1000 & echo $! > " + pid_file + "; cat > /dev/null; wait", 0.5);
  const base::Stopwatch watch;
  expect_error(ExitCode::unfit_environment, "within", [&] { source->score(requests(2)); });
  EXPECT_LT(watch.seconds(), 10);
  pid_t grandchild = 0;
  std::ifstream(pid_file) >> grandchild;
  ASSERT_GT(grandchild, 0);
  for (int i = 0; i < 100 && runs(grandchild); ++i) ::usleep(20'000);
  EXPECT_FALSE(runs(grandchild));
}

TEST_F(Plugin, RewardsThatAreNoNumbers) {
  for (const char* reward : {"NaN", "null", "\"1\"", "Infinity", "1e400", "1e39", "true"}) {
    const auto source =
        plugin(read_ids(1) + "echo '{\"id\":'$ids',\"reward\":" + reward + "}'; cat >/dev/null");
    expect_error(ExitCode::bad_data, "reward plugin judge", [&] { source->score(requests(1)); });
  }
}

TEST_F(Plugin, AnswersWithoutUnknownOrRepeatedId) {
  const auto without = plugin("read -r x; echo '{\"reward\":1}'; cat >/dev/null");
  expect_error(ExitCode::bad_data, "without an id", [&] { without->score(requests(1)); });
  const auto unknown = plugin("read -r x; echo '{\"id\":5,\"reward\":1}'; cat >/dev/null");
  expect_error(ExitCode::bad_data, "not asked for", [&] { unknown->score(requests(1)); });
  const auto twice = plugin(
      read_ids(2) +
      "set -- $ids; for i in 1 2; do echo '{\"id\":'$1',\"reward\":1}'; done; cat >/dev/null");
  expect_error(ExitCode::bad_data, "second answer", [&] { twice->score(requests(2)); });
}

TEST_F(Plugin, TooFewAnswers) {
  const auto leaves = plugin(read_ids(2) + "set -- $ids; echo '{\"id\":'$1',\"reward\":1}'");
  expect_error(ExitCode::bad_data, "1 of 2", [&] { leaves->score(requests(2)); });
  environment_.retries = 0;
  const auto stays =
      plugin(read_ids(2) + "set -- $ids; echo '{\"id\":'$1',\"reward\":1}'; cat >/dev/null", 0.5);
  expect_error(ExitCode::unfit_environment, "1 of 2", [&] { stays->score(requests(2)); });
}

TEST_F(Plugin, AnswersThatNobodyAskedFor) {
  const std::string flag = (folder_ / "go").string();
  const auto source =
      plugin(read_ids(1) +
             "echo '{\"id\":'$ids',\"reward\":1}'; echo '{\"id\":'$ids',\"reward\":2}'; touch " +
             flag + "; cat >/dev/null");
  try {
    source->score(requests(1));  // both lines may come in one read: then it is a second answer
    while (!std::filesystem::exists(flag)) ::usleep(1000);
    expect_error(ExitCode::bad_data, "nobody asked", [&] { source->score(requests(1)); });
  } catch (const UserError& error) { EXPECT_EQ(error.code(), ExitCode::bad_data); }
}

// Empty lines without end, in pieces that are written whole so that none tears an answer apart. Of
// those that come while nothing is asked, the log has what a pipe holds.
TEST_F(Plugin, OneThatNeverFallsSilentIsStillAsked) {
  const std::filesystem::path lines = folder_ / "lines";
  std::ofstream(lines) << std::string(size_t{8} << 20, '\n');
  const std::string flood =
      base::text("for i in $(seq 16); do dd if=", lines.string(), " bs=4096 2>/dev/null; done & ");
  const std::string answer = read_ids(1) + "echo '{\"id\":'$ids',\"reward\":1}'; ";
  const auto source = plugin(answer + flood + flood + answer + answer + "cat >/dev/null");
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(source->score(requests(1)).values, std::vector<float>{1});
    ::usleep(20000);  // for the pipe to be full
  }
  EXPECT_LE(log().size(), size_t{2} << 20);
}

TEST_F(Plugin, AnswersInPieces) {
  const auto source = plugin(read_ids(2) +
                             "set -- $ids; printf '{\"id\":'; sleep 0.02; printf "
                             "'%s,\"reward\":1}' $1; sleep 0.02; printf '\\n'; sleep 0.02; " +
                             "echo '{\"id\":'$2',\"reward\":2}'; cat >/dev/null");
  EXPECT_EQ(source->score(requests(2)).values, (std::vector<float>{1, 2}));
}

TEST_F(Plugin, LastLineWithoutNewlineCounts) {
  const auto source = plugin(read_ids(1) + "printf '{\"id\":%s,\"reward\":1}' $ids");
  EXPECT_EQ(source->score(requests(1)).values, std::vector<float>{1});
}

TEST_F(Plugin, ProgramThatDoesNotExist) {
  config::RewardSource options;
  options.kind = config::RewardKind::plugin;
  options.command = {"/nowhere/judge"};
  expect_error(ExitCode::input_missing, "/nowhere/judge",
               [&] { reward::make_plugin(options, "judge", environment_); });
}

TEST_F(Plugin, InjectedFaults) {
  environment_.retries = 5;  // one repairs it; the others are for a machine too busy to start a
                             // shell within the deadline
  for (const char* fault : {"crash", "hang", "short", "slow"}) {
    environment_.fault = fault;
    EXPECT_EQ(plugin(answer_all, 0.5)->score(requests(3)).values, std::vector<float>(3, 0.5f))
        << fault;
  }
  environment_.fault = "nan";
  expect_error(ExitCode::bad_data, "NaN", [&] { plugin(answer_all)->score(requests(3)); });
}

// Of a file that tee writes: it may come to that after it has passed on what the answer was to.
std::vector<std::string> lines_heard(const std::string& file, size_t wanted) {
  std::vector<std::string> lines;
  for (int i = 0; i < 500 && lines.size() < wanted; ++i, ::usleep(10'000)) {
    lines.clear();
    std::ifstream in(file);
    for (std::string line; std::getline(in, line) && !in.eof();) lines.push_back(line);
  }
  return lines;
}

TEST_F(Plugin, RequestsAreLinesOfJsonWithEveryField) {
  const std::string heard = (folder_ / "heard").string();
  auto asked = requests(2);
  asked[0].prompt = "p\n\"\\\t\u65e5";
  asked[0].extra = R"({"level":3})";
  asked[0].messages = {{"user", "hi", ""}};
  asked[0].finish_reason = FinishReason::length;
  asked[0].iteration = 7;
  const auto source = plugin("tee " + heard + " | " + answer_all);
  source->score(asked);
  std::vector<nlohmann::json> lines;
  for (const std::string& line : lines_heard(heard, 2))
    lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], (nlohmann::json{{"v", 1},
                                      {"id", "100"},
                                      {"prompt", asked[0].prompt},
                                      {"response", asked[0].response},
                                      {"label", "l"},
                                      {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                                      {"extra", {{"level", 3}}},
                                      {"finish_reason", "length"},
                                      {"iteration", 7}}));
  EXPECT_FALSE(lines[1].contains("extra") || lines[1].contains("messages"));
}

TEST_F(Plugin, StandardOutputClosedEarly) {
  environment_.retries = 0;
  const auto source = plugin("read -r x; exec 1>&-; exit 9");
  expect_error(ExitCode::unfit_environment, "it ended after 0 of 1 answers (",
               [&] { source->score(requests(1)); });
}

TEST_F(Plugin, ALineWithoutEndIsRefusedAtItsLimit) {
  const auto source =
      plugin("read -r asked; head -c 16800000 /dev/zero | tr '\\0' x; cat >/dev/null");
  expect_error(ExitCode::bad_data, "a line longer than 16777216 bytes",
               [&] { source->score(requests(1)); });
}

TEST_F(Plugin, AFloodOfMessagesBlocksNothing) {
  const auto source = plugin(
      "head -c 3000000 /dev/zero | tr '\\0' e >&2; for i in $(seq 3000); do echo noise $i; done; " +
      answer_all);
  EXPECT_EQ(source->score(requests(2)).values, std::vector<float>(2, 0.5f));
  const std::string text = log();
  EXPECT_EQ(std::count(text.begin(), text.end(), 'e') / 1000, 3003);
  EXPECT_NE(text.find("noise 3000\n"), std::string::npos);
}

// It may answer without reading it all: a pipe that nobody empties must not stop the run, nor
// SIGPIPE end it.
TEST_F(Plugin, AnswersWithoutReadingToTheEnd) {
  const auto source = plugin(
      "head -c 10 >/dev/null; for i in 100 101; do echo '{\"id\":'$i',\"reward\":0.5}'; done");
  auto large = requests(2);
  for (auto& one : large) one.response.assign(1'000'000, 'x');
  EXPECT_EQ(source->score(large).values, std::vector<float>(2, 0.5f));
}

// Environment and working folder are those of the run, open files are not.
TEST_F(Plugin, WhatTheChildInherits) {
  ::setenv("TRIREME_PLUGIN_TEST", "a b", 1);
  const int open_file = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC, as libraries do
  const auto source =
      plugin("[ \"$TRIREME_PLUGIN_TEST\" = 'a b' ] || exit 3; [ \"$(pwd -P)\" = \"" +
             std::filesystem::current_path().string() + "\" ] || exit 4; [ -e /proc/$$/fd/" +
             std::to_string(open_file) + " ] && exit 5; " + answer_all);
  EXPECT_EQ(source->score(requests(1)).values, std::vector<float>(1, 0.5f));
  ::close(open_file);
  ::unsetenv("TRIREME_PLUGIN_TEST");
}

TEST_F(Plugin, MetricsThatAreNoNumbers) {
  const auto answer = [&](const std::string& metrics) {
    return plugin(read_ids(1) + "echo '{\"id\":'$ids',\"reward\":1,\"metrics\":" + metrics +
                  "}'; cat >/dev/null");
  };
  expect_error(ExitCode::bad_data, "\"metrics\" is not an object",
               [&] { answer("3")->score(requests(1)); });
  expect_error(ExitCode::bad_data, "the metric \"a\" is not a finite number",
               [&] { answer("{\"a\":\"1\"}")->score(requests(1)); });
  EXPECT_TRUE(answer("{}")->score(requests(1)).metrics.empty());
}

TEST_F(Plugin, DeadlineCountsSinceTheLastAnswer) {
  environment_.retries = 0;
  const auto source = plugin(
      read_ids(12) +
          "for id in $ids; do sleep 0.25; echo '{\"id\":'$id',\"reward\":1}'; done; cat >/dev/null",
      1.5);
  const base::Stopwatch watch;
  EXPECT_EQ(source->score(requests(12)).values, std::vector<float>(12, 1.f));
  EXPECT_GT(watch.seconds(), 1.5) << "the batch takes longer than the deadline of one answer";
}

// The pipe holds less than it is asked: it had to wait for the rest while nobody looked.
TEST_F(Plugin, ADeadlineDoesNotCountWhileNobodyListens) {
  environment_.retries = 0;
  const std::string heard = (folder_ / "heard").string();
  const auto source =
      plugin("head -n 40 > " + heard + "; (cat " + heard + "; cat) | " + answer_all, 0.9);
  auto many = requests(40);
  for (auto& one : many) one.response.assign(10'000, 'x');
  source->ask(many);
  ::usleep(950'000);
  EXPECT_EQ(source->score(many).values, std::vector<float>(40, 0.5f));
}

TEST_F(Plugin, ARestartAsksForWhatIsMissingOnly) {
  const std::string first = (folder_ / "first").string(), second = (folder_ / "second").string();
  const std::string answer_two =
      "set -- $ids; for id in $1 $3; do echo "
      "'{\"id\":'$id',\"reward\":1,\"metrics\":{\"life\":1}}'; done; ";
  const auto source = plugin("if [ ! -e " + first + " ]; then touch " + first + "; " + read_ids(4) +
                             answer_two + "kill -9 $$; fi; tee " + second + " | " + answer_all);
  const auto scores = source->score(requests(4));
  EXPECT_EQ(scores.values, (std::vector<float>{1, 0.5f, 1, 0.5f}));
  EXPECT_EQ(scores.metrics.at("life")[0], 1);
  EXPECT_TRUE(std::isnan(scores.metrics.at("life")[1]));
  std::vector<std::string> asked;
  for (const std::string& line : lines_heard(second, 2))
    asked.push_back(nlohmann::json::parse(line).at("id"));
  EXPECT_EQ(asked, (std::vector<std::string>{"103", "101"}))
      << "the one that it may have died of comes last";
}

TEST_F(Plugin, WhatIsAskedAheadIsThereWhenItIsNamed) {
  const std::string heard = (folder_ / "heard").string();
  const auto source = plugin("tee " + heard + " | " + answer_all);
  const auto all = requests(6);
  source->ask(std::span(all).first(4));
  for (int i = 0; i < 500 && !std::filesystem::exists(heard); ++i) ::usleep(10'000);
  source->poll();
  EXPECT_EQ(source->score(std::span(all).subspan(2)).values, std::vector<float>(4, 0.5f))
      << "two of them were not asked before";
  const auto rest = source->score(std::span(all).first(2));
  EXPECT_EQ(rest.values, std::vector<float>(2, 0.5f));
  EXPECT_EQ(rest.metrics.at("words"), std::vector<float>(2, 3.f));
  EXPECT_EQ(lines_heard(heard, 6).size(), 6u) << "each of them once";
}

TEST_F(Plugin, AChildThatDiesBetweenAskAndScoreIsRestarted) {
  const std::string flag = (folder_ / "crashed").string();
  const auto source = plugin("if [ ! -e " + flag + " ]; then read -r x; touch " + flag +
                             "; kill -9 $$; fi; " + answer_all);
  const auto all = requests(3);
  source->ask(all);
  for (int i = 0; i < 500 && !std::filesystem::exists(flag); ++i) ::usleep(10'000);
  ::usleep(100'000);
  source->poll();
  EXPECT_EQ(source->score(all).values, std::vector<float>(3, 0.5f));
}

// A watchdog takes these for signs of life.
TEST_F(Plugin, WaitingForAnswersIsActivity) {
  const auto source = plugin("sleep 2.5; " + answer_all);
  const uint64_t before = trace::activity();
  EXPECT_EQ(source->score(requests(1)).values, std::vector<float>{0.5f});
  EXPECT_GE(trace::activity() - before, 3u);
}

TEST_F(Plugin, AnIdIsATextOrANumber) {
  const auto deep = plugin(
      "read -r x; printf '{\"reward\":1,\"id\":'; head -c 500000 /dev/zero | tr '\\0' '['; head -c "
      "500000 /dev/zero | tr '\\0' ']'; echo '}'; cat >/dev/null");
  expect_error(ExitCode::bad_data, "neither a text nor a whole number",
               [&] { deep->score(requests(1)); });
}

// However the run's process ends: its plugin does not see the end of its input, being busy, and has
// started a program of its own.
TEST_F(Plugin, EndsWithItsRun) {
  const std::vector<std::pair<const char*, void (*)()>> ways{
      {"_exit", [] { ::_exit(0); }},
      {"abort", [] { ::abort(); }},
      {"SIGKILL", [] { ::kill(::getpid(), SIGKILL); }},
      {"SIGTERM to the group", [] { ::signal(SIGTERM, SIG_DFL), ::kill(0, SIGTERM); }}};
  for (const auto& [way, leave] : ways) {
    const std::filesystem::path pids = folder_ / "pids";
    std::filesystem::remove(pids);
    const pid_t run = ::fork();
    ASSERT_GE(run, 0);
    if (run == 0) {
      ::setpgid(0, 0);
      for (const int signal : {SIGABRT, SIGTERM}) ::signal(signal, SIG_DFL);
      std::unique_ptr<reward::Source> source;
      try {
        source = plugin("trap '' TERM; sleep 1000 & echo $$ $! > " + pids.string() + ".new; mv " +
                        pids.string() + ".new " + pids.string() + "; wait");
      } catch (...) { ::_exit(9); }
      while (!std::filesystem::exists(pids)) ::usleep(10'000);
      leave();
      ::_exit(9);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(run, &status, 0), run);
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 9) << way;
    pid_t child = 0, grandchild = 0;
    std::ifstream(pids) >> child >> grandchild;
    ASSERT_GT(grandchild, 0) << way;
    for (int i = 0; i < 250 && (runs(child) || runs(grandchild)); ++i) ::usleep(20'000);
    EXPECT_FALSE(runs(child)) << way;
    EXPECT_FALSE(runs(grandchild)) << way;
    for (const pid_t one : {child, grandchild}) ::kill(one, SIGKILL);
  }
}

// The guard goes with its child: no process is left over, and none that another child would be
// killed by.
TEST_F(Plugin, LeavesNoProcessBehind) {
  const auto children = [] {
    std::ifstream in(base::text("/proc/self/task/", ::getpid(), "/children"));
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string before = children();
  for (int round = 0; round < 3; ++round) plugin(answer_all)->score(requests(2));
  EXPECT_EQ(children(), before);
}

}  // namespace
}  // namespace trireme::test
