// summary.json and the end of the log, at np 1, 2 and 4.
#include "trireme/report/run_end.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/samples.hpp"
#include "trireme/base/files.hpp"
#include "trireme/trace/guards.hpp"
#include "unit/report/log_capture.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// The last rank is alone in its role where there are several.
std::string my_roles() {
  return test::world().size() > 1 && test::world().rank() == test::world().size() - 1
             ? "generator"
             : "trainer, reward";
}

class EndOfRun : public testing::Test {
 protected:
  void SetUp() override { trace::clear(); }
  void TearDown() override { trace::clear(); }

  const test::SharedFolder folder_;
};

TEST_F(EndOfRun, TheSummaryHasTheSumsOfAllRanks) {
  const int ranks = test::world().size(), rank = test::world().rank();
  trace::count("everywhere", 10 + rank);
  if (rank == ranks - 1) trace::count("on one \"rank\"", int64_t{1} << 60);
  for (int i = 0; i < 3; ++i) {
    const trace::Region iteration{"iteration", i};
    const trace::Region inner{"train"};
  }
  RunEnd end;
  end.seconds = 12.5;
  end.last.iteration = 3;
  end.last.set("reward_\"x\"\n", 0.25);
  const LogCapture log;
  write_end(test::world(), my_roles(), folder_.path(), end);
  if (rank != 0) return;
  const json summary = json::parse(base::read_file(folder_.path() / "summary.json"));
  EXPECT_EQ(summary.at("seconds"), 12.5);
  EXPECT_EQ(summary.at("counts").at("everywhere"), 10 * ranks + ranks * (ranks - 1) / 2);
  EXPECT_EQ(summary.at("counts").at("on one \"rank\""), int64_t{1} << 60)
      << "of a rank that is not the first, every digit";
  EXPECT_EQ(summary.at("last").at("iteration"), 3);
  EXPECT_EQ(summary.at("last").at("reward_\"x\"\n"), 0.25);
  EXPECT_FALSE(summary.contains("generation")) << "nothing was written";
  ASSERT_EQ(summary.at("roles").size(), ranks > 1 ? 2u : 1u);
  EXPECT_EQ(summary.at("roles")[0].at("role"), "trainer, reward");
  EXPECT_EQ(summary.at("roles")[0].at("ranks"), std::max(1, ranks - 1));
  for (const json& role : summary.at("roles")) {
    EXPECT_EQ(role.at("iterations").at("count"), 3);
    EXPECT_GT(role.at("host_peak"), 1 << 20) << "bytes";
  }
}

TEST_F(EndOfRun, GuardsAreAShareOfTheTimeOfAllRanks) {
  const auto before = trace::guard_seconds().at("inputs");
  trace::add_guard_seconds(trace::Guard::inputs, 2);
  RunEnd end;
  end.seconds = 100;
  const LogCapture log;
  write_end(test::world(), my_roles(), folder_.path(), end);
  const double others = test::world().sum(before);
  if (test::world().rank() != 0) return;
  const json guards = json::parse(base::read_file(folder_.path() / "summary.json")).at("guards");
  EXPECT_NEAR(guards.at("inputs").get<double>(), others + 2 * test::world().size(), 1e-6);
  double sum = 0;
  for (const auto& [name, value] : guards.items()) sum += name == "share" ? 0 : value.get<double>();
  EXPECT_NEAR(guards.at("share").get<double>(), sum / (100 * test::world().size()), 1e-12);
  EXPECT_THAT(log.text(),
              HasSubstr("guards: " + base::fixed(100 * guards.at("share").get<double>(), 2) +
                        " % of the ranks' time ("));
}

TEST_F(EndOfRun, TheLogHasWhatThereIs) {
  RunEnd end;
  end.seconds = 1;
  end.title = "the reward";
  const auto log_of = [&] {
    const LogCapture log;
    write_end(test::world(), my_roles(), folder_.path(), end);
    return log.text();
  };
  const std::string bare = log_of();
  end.curve = {0, 1};
  end.generation.add([] {
    IterationMetrics metrics;
    metrics.generation = {{"tokens", 8},
                          {"occupancy", 0.5},
                          {"tokens_per_second", 4},
                          {"preemptions", 0},
                          {"shared_tokens", 0}};
    return metrics;
  }());
  const std::string full = log_of();
  if (test::world().rank() != 0) {
    EXPECT_EQ(bare + full, "") << "one rank says it";
    return;
  }
  EXPECT_THAT(bare, HasSubstr("trainer, reward: "));
  EXPECT_THAT(bare, Not(HasSubstr("the reward\n"))) << "no curve yet";
  EXPECT_THAT(bare, Not(HasSubstr("generation:")));
  EXPECT_THAT(full, HasSubstr("the reward\n    1.000 | *\n"));
  EXPECT_THAT(full, HasSubstr("generation: 8 tokens, 4 a second"));
  EXPECT_EQ(json::parse(base::read_file(folder_.path() / "summary.json"))
                .at("generation")
                .at("occupancy"),
            0.5);
}

TEST_F(EndOfRun, CurvesOfWhatPluginsSayArePlotted) {
  if (test::world().rank() == 0) {
    std::ofstream out(folder_.path() / "metrics.jsonl");
    for (int i = 0; i < 4; ++i) {
      out << R"({"iteration": 1, "reward": 1)";
      for (const char* name : {"a", "b", "c", "d", "e", "f"})
        out << R"(, "reward_judge/)" << name << "\": " << i;
      out << "}\n";
    }
  }
  const LogCapture log;
  RunEnd end;
  end.seconds = 1;
  write_end(test::world(), my_roles(), folder_.path(), end);
  if (test::world().rank() != 0) return;
  for (const char* name : {"a", "b", "c", "d"})
    EXPECT_THAT(log.text(), HasSubstr(base::text("mean reward_judge/", name,
                                                 " by iteration\n    3.000 |   *\n")));
  EXPECT_THAT(log.text(), HasSubstr("not plotted: 2 more reward metrics"));
}

// A run that is over must not fail for its summary.
TEST_F(EndOfRun, AFolderThatIsGoneIsAWarning) {
  const LogCapture log;
  RunEnd end;
  end.seconds = 1;
  EXPECT_NO_THROW(write_end(test::world(), my_roles(), folder_.path() / "gone", end));
  if (test::world().rank() != 0) return;
  EXPECT_THAT(log.text(), HasSubstr("summary.json could not be written"));
  EXPECT_THAT(log.text(), HasSubstr("trainer, reward: ")) << "the table is there";
}

}  // namespace
}  // namespace trireme::report
