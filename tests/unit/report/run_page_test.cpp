// What a run's folder tells: history, notes, page and status. The page in a browser is
// tests/integration/report_page_test.py.
#include "trireme/report/run_page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "report/html_text.hpp"
#include "report/run_charts.hpp"
#include "support/text_files.hpp"
#include "trireme/base/text.hpp"
#include "trireme/report/progress_lines.hpp"
#include "trireme/report/run_notes.hpp"
#include "trireme/report/run_reporter.hpp"

namespace trireme::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

// Lines of metrics.jsonl: `values` says what an iteration has behind its number.
std::string metric_lines(int64_t first, int64_t last, auto values) {
  std::string lines;
  for (int64_t i = first; i <= last; ++i)
    lines += base::text("{\"iteration\": ", i, ", ", values(static_cast<double>(i)), "}\n");
  return lines;
}

std::string field(const char* name, double value) { return base::text("\"", name, "\": ", value); }

std::vector<std::string> notes_of(const test::TemporaryFolder& folder) {
  RunHistory run(folder.path());
  run.update();
  std::vector<std::string> notes;
  for (const RunNote& note : notes_on(run)) notes.push_back(note.what);
  return notes;
}

TEST(MetricLine, NestedNumbersAndNulls) {
  const auto line = parse_metric_line(
      R"({"iteration": 7, "reward": 0.5, "kl": null, "seconds": {"train": 2, "total": 3.5}, "time": 9})");
  ASSERT_TRUE(line);
  EXPECT_EQ(line->iteration, 7);
  EXPECT_EQ(line->time, 9);
  EXPECT_THAT(line->values, ElementsAre(Pair("reward", 0.5), Pair("seconds.train", 2.0),
                                        Pair("seconds.total", 3.5)));
  EXPECT_TRUE(std::isnan(line->get("kl")));
  for (const char* other :
       {"", "{", "[1]", "{\"iteration\": \"x\"}", "{\"reward\": 1}", "{\"iteration\": 1,"})
    EXPECT_FALSE(parse_metric_line(other)) << other;
}

TEST(LineFollower, WholeLinesOnceEach) {
  const test::TemporaryFolder folder;
  LineFollower follower(folder.path() / "x");
  std::vector<std::string> lines;
  const auto read = [&] {
    follower.read([&](std::string_view line) { lines.emplace_back(line); });
  };
  read();  // no file yet
  folder.write("x", "one\ntwo\nth");
  read();
  EXPECT_THAT(lines, ElementsAre("one", "two"));
  const std::string longer(3'000'000, 'a');  // longer than what is read at once
  folder.write("x", "one\ntwo\nthree\n" + longer + "\n\nend\n");
  read();
  read();
  EXPECT_THAT(lines, ElementsAre("one", "two", "three", longer, "", "end"));
}

