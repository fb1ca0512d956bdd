// What sinks write, and that restarts and full disks leave no trace in it. The other programs'
// readers are in tests/interop/sinks.py.
#include "trireme/report/metrics_sink.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "report/wire_formats.hpp"
#include "support/file_size_limit.hpp"
#include "support/text_files.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/key_table.hpp"
#include "trireme/report/run_reporter.hpp"
#include "unit/report/log_capture.hpp"

namespace trireme::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Checksums, AsOthersComputeThem) {
  EXPECT_EQ(crc32(Crc::ieee, "123456789"), 0xCBF43926u);
  EXPECT_EQ(crc32(Crc::castagnoli, "123456789"), 0xE3069283u);  // RFC 3720, B.4
  EXPECT_EQ(crc32(Crc::castagnoli, std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32(Crc::ieee, ""), 0u);
}

TEST(Protobuf, AsItsDocumentationEncodes) {
  EXPECT_EQ(ProtoMessage().add_integer(1, 150).bytes(), std::string("\x08\x96\x01"));
  EXPECT_EQ(ProtoMessage().add_bytes(2, "testing").bytes(), std::string("\x12\x07testing"));
  EXPECT_EQ(ProtoMessage().add_integer(1, -1).bytes().size(), 11u) << "ten bytes and a tag";
  EXPECT_EQ(ProtoMessage().add_double(16, 1).bytes(),
            std::string("\x81\x01\0\0\0\0\0\0\xF0\x3F", 10));
}

TEST(Sinks, TheDeckHasTheirNames) {
  for (const config::KeyInfo& key : config::key_infos()) {
    if (key.name != "report.sinks") continue;
    for (const std::string& name : sink_names()) {
      EXPECT_THAT(key.type + key.allowed, HasSubstr(name));
      EXPECT_THAT(key.help, HasSubstr(name));
    }
    return;
  }
  ADD_FAILURE() << "there is no key report.sinks";
}

// A run with all sinks, as RunControl drives it.
class SinksOfARun : public testing::Test {
 protected:
  RunRecord facts(int64_t after) const {
    return {.command = "ppo",
            .name = "a \"run\"",
            .iterations = 9,
            .starts = {{.time = 1e9 + static_cast<double>(after), .after = after, .ranks = 1}}};
  }
  static IterationMetrics metrics_of(int64_t iteration, double shift) {
    IterationMetrics metrics;
    metrics.iteration = iteration;
    metrics.time = 1e9 + 10 * static_cast<double>(iteration);
    metrics.set("reward", static_cast<double>(iteration) / 3 + shift);
    metrics.set("kl", std::nan(""));
    if (iteration % 2 == 0) metrics.set("eval_reward_judge/a,b", 0.5);
    metrics.seconds["total"] = 2;
    return metrics;
  }
  // Writes iterations as a run that goes on after `after`.
  void run(int64_t after, int64_t last, double shift, bool ends = true) {
    cut(after);
    RunReporter reporter(folder_.path(), facts(after), sink_names());
    for (int64_t i = after + 1; i <= last; ++i) add(reporter, i, shift);
    if (ends) reporter.end(0, "done");
  }
  void add(RunReporter& reporter, int64_t iteration, double shift) {
    const IterationMetrics metrics = metrics_of(iteration, shift);
    std::ofstream(folder_.path() / "metrics.jsonl", std::ios::app) << to_json(metrics) << "\n";
    reporter.add(metrics, to_json(metrics));
  }
  void cut(int64_t after) {
    std::string kept;
    LineFollower(folder_.path() / "metrics.jsonl").read([&](std::string_view line) {
      if (parse_metric_line(line)->iteration <= after) kept += std::string(line) + "\n";
    });
    folder_.write("metrics.jsonl", kept);
  }
  // Every file of the sinks, by its path.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> out;
    for (const char* place : {"metrics.csv", "mlruns", "tensorboard", "wandb"}) {
      const auto path = folder_.path() / place;
      if (std::filesystem::is_regular_file(path)) out[place] = test::read_text(path);
      if (!std::filesystem::is_directory(path)) continue;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
        if (entry.is_regular_file())
          out[entry.path().lexically_relative(folder_.path())] = test::read_text(entry.path());
    }
    return out;
  }

  const test::TemporaryFolder folder_;
  const LogCapture log_;
};

TEST_F(SinksOfARun, EachHasTheNumbers) {
  run(0, 4, 0);
  const auto all = files();
  EXPECT_EQ(all.at("metrics.csv"),
            "iteration,time,reward,tokens,version,seconds.total,\"eval_reward_judge/a,b\"\n"
            "1,1000000010,0.33333333333333331,0,0,2,\n"
            "2,1000000020,0.66666666666666663,0,0,2,0.5\n"
            "3,1000000030,1,0,0,2,\n"
            "4,1000000040,1.3333333333333333,0,0,2,0.5\n");
  int metrics = 0, events = 0, offline = 0;
  for (const auto& [name, content] : all) {
    if (name.ends_with("/metrics/reward")) {
      ++metrics;
      EXPECT_THAT(content, testing::StartsWith("1000000010000 0.33333333333333331 1\n"));
    }
    if (name.ends_with("/metrics/eval_reward_judge.a_b")) ++metrics;
    if (name.starts_with("tensorboard/events.out.tfevents.1000000000.")) ++events;
    if (name.starts_with("wandb/offline-run-20010909_014640-") && name.ends_with(".wandb")) {
      ++offline;
      EXPECT_THAT(content, testing::StartsWith(":W&B"));
    }
  }
  EXPECT_EQ(metrics, 2);
  EXPECT_EQ(events, 1);
  EXPECT_EQ(offline, 1);
}

// A run that is killed after iteration 5 and goes on from a checkpoint of iteration 2, with other
// numbers: its files are those of a run that was never interrupted.
TEST_F(SinksOfARun, ARestartLeavesNoTrace) {
  run(0, 2, 0);
  run(2, 6, 0.5);
  const auto whole = files();
  for (const char* place : {"metrics.csv", "mlruns", "tensorboard", "wandb", "metrics.jsonl"})
    std::filesystem::remove_all(folder_.path() / place);
  run(0, 5, 0, false);
  run(2, 6, 0.5);
  EXPECT_EQ(files(), whole);
}

// What found no room is there once there is some.
TEST_F(SinksOfARun, AFullDiskIsMadeUpFor) {
  run(0, 6, 0);
  const auto whole = files();
  for (const auto& name : {"metrics.csv", "mlruns", "tensorboard", "wandb", "metrics.jsonl"})
    std::filesystem::remove_all(folder_.path() / name);
  std::filesystem::remove(folder_.path() / "status.json");
  RunReporter reporter(folder_.path(), facts(0), sink_names());
  for (int64_t i = 1; i <= 6; ++i) {
    const IterationMetrics metrics = metrics_of(i, 0);
    std::ofstream(folder_.path() / "metrics.jsonl", std::ios::app) << to_json(metrics) << "\n";
    std::optional<test::FileSizeLimit> full;
    if (i == 3 || i == 4) full.emplace(20);
    reporter.add(metrics, to_json(metrics));
  }
  reporter.end(0, "done");
  EXPECT_EQ(files(), whole);
}

}  // namespace
}  // namespace trireme::report
