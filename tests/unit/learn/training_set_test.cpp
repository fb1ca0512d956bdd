#include "trireme/learn/training_set.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "support/samples.hpp"
#include "support/world.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::learn {
namespace {

using test::world;

using test::lines;
using test::tokenizer;

TrainingSet pairs(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "{\"prompt\": \"" + std::string(static_cast<size_t>(1 + i % 5), 'p') +
            "\", \"chosen\": \"yes\", \"rejected\": \"" +
            std::string(static_cast<size_t>(1 + 3 * i % 7), 'n') +
            "\", \"margin\": " + std::to_string(i) + "}\n";
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
    EXPECT_EQ(std::accumulate(first, first + samples.length(i), int64_t{0}),
              samples.response_len(i));
  }
  EXPECT_EQ(samples.response_len(0), 4) << "yes and the end token";
}

TEST(TrainingSet, ATextIsLearnedWholeAndAnExampleInItsAnswer) {
  const TrainingSet set(data::SftSet::load(
      lines("{\"text\": \"abc\"}\n{\"prompt\": \"abc\", \"response\": \"d\"}\n"), tokenizer()));
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

// Every pair is on one rank, in one micro-batch; all ranks have the same number of these and the
// same totals.
TEST(TrainingSet, RowsAreSharedOutOnce) {
  const TrainingSet set = pairs(13);
  std::vector<int64_t> rows(13);
  std::iota(rows.begin(), rows.end(), int64_t{0});
  for (const int64_t budget : {20, 60, 100000}) {
    const auto batches = share_out(set, rows, world(), budget);
    EXPECT_EQ(world().max(static_cast<int64_t>(batches.size())),
              static_cast<int64_t>(batches.size()));
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

// Batches of 5 from 13 rows, as the loop draws them: over 5 epochs every row is learned from five
// times, on some one rank.
TEST(TrainingSet, EveryRowOncePerEpochAndRanksAlikeInLoad) {
  const TrainingSet set = pairs(13);
  int64_t largest = 0;
  for (int64_t row = 0; row < set.size(); ++row) largest = std::max(largest, set.tokens(row));
  data::PromptSampler sampler({.sizes = {13},
                               .weights = {},
                               .seed = 5,
                               .order = data::Order::shuffled,
                               .epoch_end = data::EpochEnd::carry_over});
  std::vector<double> seen(13, 0.0);
  for (int draw = 0; draw < 13; ++draw) {
    const auto rows = sampler.draw(5);
    int64_t tokens = 0;
    for (const RowBatch& batch : share_out(set, rows, world(), 1000)) {
      tokens += batch.samples.tokens();
      for (int64_t i = 0; i < batch.samples.size(); i += 2)
        ++seen[static_cast<size_t>(batch.samples.prompt_row[static_cast<size_t>(i)])];
    }
    EXPECT_LE(world().max(tokens) - world().min(tokens), largest) << "draw " << draw;
  }
  world().all_reduce(seen.data(), 13, comm::DType::f64, comm::Op::sum);
  EXPECT_EQ(seen, std::vector<double>(13, 5.0));
}

TEST(TrainingSet, ARankWithoutRowsHasEmptyBatches) {
  const TrainingSet set = pairs(2);
  const std::vector<int64_t> one{1};
  const auto batches = share_out(set, one, world(), 1000);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(world().sum(batches[0].samples.size()), 2);
  EXPECT_EQ(totals_of(batches, world()).rows, 1);
  EXPECT_EQ(totals_of({}, world()).tokens, 0);
  for (const RowBatch& batch : share_out(set, {}, world(), 1000))
    EXPECT_EQ(batch.samples.size(), 0);
}

}  // namespace
}  // namespace trireme::learn