TEST(Series, ManyValuesInFewBins) {
  Series series;
  for (int64_t i = 1; i <= 100'000; ++i) series.add(i, static_cast<double>(i));
  series.add(100'001, std::numeric_limits<double>::quiet_NaN());
  EXPECT_LE(series.bins().size(), Series::most_bins);
  EXPECT_GE(series.bins().size(), Series::most_bins / 2);
  EXPECT_EQ(series.count(), 100'000);
  EXPECT_EQ(series.low(), 1);
  EXPECT_EQ(series.high(), 100'000);
  EXPECT_EQ(series.last(), 100'000);
  double sum = 0;
  for (size_t i = 0; i < series.bins().size(); ++i) {
    const Bin& bin = series.bins()[i];
    sum += bin.sum;
    EXPECT_DOUBLE_EQ(bin.mean(), bin.middle()) << "of a straight line";
    if (i == 0) continue;
    EXPECT_EQ(bin.first, series.bins()[i - 1].last + 1);
  }
  EXPECT_EQ(sum, 100'000.0 * 100'001 / 2);
  EXPECT_NEAR(series.mean_of(0.75, 1), 87'500, 600);
}

TEST(Html, TextsOfModelsStayTexts) {
  EXPECT_EQ(html("<script>alert('x')</script>&\""),
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;");
  EXPECT_EQ(html(std::string("a\0b\x1b[31m\r\x7f\n\t", 12)), "a␀b␛[31m␍␡\n\t");
  EXPECT_EQ(html("\xff\xc3(\xe2\x82"), "\uFFFD\uFFFD(\uFFFD");
  EXPECT_EQ(html("\xc2\x85\xef\xbf\xbe"), "\uFFFD\uFFFD") << "what HTML forbids";
  EXPECT_EQ(html("日本語 🙂"), "日本語 🙂");
  EXPECT_EQ(visible("a\u202Eb\u2066"), "a<U+202E>b<U+2066>");
  EXPECT_EQ(link_target("a b/ü\"<.json"), "a%20b/%C3%BC%22%3C.json");
}

TEST(Html, NumbersAreShort) {
  EXPECT_EQ(short_number(0.73149), "0.731");
  EXPECT_EQ(short_number(12'345), "12.3k");
  EXPECT_EQ(short_number(1e-6), "1.0e-06");
  EXPECT_EQ(short_number(512), "512");
  EXPECT_EQ(short_number(-3.14159), "-3.14");
  EXPECT_EQ(with_unit(0.125, Unit::share), "12 %");
  EXPECT_EQ(with_unit(0.0123, Unit::share), "1.2 %");
}

TEST(WordDifference, KeepsBothTexts) {
  const std::string a = "the answer is  7\n#### 7", b = "so the answer is 8\n#### 8 done";
  std::string first, second, both;
  for (const DiffPiece& piece : word_difference(a, b)) {
    if (piece.in != DiffPiece::In::second) first += piece.text;
    if (piece.in != DiffPiece::In::first) second += piece.text;
    if (piece.in == DiffPiece::In::both) both += piece.text;
  }
  EXPECT_EQ(first, a);
  EXPECT_EQ(second, b);
  EXPECT_THAT(both, HasSubstr("the answer is"));
  EXPECT_EQ(word_difference("", "").size(), 0u);
  EXPECT_EQ(word_difference("same text", "same text").size(), 1u);
  std::string many;
  for (int i = 0; i < 700; ++i) many += base::text(i, " ");
  EXPECT_EQ(word_difference(many, "x").size(), 2u) << "too long to compare";
}

TEST(ShownSamples, SpreadOverTheRunInLittleMemory) {
  ShownSamples samples;
  for (int i = 1; i <= 1000; ++i) {
    for (int k = 0; k < 5; ++k)
      samples.add(base::text("{\"iteration\": ", i, ", \"prompt\": \"p", i % 10 * 5 + k,
                             "\", \"response\": \"r", i, "\", \"reward\": ", k, "}"));
  }
  samples.add("{\"iteration\": 1001, \"prompt\": \"cut o");
  const auto& picks = samples.iterations();
  EXPECT_LE(picks.size(), ShownSamples::most_iterations);
  EXPECT_EQ(picks.begin()->first, 1);
  EXPECT_EQ(picks.rbegin()->first, 1000);
  for (const auto& [iteration, pick] : picks) {
    EXPECT_EQ(pick.seen, 5);
    EXPECT_EQ(pick.best.reward, 4);
    EXPECT_EQ(pick.worst.reward, 0);
  }
  const auto changed = samples.changed_answers(3);
  ASSERT_EQ(changed.size(), 3u);
  EXPECT_LE(changed[0].first.iteration, 10);
  EXPECT_GE(changed[0].second.iteration, 990);
}

TEST(DeckDifferences, AlsoInListsOfTables) {
  EXPECT_THAT(deck_differences("[a]\nx = 1\ny.z = [1, 2]\n\n[[reward.source]]\nkind = \"rule\"\n"
                               "[[reward.source]]\nkind = \"plugin\"\n",
                               "[a]\nx = 1\ny.z = []\n[b]\nx = 2\n"),
              ElementsAre(Pair("a.y.z", "[1, 2]"), Pair("reward.source.0.kind", "\"rule\""),
                          Pair("reward.source.1.kind", "\"plugin\"")));
}

class RunNotes : public testing::Test {
 protected:
  const test::TemporaryFolder folder_;
};

TEST_F(RunNotes, RewardRisesAndEvaluationDoesNot) {
  const auto values = [](double gain) {
    return [gain](double i) {
      std::string out = field("reward", i / 40 + 0.02 * std::sin(7 * i));
      if (static_cast<int>(i) % 10 == 0) out += ", " + field("eval_reward", 0.3 + gain * i / 40);
      return out;
    };
  };
  folder_.write("metrics.jsonl", metric_lines(1, 40, values(0)));
  EXPECT_THAT(notes_of(folder_), ElementsAre(HasSubstr("The reward rises")));
  folder_.write("metrics.jsonl", metric_lines(1, 40, values(1)));
  EXPECT_THAT(notes_of(folder_), ElementsAre()) << "both rise";
  folder_.write("metrics.jsonl", metric_lines(1, 40, [](double i) {
                  return field("reward", 0.5 + 0.2 * std::sin(7 * i)) + ", " +
                         field("eval_reward", 0.3);
                }));
  EXPECT_THAT(notes_of(folder_), ElementsAre()) << "noise is not a rise";
}

TEST_F(RunNotes, GroupsLengthsPartsAndSteps) {
  folder_.write("metrics.jsonl", metric_lines(1, 20, [](double i) {
                  return base::text(
                      field("groups_without_spread", 0.8), ", ", field("truncated", i / 20), ", ",
                      field("response_length", 10 * i), ", ", field("reward_judge/format", i / 20),
                      ", ", field("reward_judge/accuracy", 0), ", ", field("skipped_steps", i == 3),
                      ", ", field("clip_ratio", 0.4), ", ", field("explained_variance", -0.5));
                }));
  EXPECT_THAT(
      notes_of(folder_),
      testing::UnorderedElementsAre(
          HasSubstr("80 % of the groups have no spread"), HasSubstr("Lengths run to the limit"),
          HasSubstr("judge/format rises"), HasSubstr("1 optimizer steps were skipped"),
          HasSubstr("40 % of the tokens are clipped"), HasSubstr("explains nothing")));
  folder_.write("metrics.jsonl", metric_lines(1, 20, [](double) {
                  return base::text(
                      field("groups_without_spread", 0.3), ", ", field("truncated", 0.02), ", ",
                      field("reward_judge/format", 0.9), ", ", field("reward_judge/accuracy", 0.5),
                      ", ", field("skipped_steps", 0), ", ", field("clip_ratio", 0.05));
                }));
  EXPECT_THAT(notes_of(folder_), ElementsAre());
}

TEST_F(RunNotes, OverfittingIsSeenInTheLossOfTheEvaluation) {
  folder_.write("metrics.jsonl", metric_lines(1, 12, [](double i) {
                  return field("eval_loss", 1 + std::abs(i - 4) / 10);
                }));
  EXPECT_THAT(notes_of(folder_), ElementsAre(HasSubstr("lowest after iteration 4")));
}

class RunPage : public testing::Test {
 protected:
  RunRecord facts(int64_t after) const {
    return {.command = "ppo",
            .name = "<b>name</b>",
            .model = "m",
            .iterations = 30,
            .starts = {{.time = 1e9,
                        .after = after,
                        .ranks = 2,
                        .nodes = 1,
                        .version = "1",
                        .folder = "/tmp/a b"}}};
  }
  std::string page() const { return test::read_text(folder_.path() / page_name); }
  RunState state(bool alive) const {
    RunHistory run(folder_.path());
    run.update();
    return state_of(run, alive);
  }
  const test::TemporaryFolder folder_;
};

TEST_F(RunPage, ARunTellsOfItself) {
  {
    RunReporter reporter(folder_.path(), facts(0), {});
    reporter.write();
    EXPECT_THAT(page(), HasSubstr("No iteration is finished yet"));
    EXPECT_EQ(state(true).standing, Standing::running);
    EXPECT_EQ(state(false).standing, Standing::ended) << "without a word";
    folder_.write("metrics.jsonl", metric_lines(1, 10, [](double i) {
                    return base::text(
                        field("reward", i),
                        ", \"seconds\": {\"total\": 2, \"train\": 1}, \"tokens\": 100");
                  }));
    reporter.write();
    EXPECT_THAT(page(), HasSubstr("iteration 10 of 30 (33 %)"));
    EXPECT_THAT(page(), HasSubstr("about 40.0 s left"));
    EXPECT_THAT(page(), HasSubstr("&lt;b&gt;name&lt;/b&gt;"));
    EXPECT_THAT(page(), Not(HasSubstr("<b>name")));
    reporter.end(75, "stopped");
  }
  EXPECT_EQ(state(false).standing, Standing::stopped);
  {
    RunReporter reporter(folder_.path(), facts(10), {});
    folder_.write("metrics.jsonl",
                  metric_lines(1, 30, [](double i) { return field("reward", i); }));
    reporter.end(0, "done");
  }
  EXPECT_EQ(state(false).standing, Standing::done);
  EXPECT_THAT(page(), HasSubstr("started again after iteration 10"));
  EXPECT_THAT(page(), HasSubstr("cd &#39;/tmp/a b&#39; &amp;&amp; mpirun -n 2 trireme ppo "));
  { const RunReporter fails(folder_.path(), facts(30), {}); }
  EXPECT_EQ(state(false).standing, Standing::failed);
  EXPECT_EQ(read_run_record(folder_.path()).starts.size(), 3u);
}

TEST_F(RunPage, DamagedFilesAreNoHindrance) {
  for (const char* content : {"", "{", "[]", "{\"starts\": 3}", "{\"starts\": [4]}", "\xff\xfe"}) {
    folder_.write("status.json", content);
    folder_.write("summary.json", content);
    folder_.write("metrics.jsonl",
                  std::string(content) + "\n{\"iteration\": 1, \"reward\": 1}\n{\"iter");
    folder_.write("samples.jsonl", std::string(content) + "\n{\"iteration\": 1}\n");
    RunHistory run(folder_.path());
    run.update();
    EXPECT_EQ(run.last().iteration, 1) << content;
    const std::array<ShownRun, 1> shown{{{&run, state_of(run, false)}}};
    EXPECT_THAT(page_of(shown, folder_.path() / page_name), HasSubstr("<h3>Reward</h3>"));
    EXPECT_THAT(status_text(shown[0], 100), HasSubstr("not running"));
  }
}

TEST_F(RunPage, TheStatusFitsItsTerminal) {
  folder_.write("metrics.jsonl", metric_lines(1, 20, [](double i) {
                  return base::text(field("reward", i), ", ", field("eval_reward", i / 2), ", ",
                                    field("groups_without_spread", 0.9),
                                    ", \"seconds\": {\"total\": 60}");
                }));
  folder_.write("log.txt",
                "[2026-11-27 01:11:36.105] warning: the disk is full, and this is a long text "
                "that a narrow terminal has no room for in one line\n"
                "[2026-11-27 01:11:37.105] iteration 1\n[2026-11-27 01:12:36.105] warning: "
                "the disk is full, and this is a long text that a narrow terminal has no "
                "room for in one line\n");
  RunHistory run(folder_.path());
  run.update();
  const std::string text = status_text({&run, {Standing::running, "running"}}, 80);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 84u) << line;
  EXPECT_THAT(text, HasSubstr("iteration 20"));
  EXPECT_THAT(text, HasSubstr("90 % of the groups have no spread"));
  EXPECT_THAT(text, HasSubstr("2026-11-27 01:12:36 the disk is full"));
  EXPECT_THAT(text, HasSubstr("(2 times)"));
  EXPECT_THAT(text, HasSubstr("mean eval_reward by iteration"));
}

TEST_F(RunPage, CallsOfToolsByTheirNames) {
  const test::TemporaryFolder folder;
  folder.write("metrics.jsonl", metric_lines(1, 3, [](double i) {
                 return base::text(R"("environment": {"calls": )", i, R"(, "failed_calls": 1, )",
                                   R"("tools": {"a.b": {"calls": )", i, R"(, "failed": 1}, )",
                                   R"("other": {"calls": 0, "failed": 0}}})");
               }));
  RunHistory run(folder.path());
  run.update();
  const auto sections = charts_of(run);
  const auto answers = std::ranges::find(sections, "Answers", &ChartSection::title);
  ASSERT_NE(answers, sections.end());
  std::vector<std::string> names;
  for (const Chart& chart : answers->charts) {
    for (const ChartTrace& trace : chart.traces) names.push_back(chart.title + ": " + trace.name);
  }
  EXPECT_THAT(names, ElementsAre("Calls of tools: calls", "Calls of tools: failed",
                                 "Calls by tool: a.b", "Calls by tool: other"));
}

TEST_F(RunPage, RunsOfOneDeckAreAGroup) {
  std::vector<std::unique_ptr<test::TemporaryFolder>> folders;
  std::vector<std::unique_ptr<RunHistory>> runs;
  std::vector<const RunHistory*> pointers;
  for (const char* deck :
       {"[run]\nseed = 1\n[actor]\nadam.lr = 5\n", "[run]\nseed = 2\n[actor]\nadam.lr = 5\n",
        "[run]\nseed = 1\n[actor]\nadam.lr = 6\n"}) {
    folders.push_back(std::make_unique<test::TemporaryFolder>());
    folders.back()->write("deck.toml", deck);
    const double shift = static_cast<double>(folders.size());
    folders.back()->write(
        "metrics.jsonl", metric_lines(1, 10, [&](double i) { return field("reward", i + shift); }));
    runs.push_back(std::make_unique<RunHistory>(folders.back()->path()));
    runs.back()->update();
    pointers.push_back(runs.back().get());
  }
  const auto groups = groups_of(pointers);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].runs.size(), 2u);
  const auto sections = charts_beside(groups);
  ASSERT_FALSE(sections.empty());
  const Chart& reward = sections[0].charts.at(0);
  ASSERT_EQ(reward.traces.size(), 2u);
  EXPECT_TRUE(reward.traces[0].band);
  EXPECT_DOUBLE_EQ(reward.traces[0].points[0].y, 2.5);
  EXPECT_DOUBLE_EQ(reward.traces[0].points[0].low, 2);
  EXPECT_DOUBLE_EQ(reward.traces[0].points[0].high, 3);
  EXPECT_FALSE(reward.traces[1].band);
}

TEST(ProgressLines, SayWhatIsWrittenAndHowLongItTakes) {
  IterationProgress progress{.phase = "rollout", .iteration = 3, .iterations = 40, .seconds = 70};
  EXPECT_EQ(to_text(progress), "iteration 3/40, rollout: 1 min 10 s");
  progress.of = 256;
  progress.answers = 37;
  EXPECT_EQ(to_text(progress), "iteration 3/40, rollout: 37 of 256 answers");
  progress.tokens_per_second = 210.4;
  progress.seconds_left = 362;
  EXPECT_EQ(to_text(progress),
            "iteration 3/40, rollout: 37 of 256 answers, 210 tok/s, about 6 min 2 s left");
}

TEST(Charts, AxesHaveRoundNumbersAndUnits) {
  Chart chart{.title = "T", .unit = Unit::bytes, .from_zero = true};
  chart.traces.push_back({.name = "a", .points = {{1, 1.5e9}, {2, 3.2e9}}});
  const std::string drawn = to_html(chart, {.last_iteration = 2});
  EXPECT_THAT(drawn, HasSubstr(">GiB</text>"));
  EXPECT_THAT(drawn, HasSubstr(">2</text>"));
  chart.unit = Unit::number;
  chart.traces[0].points = {{1, 1e-6}, {2, 3e-6}};
  EXPECT_THAT(to_html(chart, {.last_iteration = 2}), HasSubstr("×1e-6"));
  chart.traces[0].points = {{1, 5}};
  EXPECT_THAT(to_html(chart, {.last_iteration = 1}), HasSubstr("<circle")) << "one point is seen";
  chart.traces[0].points.clear();
  EXPECT_EQ(to_html(chart, {}), "");
  for (const double flat : {0.0, -2.0, 1e12}) {
    chart.traces[0].points = {{1, flat}, {2, flat}};
    EXPECT_THAT(to_html(chart, {.last_iteration = 2}), Not(testing::ContainsRegex("nan|inf")))
        << flat;
  }
}

}  // namespace
}  // namespace trireme::report
