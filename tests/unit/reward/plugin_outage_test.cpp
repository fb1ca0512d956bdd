// Plugins of several processes, and what becomes of requests that are not answered: asked again,
// given up or waited for.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "trireme/base/text.hpp"
#include "trireme/trace/activity.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

// A loop over requests: `each` sees $id and $line; answer with `say ID`, which tells the process
// too.
std::string shell_plugin(const std::string& each, const std::string& at_start = "") {
  return "say() { echo '{\"id\":'$1',\"reward\":'$1',\"metrics\":{\"process\":'$$'}}'; }; " +
         at_start + R"sh(while read -r line; do id=${line#*\"id\": \"}; id=${id%%\"*}; )sh" + each +
         "; done";
}

class PluginOutage : public testing::Test {
 protected:
  PluginOutage() {
    folder_ = std::filesystem::temp_directory_path() / base::text("trireme-outage-", ::getpid());
    std::filesystem::create_directories(folder_);
    environment_.log_dir = folder_;
  }
  ~PluginOutage() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<reward::Source> plugin(const std::string& script, int64_t processes = 1,
                                         double timeout = 120) const {
    config::RewardSource options;
    options.kind = config::RewardKind::plugin;
    options.command = {"sh", "-c", script};
    options.timeout.seconds = timeout;
    options.processes = processes;
    return reward::make_plugin(options, "judge", environment_);
  }
  static std::vector<reward::Request> requests(uint64_t first, uint64_t count) {
    std::vector<reward::Request> out;
    for (uint64_t id = first; id < first + count; ++id) out.push_back(request(id, "r", "l"));
    return out;
  }
  // Each is rewarded with its id.
  static void expect_answered(const reward::Scores& scores,
                              const std::vector<reward::Request>& asked) {
    ASSERT_EQ(scores.values.size(), asked.size());
    EXPECT_TRUE(scores.missing.empty());
    for (size_t i = 0; i < asked.size(); ++i)
      EXPECT_EQ(scores.values[i], static_cast<float>(asked[i].id));
  }

  std::filesystem::path folder_;
  reward::PluginEnvironment environment_;
};

// Each of the four answers the last of its requests first, 50 ms for each.
TEST_F(PluginOutage, ProcessesShareTheRequests) {
  const auto source = plugin(shell_plugin("ids=\"$id $ids\"; n=$((n + 1)); if [ $n = 6 ]; then for "
                                          "i in $ids; do sleep 0.05; say $i; done; fi"),
                             4);
  const auto asked = requests(100, 24);
  const auto scores = source->score(asked);
  expect_answered(scores, asked);
  std::map<float, int> by_process;
  for (const float process : scores.metrics.at("process")) ++by_process[process];
  EXPECT_EQ(by_process.size(), 4u);
  for (const auto& [process, count] : by_process) EXPECT_EQ(count, 6) << process;
  const auto counters = source->take_counters();
  EXPECT_EQ(counters.requests, 24);
  EXPECT_EQ(counters.retries + counters.restarts, 0);
  EXPECT_GT(counters.wait_seconds, 0);
  EXPECT_EQ(source->take_counters().requests, 0) << "they are those since the last call";
}

TEST_F(PluginOutage, ABusyProcessGetsNoMore) {
  const std::string go = (folder_ / "go").string();
  const auto source = plugin(shell_plugin("if [ $id = 1 ]; then while [ ! -e " + go +
                                          " ]; do sleep 0.02; done; fi; say $id"),
                             2);
  const auto held = requests(1, 1);
  source->ask(held);
  for (uint64_t id = 2; id < 9; ++id) {  // by the other one, each time
    const auto one = requests(id, 1);
    expect_answered(source->score(one), one);
  }
  std::ofstream(go).put('\n');
  expect_answered(source->score(held), held);
  EXPECT_EQ(source->take_counters().restarts, 0);
}

// The one that it dies of takes down none of the others.
TEST_F(PluginOutage, ARequestThatKillsIsGivenUp) {
  environment_.retries = 2;
  environment_.outage = config::PluginOutage::skip;
  const auto source = plugin(shell_plugin("[ $id = 2 ] && kill -9 $$; say $id"));
  const auto scores = source->score(requests(1, 5));
  EXPECT_EQ(scores.missing, (std::vector<uint8_t>{0, 1, 0, 0, 0}));
  EXPECT_EQ(scores.values, (std::vector<float>{1, 0, 3, 4, 5}));
  const auto counters = source->take_counters();
  EXPECT_EQ(counters.restarts, 2);
  EXPECT_EQ(counters.retries, 4 + 1) << "what was missing then, and the one that was left";
  const auto more = requests(10, 3);
  expect_answered(source->score(more), more);
}

TEST_F(PluginOutage, ARequestThatHangsIsGivenUp) {
  environment_.retries = 1;
  environment_.outage = config::PluginOutage::skip;
  const auto source = plugin(shell_plugin("[ $id = 1 ] && sleep 1000; say $id"), 1, 1.5);
  const auto scores = source->score(requests(1, 4));
  EXPECT_EQ(scores.missing, (std::vector<uint8_t>{1, 0, 0, 0}));
  EXPECT_EQ(scores.values, (std::vector<float>{0, 2, 3, 4}));
}

TEST_F(PluginOutage, NothingAnswersAndAllIsGivenUp) {
  environment_.retries = 1;
  environment_.outage = config::PluginOutage::skip;
  const auto source = plugin("exit 3", 2);
  EXPECT_EQ(source->score(requests(1, 3)).missing, std::vector<uint8_t>(3, 1));
}

// Its first four processes find the service down.
TEST_F(PluginOutage, AnOutageIsWaitedFor) {
  environment_.retries = 1;
  environment_.outage = config::PluginOutage::wait;
  const std::string starts = (folder_ / "starts").string();
  const auto source = plugin(shell_plugin(
      "say $id", "echo >> " + starts + "; [ $(wc -l < " + starts + ") -lt 5 ] && exit 3; "));
  const uint64_t before = trace::activity();
  const auto asked = requests(1, 3);
  expect_answered(source->score(asked), asked);
  EXPECT_GT(trace::activity(), before) << "a watchdog sees that it lives";
  const auto counters = source->take_counters();
  EXPECT_EQ(counters.restarts, 4);
  EXPECT_EQ(counters.retries, 12);
}

TEST_F(PluginOutage, AStopIsHeardWhileItIsWaitedFor) {
  environment_.retries = 0;
  environment_.outage = config::PluginOutage::wait;
  struct FourthTime : comm::LeaveWatch {
    bool leaves_inside() const override { return true; }
    job::StopReason wish() override {
      return ++asked > 3 ? job::StopReason::interrupt : job::StopReason::none;
    }
    void waited() override {}
    int asked = 0;
  } watch;
  comm::Progress progress(&watch);
  int64_t others = 0;
  progress.add([&others] { return ++others; });
  environment_.progress = &progress;
  const auto source = plugin("exit 3");
  EXPECT_TRUE(source->score(requests(1, 1)).left);
  EXPECT_GT(others, 1) << "what else this rank does for others goes on";
}

TEST_F(PluginOutage, AnAnswerForAnotherProcessIsRefused) {
  const auto source = plugin(shell_plugin("for i in 1 2; do say $i; done"), 2);
  expect_error(ExitCode::bad_data, "reward plugin judge", [&] { source->score(requests(1, 2)); });
}

}  // namespace
}  // namespace trireme::test
