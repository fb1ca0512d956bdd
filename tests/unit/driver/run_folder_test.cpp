// What a run leaves in its folder: the folder itself, samples.jsonl, the output files of the tools.
#include "driver/run_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/samples.hpp"
#include "tools/output.hpp"
#include "trireme/base/files.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/report/sample_log.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::driver {
namespace {

namespace fs = std::filesystem;
using config::error_of;
using nlohmann::json;
using test::SharedFolder;
using test::world;
using testing::ElementsAre;
using testing::HasSubstr;

config::Options options_of(const fs::path& folder) {
  config::Options options;
  options.run.dir = folder.string();
  options.run.log_level = config::LogLevel::error;
  return options;
}

TEST(RunFolder, AFreshOneHasAllPlaces) {
  const SharedFolder parent;
  config::Options options = options_of(parent.path() / "a new" / "run");
  options.run.seed = 17;
  {
    const RunFolder folder(options, world());
    world().barrier();
    EXPECT_TRUE(fs::is_directory(folder.checkpoints()));
    EXPECT_EQ(config::parse_deck(base::read_file(folder.path() / "deck.toml")), options)
        << "complete";
    EXPECT_EQ(folder.deck(), base::read_file(folder.path() / "deck.toml"));
    EXPECT_EQ(folder.stop_file(), folder.path() / "stop");
    world().barrier();
  }
  world().barrier();
  std::array<char, 32> log{};
  std::snprintf(log.data(), log.size(), "rank-%05d.log", world().rank());
  EXPECT_TRUE(fs::exists(fs::path(options.run.dir) / "logs" / log.data()));
  EXPECT_TRUE(fs::exists(fs::path(options.run.dir) / "log.txt"));
}

TEST(RunFolder, TheNextRunForgetsARequestThatWasObeyedAndKeepsTheRest) {
  const SharedFolder parent;
  const config::Options options = options_of(parent.path());
  { const RunFolder first(options, world()); }
  world().barrier();
  if (world().rank() == 0) {
    for (const char* file : {"stopped", "save"}) std::ofstream(parent.path() / file) << "";
    std::ofstream(parent.path() / "metrics.jsonl") << "{}\n";
  }
  world().barrier();
  const RunFolder second(options, world());
  world().barrier();
  EXPECT_FALSE(fs::exists(second.obeyed_stop_file())) << "it asked the last run to stop";
  EXPECT_FALSE(fs::exists(second.save_file()));
  EXPECT_EQ(base::read_file(parent.path() / "metrics.jsonl"), "{}\n");
  EXPECT_EQ(second.lock().fence(), 2);
  world().barrier();
}

TEST(RunFolder, AStopThatNobodyHasObeyedEndsTheNextStartOnce) {
  const SharedFolder parent;
  const config::Options options = options_of(parent.path());
  if (world().rank() == 0) std::ofstream(parent.path() / "stop") << "";
  world().barrier();
  EXPECT_THAT(
      error_of(ExitCode::stopped_with_checkpoint, [&] { RunFolder refused(options, world()); }),
      HasSubstr("start the same command again"));
  world().barrier();
  EXPECT_TRUE(fs::exists(parent.path() / "stopped"))
      << "scripts see by it that they must not come back";
  EXPECT_FALSE(fs::exists(parent.path() / "stop"));
  world().barrier();
  const RunFolder next(options, world());
  world().barrier();
  EXPECT_FALSE(fs::exists(next.obeyed_stop_file()));
  world().barrier();
}

TEST(RunFolder, ADeckOfTheUserInItIsKept) {
  const SharedFolder parent;
  const config::Options options = options_of(parent.path());
  const std::string own = "# why 17\n[run]\nseed = 17\n";
  if (world().rank() == 0) std::ofstream(parent.path() / "deck.toml") << own;
  world().barrier();
  const RunFolder folder(options, world());
  for (int time = 0; time < 2; ++time) {
    world().barrier();
    if (world().rank() == 0) folder.keep_deck();
    world().barrier();
    EXPECT_EQ(base::read_file(parent.path() / "deck.given.toml"), own);
    EXPECT_EQ(base::read_file(parent.path() / "deck.toml"), folder.deck());
  }
  world().barrier();
}

TEST(RunFolder, TheDeckThatScriptsReadIsReplacedWhenNothingRefusesTheNewOne) {
  const SharedFolder parent;
  config::Options options = options_of(parent.path());
  { const RunFolder first(options, world()); }
  world().barrier();
  options.run.seed = 17;
  const RunFolder second(options, world());
  world().barrier();
  EXPECT_NE(base::read_file(parent.path() / "deck.toml"), second.deck());
  world().barrier();
  if (world().rank() == 0) second.keep_deck();
  world().barrier();
  EXPECT_EQ(base::read_file(parent.path() / "deck.toml"), second.deck());
  world().barrier();
}

TEST(RunFolder, IsRefusedToASecondRunOnEveryRank) {
  const SharedFolder parent;
  const config::Options options = options_of(parent.path());
  const RunFolder first(options, world());
  EXPECT_THAT(error_of(ExitCode::locked, [&] { RunFolder second(options, world()); }),
              HasSubstr(parent.path().string()));
}

TEST(RunFolder, APlaceThatCannotBeIsOneErrorOnEveryRank) {
  const SharedFolder parent;
  if (world().rank() == 0) std::ofstream(parent.path() / "file") << "";
  world().barrier();
  const auto refused = [&] {
    RunFolder folder(options_of(parent.path() / "file" / "run"), world());
  };
  EXPECT_THAT(error_of(ExitCode::io_error, refused),
              testing::AllOf(HasSubstr("file/run"), HasSubstr("choose another run.dir")));
}

// ---- Two folders, one writer ----

config::Options saving_in(const fs::path& run, const fs::path& checkpoints) {
  config::Options options = options_of(run);
  options.ckpt.path = checkpoints.string();
  return options;
}

TEST(RunFolder, TwoRunsMayNotSaveInOneFolder) {
  const SharedFolder parent;
  const auto options = saving_in(parent.path() / "one", parent.path() / "saved");
  {
    const RunFolder first(options, world());
    EXPECT_NE(&first.lock(), &first.checkpoint_lock());
    EXPECT_THAT(error_of(ExitCode::locked,
                         [&] {
                           RunFolder second(
                               saving_in(parent.path() / "two", parent.path() / "saved"), world());
                         }),
                testing::AllOf(HasSubstr("folder of checkpoints"), HasSubstr("saved")));
    world().barrier();
    const RunFolder elsewhere(saving_in(parent.path() / "two", parent.path() / "apart"), world());
    world().barrier();
  }
  world().barrier();
  EXPECT_NO_THROW(RunFolder(saving_in(parent.path() / "two", parent.path() / "saved"), world()))
      << "it was given back";
}

TEST(RunFolder, CheckpointsInTheRunFolderItselfAreUnderItsLock) {
  const SharedFolder parent;
  const auto run = parent.path() / "run";
  for (const fs::path& same : {run, parent.path() / "elsewhere/../run"}) {
    const RunFolder folder(saving_in(run, same), world());
    EXPECT_EQ(&folder.lock(), &folder.checkpoint_lock()) << same;
    EXPECT_TRUE(fs::equivalent(folder.checkpoints(), run));
    world().barrier();
  }
}

TEST(RunFolder, WhatAnEndLeftOfACheckpointIsPutRight) {
  const SharedFolder parent;
  const auto ckpt = parent.path() / "ckpt";
  if (world().rank() == 0) {
    for (const char* name : {".step-000003.tmp", ".step-000002.tmp.old", "step-000001",
                             ".step-000001.tmp.old", "notes"}) {
      fs::create_directories(ckpt / name);
      std::ofstream(ckpt / name / "manifest.json") << name;
    }
  }
  world().barrier();
  const RunFolder folder(options_of(parent.path()), world());
  world().barrier();
  EXPECT_FALSE(fs::exists(ckpt / ".step-000003.tmp")) << "never committed";
  EXPECT_EQ(base::read_file(ckpt / "step-000002/manifest.json"), ".step-000002.tmp.old")
      << "it was moved aside and not replaced";
  EXPECT_EQ(base::read_file(ckpt / "step-000001/manifest.json"), "step-000001")
      << "it was replaced";
  EXPECT_FALSE(fs::exists(ckpt / ".step-000001.tmp.old"));
  EXPECT_TRUE(fs::exists(ckpt / "notes")) << "somebody else's";
  world().barrier();
}

// ---- samples.jsonl ----

const data::PromptSet& prompts() {
  static const auto set =
      data::PromptSet::load(test::lines("{\"prompt\": \"1+1=\", \"label\": \"2\"}\n{\"prompt\": "
                                        "\"say \\\"}\\\"\\n\", \"label\": {\"a\": 1}}\n"),
                            test::tokenizer());
  return set;
}

// Two samples per rank with ids that alternate over the ranks, the higher one first.
Samples answers() {
  Samples samples;
  for (const int round : {1, 0}) {
    const auto id = static_cast<uint64_t>(round * world().size() + world().rank());
    const std::string answer = id % 2 ? "\"}\n\\ {" : "2";
    const auto ids = test::tokenizer().encode(answer, text::SpecialTokens::none);
    samples.id.push_back(id);
    samples.prompt_row.push_back(static_cast<int64_t>(id % 2));
    samples.prompt_len.push_back(1);
    samples.finish_reason.push_back(round ? FinishReason::length : FinishReason::stop);
    samples.ids.push_back(5);
    samples.ids.insert(samples.ids.end(), ids.begin(), ids.end());
    samples.cu_seqlens.push_back(static_cast<int64_t>(samples.ids.size()));
    samples.reward.push_back(id == 0 ? std::numeric_limits<float>::quiet_NaN()
                                     : static_cast<float>(id) / 8);
  }
  samples.action_mask.assign(samples.ids.size(), 1);
  samples.log_probs.assign(samples.ids.size(), -1);
  samples.version.assign(samples.ids.size(), 0);
  return samples;
}

std::vector<json> read_lines(const fs::path& path) {
  std::istringstream in(base::read_file(path));
  std::vector<json> out;
  for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
  return out;
}

TEST(SampleLog, TheFirstOfAllRanksInTheOrderOfTheirIds) {
  const SharedFolder folder;
  const auto path = folder.path() / "samples.jsonl";
  const int64_t all = 2 * world().size();
  for (const int64_t count : {int64_t{0}, int64_t{1}, all - 1, all, all + 5, int64_t{-1}}) {
    if (world().rank() == 0) fs::remove(path);
    report::append_sample_log(world(), {path, prompts(), test::tokenizer(), count},
                              answers().sorted(), 4);
    if (world().rank() != 0) continue;
    const auto lines = read_lines(path);
    ASSERT_EQ(static_cast<int64_t>(lines.size()), count < 0 ? all : std::min(count, all));
    for (size_t i = 0; i < lines.size(); ++i) {
      const json& line = lines[i];
      const bool odd = i % 2 == 1;
      EXPECT_EQ(line.at("iteration"), 4);
      EXPECT_EQ(line.at("id"), i);
      EXPECT_EQ(line.at("prompt"), odd ? "say \"}\"\n" : "1+1=");
      EXPECT_EQ(line.at("response"), odd ? "\"}\n\\ {" : "2");
      EXPECT_EQ(line.at("label"), odd ? "{\"a\":1}" : "2");
      EXPECT_EQ(line.at("finish_reason"),
                static_cast<int64_t>(i) < world().size() ? "stop" : "length");
      if (i == 0) {
        EXPECT_TRUE(line.at("reward").is_null()) << "NaN";
      } else {
        EXPECT_EQ(line.at("reward"), static_cast<double>(i) / 8);
      }
    }
  }
}

// Nobody loses a run for its log of samples: a full disk is a warning (side_output()).
TEST(SampleLog, AFullDiskEndsNoRun) {
  EXPECT_NO_THROW(report::append_sample_log(world(), {"/dev/full", prompts(), test::tokenizer(), 1},
                                            answers(), 1));
}

TEST(SampleLog, ForgetsWhatTheCheckpointDoesNotKnow) {
  if (world().size() > 1) GTEST_SKIP() << "one rank calls it";
  const SharedFolder folder;
  const auto path = folder.path() / "samples.jsonl";
  report::trim_sample_log(path, 3);
  EXPECT_FALSE(fs::exists(path)) << "nothing was logged yet";
  for (int64_t iteration : {1, 2, 3, 4, 30})
    report::append_sample_log(world(), {path, prompts(), test::tokenizer()}, answers().sorted(),
                              iteration);
  std::ofstream(path, std::ios::app)
      << "{\"iteration\": 2, \"id\": 7, \"prompt\": \"a line cut sho";
  report::trim_sample_log(path, 3);
  std::vector<int64_t> iterations;
  for (const json& line : read_lines(path)) iterations.push_back(line.at("iteration"));
  EXPECT_THAT(iterations, ElementsAre(1, 1, 2, 2, 3, 3));
  report::append_sample_log(world(), {path, prompts(), test::tokenizer(), 1}, answers().sorted(),
                            4);
  EXPECT_EQ(read_lines(path).back().at("iteration"), 4) << "the next line begins on its own";
}

// The log of a long run is larger than the memory, and the disk may be nearly full.
TEST(SampleLog, IsCutInPlace) {
  if (world().size() > 1) GTEST_SKIP() << "one rank calls it";
  const SharedFolder folder;
  const auto path = folder.path() / "samples.jsonl";
  const auto peak_kib = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
    }
    return -1ll;
  };
  const auto lines = [&path](int64_t iteration) {
    std::ofstream(path, std::ios::app) << "{\"iteration\": " << iteration << ", \"id\": 1}\n";
  };
  lines(1);
  const auto small = fs::file_size(path);
  fs::resize_file(path, small + (uint64_t{256} << 20));  // a hole: one long line
  std::ofstream(path, std::ios::app) << "\n";
  for (const int64_t iteration : {2, 3, 11, 12}) lines(iteration);
  const auto all = fs::file_size(path);
  fs::create_hard_link(path, folder.path() / "same");
  const auto before = peak_kib();
  report::trim_sample_log(path, 12);
  EXPECT_EQ(fs::file_size(path), all);
  report::trim_sample_log(path, 3);
  const auto kept = fs::file_size(path);
  EXPECT_LT(kept, all);
  EXPECT_LT(peak_kib() - before, 64 << 10);
  EXPECT_TRUE(fs::equivalent(path, folder.path() / "same")) << "no second file was written";
  std::ifstream in(path);
  in.seekg(static_cast<std::streamoff>(kept - 26));
  std::string tail(std::istreambuf_iterator<char>(in), {});
  EXPECT_TRUE(tail.ends_with("{\"iteration\": 3, \"id\": 1}\n")) << tail;
  report::trim_sample_log(path, 1);
  EXPECT_EQ(fs::file_size(path), small + (uint64_t{256} << 20) + 1)
      << "what is no line of ours stays";
  report::trim_sample_log(path, 0);
  EXPECT_EQ(fs::file_size(path), 0u);
}

