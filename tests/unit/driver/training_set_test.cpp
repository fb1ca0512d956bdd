#include "driver/training_set.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <unistd.h>

#include "support/world.hpp"

namespace trireme::driver {
namespace {

using test::world;

const data::Tokenizer& tokenizer() {
  static const auto tokenizer =
      data::Tokenizer::load(std::filesystem::path(__FILE__).parent_path() / "../../../inputs/tutorial/tokenizer");
  return tokenizer;
}

// Written by each rank for itself.
data::SetOptions lines(const std::string& text) {
  const auto file = std::filesystem::temp_directory_path() / ("trireme-training-set-" + std::to_string(getpid()) + ".jsonl");
  std::ofstream(file) << text;
  data::SetOptions options;
  options.files = {file};
  return options;
}

TrainingSet pairs(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "{\"prompt\": \"" + std::string(static_cast<size_t>(1 + i % 5), 'p') + "\", \"chosen\": \"yes\", \"rejected\": \"" +
            std::string(static_cast<size_t>(1 + 3 * i % 7), 'n') + "\", \"margin\": " + std::to_string(i) + "}\n";
  }
  return TrainingSet(data::PreferenceSet::load(lines(text), tokenizer()));
}

TEST(TrainingSet, APairIsTwoSequencesWithTheAnswersMasked) {
  const TrainingSet set = pairs(2);
  Samples samples;
  set.append(1, samples);
  samples.check();
  ASSERT_EQ(samples.size(), 2);
  EXPECT_EQ(samples.tokens(), set.tokens(1));
  EXPECT_EQ(set.margin(1), 1);
  for (int64_t i = 0; i < 2; ++i) {
    const auto first = samples.action_mask.begin() + samples.begin(i);
    EXPECT_EQ(std::accumulate(first, first + samples.prompt_len[static_cast<size_t>(i)], 0), 0);
    EXPECT_EQ(std::accumulate(first, first + samples.length(i), int64_t{0}), samples.response_len(i));
  }
  EXPECT_EQ(samples.response_len(0), 4) << "yes and the end token";
}

TEST(TrainingSet, ATextIsLearnedWholeAndAnExampleInItsAnswer) {
  const TrainingSet set(data::SftSet::load(lines("{\"text\": \"abc\"}\n{\"prompt\": \"abc\", \"response\": \"d\"}\n"), tokenizer()));
  Samples samples;
  for (const int64_t row : {0, 1}) set.append(row, samples);
  samples.check();
  const auto marked = [&](int64_t i) {
    const auto first = samples.action_mask.begin() + samples.begin(i);
    return std::accumulate(first, first + samples.length(i), int64_t{0});
  };
  EXPECT_EQ(marked(0), samples.length(0));
  EXPECT_EQ(marked(1), 2) << "d and the end token";
}

// Every pair is on one rank, in one micro-batch; all ranks have the same number of these and the same totals.
TEST(TrainingSet, RowsAreSharedOutOnce) {
  const TrainingSet set = pairs(13);
  std::vector<int64_t> rows(13);
  std::iota(rows.begin(), rows.end(), int64_t{0});
  for (const int64_t budget : {20, 60, 100000}) {
    const auto batches = share_out(set, rows, world(), budget);
    EXPECT_EQ(world().max(static_cast<int64_t>(batches.size())), static_cast<int64_t>(batches.size()));
    std::vector<double> seen(13, 0.0);
    for (const RowBatch& batch : batches) {
      ASSERT_EQ(batch.samples.size(), 2 * static_cast<int64_t>(batch.margins.size()));
      EXPECT_TRUE(batch.margins.size() <= 1 || batch.samples.tokens() <= budget);
      for (size_t i = 0; i < batch.margins.size(); ++i) {
        const int64_t row = batch.samples.prompt_row[2 * i];
        EXPECT_EQ(batch.samples.prompt_row[2 * i + 1], row);
        EXPECT_EQ(batch.margins[i], static_cast<float>(row));
        ++seen[static_cast<size_t>(row)];
      }
    }
    world().all_reduce(seen.data(), 13, comm::DType::f64, comm::Op::sum);
    EXPECT_EQ(seen, std::vector<double>(13, 1.0));
    const BatchTotals totals = totals_of(batches, world());
    EXPECT_EQ(totals.rows, 13);
    EXPECT_EQ(totals.sequences, 26);
    int64_t tokens = 0;
    for (const int64_t row : rows) tokens += set.tokens(row);
    EXPECT_EQ(totals.tokens, static_cast<double>(tokens));
  }
}

}  // namespace
}  // namespace trireme::driver
