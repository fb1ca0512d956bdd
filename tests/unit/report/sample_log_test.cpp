// samples.jsonl: which samples, and where it is cut. The rest of it is in
// tests/unit/driver/run_folder_test.cpp.
#include "trireme/report/sample_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "support/file_size_limit.hpp"
#include "support/samples.hpp"
#include "trireme/base/files.hpp"
#include "unit/config/expect_error.hpp"
#include "unit/report/log_capture.hpp"

namespace trireme::report {
namespace {

using test::SharedFolder;
using testing::HasSubstr;

data::PromptSet one_prompt() {
  return data::PromptSet::load(test::lines("{\"prompt\": \"1+1=\", \"label\": \"2\"}\n"),
                               test::tokenizer());
}

// These ids, in this order, all of the same prompt.
Samples samples_with(const std::vector<uint64_t>& ids) {
  Samples samples;
  for (const uint64_t id : ids)
    samples.add({.id = id, .prompt_row = 0, .ids = {5, 6, 7}, .action_ranges = {{1, 3}}});
  samples.reward.assign(ids.size(), 0.5F);
  return samples;
}

// Sequences arrive in the order in which they were finished, and ranks have uneven shares: the last
// one has none.
TEST(SampleLogChoice, TheSmallestIdsWhateverTheirOrder) {
  const SharedFolder folder;
  const auto path = folder.path() / "samples.jsonl";
  const auto prompts = one_prompt();
  std::mt19937 random(3);
  std::vector<uint64_t> mine, all;
  for (uint64_t id = 0; id < 40; ++id) {
    all.push_back(7 * id + 1);
    const auto holders = static_cast<uint64_t>(std::max(1, test::world().size() - 1));
    if (random() % holders == static_cast<uint64_t>(test::world().rank()))
      mine.push_back(all.back());
  }
  std::shuffle(mine.begin(), mine.end(), std::mt19937(static_cast<uint32_t>(test::world().rank())));
  for (const int64_t count : {1, 3, 39, 40, 1000, -1}) {
    if (test::world().rank() == 0) std::filesystem::remove(path);
    append_sample_log(test::world(), {path, prompts, test::tokenizer(), count}, samples_with(mine),
                      2);
    if (test::world().rank() != 0) continue;
    std::vector<uint64_t> ids;
    std::istringstream lines(base::read_file(path));
    for (std::string line; std::getline(lines, line);)
      ids.push_back(nlohmann::json::parse(line).at("id"));
    EXPECT_EQ(ids, std::vector<uint64_t>(all.begin(),
                                         count < 0 || count > 40 ? all.end() : all.begin() + count))
        << count;
  }
}

TEST(SampleLogChoice, NoSampleAnywhere) {
  const SharedFolder folder;
  const auto path = folder.path() / "samples.jsonl";
  append_sample_log(test::world(), {path, one_prompt(), test::tokenizer()}, Samples{}, 1);
  if (test::world().rank() != 0) return;
  EXPECT_EQ(base::read_file(path), "");
}

// The lines of an iteration are there together or not at all, and the next iteration's begin on
// their own.
TEST(SampleLogChoice, AFullDiskLeavesNoHalfLine) {
  if (test::world().size() > 1) GTEST_SKIP() << "one rank writes";
  const SharedFolder folder;
  const LogCapture log;
  const auto path = folder.path() / "full-samples.jsonl";
  const auto prompts = one_prompt();
  const auto append = [&](int64_t iteration) {
    append_sample_log(test::world(), {path, prompts, test::tokenizer()}, samples_with({1, 2, 3}),
                      iteration);
  };
  append(1);
  const std::string first = base::read_file(path);
  {
    const test::FileSizeLimit limit(first.size() + first.size() / 2);
    append(2);
    EXPECT_EQ(base::read_file(path), first);
  }
  append(3);
  const std::string both = base::read_file(path);
  EXPECT_TRUE(both.starts_with(first + "{\"iteration\": 3, \"id\": 1,")) << both;
  EXPECT_THAT(log.text(), HasSubstr("full-samples.jsonl could not be written (cannot write " +
                                    path.string() + " (File too large)"));
}

// Judges that said nothing about a sample, or are not on its rank, leave no member.
TEST(SampleLogChoice, JudgementsByTheirSource) {
  if (test::world().size() > 1) GTEST_SKIP() << "one rank writes";
  const SharedFolder folder;
  const auto path = folder.path() / "samples.jsonl";
  Samples samples = samples_with({1, 2, 3});
  samples.judgements["strict"] = {R"({"question":"q1","texts":["a\n"]})", "", ""};
  samples.judgements["kind"] = {R"({"question":"k1"})", R"({"question":"k2"})", ""};
  append_sample_log(test::world(), {path, one_prompt(), test::tokenizer()}, samples, 1);
  std::vector<nlohmann::json> lines;
  std::istringstream text(base::read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["judgements"]["strict"]["texts"][0], "a\n");
  EXPECT_EQ(lines[0]["judgements"]["kind"]["question"], "k1");
  EXPECT_EQ(lines[1]["judgements"], nlohmann::json::parse(R"({"kind": {"question": "k2"}})"));
  EXPECT_FALSE(lines[2].contains("judgements"));
}

// ---- where it is cut ----

// Bytes up to the first line of a later iteration, or to a last line without an end: line by line
// in memory.
size_t expected_size(const std::string& content, int64_t iteration) {
  size_t line = 0;
  while (line < content.size()) {
    const size_t end = content.find('\n', line);
    if (end == std::string::npos) return line;
    int64_t number = 0;
    const std::string text = content.substr(line, std::min<size_t>(end - line, 100));
    if (std::sscanf(text.c_str(), "{\"iteration\": %ld", &number) == 1 && number > iteration)
      return line;
    line = end + 1;
  }
  return line;
}

// The file is read in pieces of 1 MiB: a line may begin anywhere around the end of one.
TEST(SampleLogCut, IsTheSameWhereverThePiecesEnd) {
  if (test::world().size() > 1) GTEST_SKIP() << "one rank calls it";
  const SharedFolder folder;
  const auto path = folder.path() / "samples.jsonl";
  constexpr size_t piece = size_t{1} << 20;
  const std::string head = "{\"iteration\": 1, \"id\": 0, \"prompt\": \"";
  for (const size_t before :
       {0, 1, 12, 14, 15, 16, 17, 40, 63, 64}) {  // bytes of the second line in the first piece
    const std::string content = head + std::string(piece - before - head.size() - 1, 'x') +
                                "\n{\"iteration\": 12, \"id\": 3, \"response\": \"" +
                                std::string(before, 'y') + "\"}\n";
    for (const int64_t iteration : {11, 12}) {
      std::ofstream(path) << content;
      trim_sample_log(path, iteration);
      EXPECT_EQ(std::filesystem::file_size(path), iteration == 11 ? piece - before : content.size())
          << before;
    }
  }
}

TEST(SampleLogCut, AnyLinesOfAnyLength) {
  if (test::world().size() > 1) GTEST_SKIP() << "one rank calls it";
  const SharedFolder folder;
  const auto path = folder.path() / "samples.jsonl";
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::string content;
    for (int64_t iteration = 1; iteration < 30; iteration += static_cast<int64_t>(random() % 9)) {
      content += base::text("{\"iteration\": ", iteration, ", \"x\": \"",
                            std::string(random() % 90, 'x'), "\"}\n");
      if (random() % 5 == 0)
        content += std::string(random() % 3, ' ') + "\n";  // what somebody edited
    }
    if (random() % 2) content.resize(content.size() - random() % 20);  // cut short by a kill
    const auto kept = static_cast<int64_t>(random() % 30);
    std::ofstream(path, std::ios::trunc) << content;
    trim_sample_log(path, kept);
    const std::string wanted = content.substr(0, expected_size(content, kept));
    ASSERT_EQ(base::read_file(path), wanted) << "of iterations after " << kept << ":\n" << content;
    trim_sample_log(path, kept);
    ASSERT_EQ(base::read_file(path), wanted) << "again";
  }
}

TEST(SampleLogCut, ErrorsNameTheFile) {
  if (test::world().size() > 1) GTEST_SKIP() << "one rank calls it";
  const SharedFolder folder;
  const auto path = folder.path().string();
  EXPECT_THAT(config::error_of(ExitCode::io_error, [&] { trim_sample_log(path, 1); }),
              testing::StartsWith("cannot open " + path + " ("));
  EXPECT_THAT(config::error_of(ExitCode::io_error, [&] { sync_sample_log(path); }),
              testing::StartsWith("cannot open " + path + " ("));
  EXPECT_NO_THROW(sync_sample_log(folder.path() / "none"));
}

}  // namespace
}  // namespace trireme::report