// ---- output of the tools ----

TEST(OutputFile, HasItsNameWhenItIsWhole) {
  if (world().size() > 1) GTEST_SKIP() << "one rank writes";
  const SharedFolder folder;
  const auto path = folder.path() / "out.jsonl";
  std::ofstream(path) << "of the last time\n";
  {
    tools::OutputFile output(path, tools::Existing::replaced);
    output.write("one\n");
    EXPECT_EQ(base::read_file(path), "of the last time\n");
    EXPECT_EQ(base::read_file(folder.path() / "out.jsonl.partial"), "one\n")
        << "lines can be read as they come";
    output.write("two\n");
    output.finish({{"kind", "test"}});
  }
  EXPECT_EQ(base::read_file(path), "one\ntwo\n");
  EXPECT_FALSE(fs::exists(folder.path() / "out.jsonl.partial"));
  EXPECT_THAT(error_of(ExitCode::input_missing,
                       [&] {
                         tools::OutputFile output(folder.path() / "no-such" / "out",
                                                  tools::Existing::refused);
                       }),
              HasSubstr("no-such/out"));
}

TEST(OutputFile, ADashIsStandardOutput) {
  testing::internal::CaptureStdout();
  tools::OutputFile output("-", tools::Existing::refused);
  output.write("line\n");
  output.finish({{"kind", "test"}});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "line\n");
}

}  // namespace
}  // namespace trireme::driver
