// Programs that die, hang, are late or send too much, and what becomes of their episodes.
#include <signal.h>

#include <gmock/gmock.h>

#include "unit/environment/support.hpp"

namespace trireme::test {
namespace {

using environment::Counters;
using environment::Reply;
using testing::ElementsAre;
using testing::HasSubstr;

// A deterministic game: what it answers depends on seed and turns alone. `fault` runs before an
// answer to request `r`.
std::string game(const std::string& fault) {
  return "e = r['episode']\n"
         "if r['type'] == 'close':\n"
         "    games.pop(e, None)\n"
         "    continue\n"
         "if r['type'] == 'reset': games[e] = [r['seed']]\n"
         "else: games[e].append(r['text'])\n" +
         fault + "\nsay(text=str(games[e]), reward=0 if r['type'] == 'reset' else len(games[e]))";
}
const std::string no_games = "games = {}";

// Plays `turns` turns of `episodes` episodes, all at once; their last replies.
class EnvironmentFault : public EnvironmentTest {
 protected:
  static std::vector<Reply> play_all(environment::Environments& environments, uint64_t episodes,
                                     int64_t turns) {
    for (uint64_t e = 0; e < episodes; ++e) environments.reset(reset(e));
    std::vector<Reply> all = replies(environments, episodes);
    for (int64_t turn = 0; turn < turns; ++turn) {
      uint64_t asked = 0;
      for (uint64_t e = 0; e < episodes; ++e) {
        if (all[e].done) continue;
        environments.step(step(e, turn, base::text("turn ", turn, " of ", e)));
        ++asked;
      }
      for (Reply& one : replies(environments, asked)) all[one.episode] = std::move(one);
    }
    return all;
  }
  static void expect_undisturbed(const std::vector<Reply>& all, int64_t turns) {
    for (const Reply& one : all) {
      std::string expected = base::text("[", 1000 + one.episode);
      for (int64_t turn = 0; turn < turns; ++turn)
        expected += base::text(", 'turn ", turn, " of ", one.episode, "'");
      EXPECT_EQ(one.text, expected + "]");
      EXPECT_EQ(one.reward, static_cast<double>(turns + 1));
      EXPECT_EQ(one.error, "");
    }
  }
};

// Of three processes each is killed once, in the middle of its episodes: the new one is told what
// the old one knew.
TEST_F(EnvironmentFault, AProcessThatDiesIsReplacedAndToldAllTurns) {
  options_.environment.processes = 3;
  program(
      game("if r['type'] == 'step' and r['turn'] == 2 and first_time('died' + str(int(e) % 3)): "
           "os.kill(os.getpid(), signal.SIGKILL)"),
      no_games);
  auto environments = start();
  expect_undisturbed(play_all(environments, 12, 5), 5);
  const Counters counters = environments.take_counters();
  EXPECT_EQ(counters.requests, 12 * 6);
  EXPECT_GE(counters.restarts, 1);
  EXPECT_GE(counters.retries, counters.restarts);
  EXPECT_EQ(counters.broken, 0);
}

// It dies while nothing is asked of it, which is seen with the next turn.
TEST_F(EnvironmentFault, AProcessThatDiesBetweenTurnsIsReplaced) {
  program(game("") + "\nif first_time('died'): os.kill(os.getpid(), signal.SIGKILL)", no_games);
  auto environments = start();
  expect_undisturbed(play_all(environments, 1, 3), 3);
  EXPECT_EQ(environments.take_counters().restarts, 1);
}

// An episode whose turn came while its process was away, and one that had a turn and rests.
TEST_F(EnvironmentFault, EpisodesThatRestAreToldWhenTheyGoOn) {
  program("heard.write(r['type'] + r['episode'] + '\\n'); heard.flush()\n" +
              game("if r['type'] == 'step' and e == '1' and first_time('died'): sys.exit(3)"),
          no_games + "; heard = open(folder + '/heard', 'a')");
  auto environments = start();
  begin(environments, 0);
  begin(environments, 1);
  play(environments, 0, 0, "turn 0 of 0");
  EXPECT_EQ(play(environments, 1, 0).text, "[1001, 't']");
  EXPECT_EQ(play(environments, 0, 1, "turn 1 of 0").text, "[1000, 'turn 0 of 0', 'turn 1 of 0']");
  EXPECT_THAT(lines_of("heard", 9, environments),
              ElementsAre("reset0", "reset1", "step0", "step1",             // the first process
                          "reset1", "step1", "reset0", "step0", "step0"));  // the second one
}

// What cannot be repeated is not continued.
TEST_F(EnvironmentFault, AProgramMustAnswerTheSameAgain) {
  options_.environment.outage = config::PluginOutage::skip;
  program("if r['type'] == 'step' and first_time('died'): sys.exit(3)\nsay(text=str(os.getpid()))");
  auto environments = start();
  begin(environments, 4);
  const Reply broken = play(environments, 4, 0);
  EXPECT_TRUE(broken.done);
  EXPECT_THAT(broken.error, HasSubstr("answers request 1 of the episode otherwise than before"));
  options_.environment.outage = config::PluginOutage::stop;
  std::filesystem::remove(folder_ / "died");
  auto strict = start();
  begin(strict, 4);
  expect_error(ExitCode::bad_data, "otherwise than before", [&] { play(strict, 4, 0); });
}

TEST_F(EnvironmentFault, AfterAllRestartsTheRunEnds) {
  options_.environment.retries = 1;
  program(game("if r['type'] == 'step': print('why', file=sys.stderr, flush=True); sys.exit(3)"),
          no_games);
  auto environments = start();
  begin(environments, 1);
  expect_error(
      ExitCode::unfit_environment,
      "environment (python3): it ended after 1 of 2 answers (exit code 3), after 1 restarts "
      "(environment.retries)",
      [&] { play(environments, 1, 0); });
}

// With skip the episode that always fails is given up; the others are played to their end.
TEST_F(EnvironmentFault, AnEpisodeThatAlwaysFailsIsSkipped) {
  options_.environment.retries = 1;
  options_.environment.outage = config::PluginOutage::skip;
  options_.environment.broken_reward = -1;
  program(game("if r['type'] == 'step' and e == '2' and r['turn'] == 1: sys.exit(3)"), no_games);
  auto environments = start();
  std::vector<Reply> all = play_all(environments, 5, 3);
  EXPECT_TRUE(all[2].done);
  EXPECT_EQ(all[2].turn, 1);
  EXPECT_EQ(all[2].reward, -1);
  EXPECT_THAT(all[2].error, HasSubstr("exit code 3"));
  all.erase(all.begin() + 2);
  expect_undisturbed(all, 3);
  EXPECT_EQ(environments.take_counters().broken, 1);
}

TEST_F(EnvironmentFault, AnOutageIsWaitedFor) {
  options_.environment.retries = 0;
  options_.environment.outage = config::PluginOutage::wait;
  program(game("if r['type'] == 'step' and (first_time('a') or first_time('b')): sys.exit(3)"),
          no_games);
  auto environments = start();
  expect_undisturbed(play_all(environments, 2, 2), 2);
  EXPECT_GE(environments.take_counters().restarts, 2);
}

// The deadline is the program's own; nothing here sleeps.
TEST_F(EnvironmentFault, OneThatHangsIsLate) {
  options_.environment.retries = 0;
  options_.environment.timeout.seconds = 0.3;
  program("pass");
  auto environments = start();
  environments.reset(reset(1));
  expect_error(ExitCode::unfit_environment, "no answer within", [&] { reply(environments); });
  options_.environment.outage = config::PluginOutage::skip;
  auto skipping = start();
  skipping.reset(reset(1));
  const Reply broken = reply(skipping);
  EXPECT_TRUE(broken.done);
  EXPECT_EQ(broken.turn, -1);
  EXPECT_THAT(broken.error, HasSubstr("no answer within"));
}

// One episode hangs in a program that answers the others: the process is not late.
TEST_F(EnvironmentFault, AnEpisodeThatWaitsTooLongEnds) {
  options_.environment.max_time.seconds = 0.3;
  options_.environment.broken_reward = -2;
  program("if r['episode'] != '1': say(text='x')");
  options_.environment.max_turns = 4096;
  auto environments = start();
  environments.reset(reset(0));
  environments.reset(reset(1));
  Reply late;
  const base::Stopwatch watch;
  while (late.error.empty() && watch.seconds() < 60) {
    for (Reply& one : environments.poll()) {
      if (one.episode == 1) {
        late = std::move(one);
      } else if (!one.done && one.turn < 4000) {
        environments.step(step(0, one.turn + 1));
      }
    }
  }
  EXPECT_THAT(late.error, HasSubstr("environment.max_time"));
  EXPECT_EQ(late.reward, -2);
  EXPECT_TRUE(late.done);
  EXPECT_EQ(environments.take_counters().restarts, 0);
}

TEST_F(EnvironmentFault, MegabytesAreAnswersUpToALimit) {
  program("say(text='x' * (1 << 22))");
  auto environments = start();
  EXPECT_EQ(begin(environments, 1).text.size(), size_t{1} << 22);
  const std::string flood = "sys.stdout.write('x' * 16800000); sys.stdout.flush()";
  program("if r['type'] == 'step' and r['episode'] == '1': " + flood + "\nelse: say(text='x')");
  auto strict = start();
  begin(strict, 1);
  expect_error(ExitCode::bad_data, "a line longer than 16777216 bytes",
               [&] { play(strict, 1, 0); });
  options_.environment.outage = config::PluginOutage::skip;
  options_.environment.retries = 1;
  auto skipping = start();
  begin(skipping, 0);
  begin(skipping, 1);
  const Reply broken = play(skipping, 1, 0);
  EXPECT_TRUE(broken.done);
  EXPECT_THAT(broken.error, HasSubstr("a line longer than"));
  EXPECT_EQ(play(skipping, 0, 0).text, "x") << "the others go on";
}

TEST_F(EnvironmentFault, ProgramsThatCannotBeStarted) {
  options_.environment.command = {"/nowhere/game"};
  expect_error(ExitCode::input_missing, "cannot start the environment '/nowhere/game'",
               [&] { start(); });
  expect_error(ExitCode::input_missing, "check environment.command", [&] { start(); });
  options_.environment.command.clear();
  expect_error(ExitCode::configuration, "environment.command is missing", [&] { start(); });
}

TEST_F(EnvironmentFault, LeavingEndsTheProcesses) {
  program("open(folder + '/pid', 'w').write(str(os.getpid()) + '\\n'); say(text='x')");
  pid_t pid = 0;
  {
    auto environments = start();
    begin(environments, 1);
    std::ifstream(folder_ / "pid") >> pid;
  }
  ASSERT_GT(pid, 0);
  EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace trireme::test
