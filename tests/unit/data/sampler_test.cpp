#include "trireme/data/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "support/text_files.hpp"

namespace trireme::data {
namespace {

TEST(PromptSampler, EachEpochIsAPermutation) {
  PromptSampler sampler({.sizes = {7, 5}, .weights = {}, .seed = 3});
  std::vector<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 4; ++epoch) {
    EXPECT_EQ(sampler.epoch(), epoch);
    std::vector<int64_t> rows;
    for (int draw = 0; draw < 3; ++draw) {
      const auto batch = sampler.draw(4);
      rows.insert(rows.end(), batch.begin(), batch.end());
    }
    epochs.push_back(rows);
    std::sort(rows.begin(), rows.end());
    std::vector<int64_t> all(12);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(rows, all);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(PromptSampler, DropLastLeavesTheRestOut) {
  PromptSampler sampler({.sizes = {10}, .weights = {}, .order = Order::file});
  EXPECT_EQ(sampler.draws_per_epoch(4), 2);
  EXPECT_EQ(sampler.draw(4), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(sampler.draw(4), (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(sampler.draw(4), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(sampler.epoch(), 1);
  const auto message = test::error_of(ExitCode::configuration, [&] { sampler.draw(11); });
  EXPECT_NE(message.find("11"), std::string::npos);
  EXPECT_NE(message.find("10"), std::string::npos);
}

TEST(PromptSampler, CarryOverUsesEveryRow) {
  PromptSampler sampler(
      {.sizes = {3}, .weights = {}, .order = Order::file, .epoch_end = EpochEnd::carry_over});
  EXPECT_EQ(sampler.draws_per_epoch(2), 2);
  EXPECT_EQ(sampler.draw(8), (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0, 1}));
}

TEST(PromptSampler, RestoredAtAnyPointGoesOnAlike) {
  for (const auto& weights : {std::vector<double>{}, std::vector<double>{0.7, 0.1, 0.2}}) {
    const SamplerOptions options{.sizes = {11, 4, 9}, .weights = weights, .seed = 42};
    PromptSampler whole(options);
    for (int stop = 0; stop < 20; ++stop) {
      PromptSampler resumed(options);
      resumed.restore(whole.state());
      PromptSampler fresh(options);
      for (int i = 0; i < stop; ++i) fresh.draw(5);
      EXPECT_EQ(fresh.state().taken, whole.state().taken);
      const auto next = whole.draw(5);
      EXPECT_EQ(resumed.draw(5), next);
      EXPECT_EQ(fresh.draw(5), next);
    }
  }
}

// A run that stops after any number of rows, whatever the sizes of its draws, has the rows of the
// run that does not stop.
TEST(PromptSampler, DrawsOfAnySizeGiveOneSequence) {
  const SamplerOptions options{
      .sizes = {5, 8}, .weights = {}, .seed = 7, .epoch_end = EpochEnd::carry_over};
  const auto whole = PromptSampler(options).draw(60);
  for (int64_t stop = 0; stop <= 40; ++stop) {
    PromptSampler first(options);
    auto rows = first.draw(stop);
    PromptSampler second(options);
    second.restore(first.state());
    EXPECT_EQ(second.epoch(), stop / 13);
    EXPECT_TRUE(second.draw(0).empty());
    for (int64_t n = 1; rows.size() + static_cast<size_t>(n) <= whole.size(); ++n) {
      const auto more = second.draw(n);
      rows.insert(rows.end(), more.begin(), more.end());
    }
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), whole.begin())) << "stopped after " << stop;
    EXPECT_GT(rows.size(), whole.size() - 14);
  }
}

TEST(PromptSampler, CarriedOverEpochsAreWhole) {
  PromptSampler sampler(
      {.sizes = {10}, .weights = {}, .seed = 4, .epoch_end = EpochEnd::carry_over});
  std::vector<int64_t> rows;
  for (int draw = 0; draw < 10; ++draw) {
    const auto batch = sampler.draw(7);
    rows.insert(rows.end(), batch.begin(), batch.end());
  }
  for (size_t epoch = 0; epoch < 7; ++epoch) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(epoch) * 10;
    EXPECT_EQ(std::set<int64_t>(begin, begin + 10).size(), 10u) << "epoch " << epoch;
  }
  EXPECT_EQ(sampler.epoch(), 7);
}

// drop_last leaves other rows out in each epoch, so in the long run every row comes equally often.
TEST(PromptSampler, RowsThatAreLeftOutChange) {
  PromptSampler sampler({.sizes = {5}, .weights = {}, .seed = 2});
  std::vector<int64_t> seen(5);
  for (int epoch = 0; epoch < 500; ++epoch) {
    for (const int64_t row : sampler.draw(4)) ++seen[static_cast<size_t>(row)];
  }
  // 400 of 500 epochs expected; the deviation of one row's count is sqrt(500 * 0.8 * 0.2) = 9
  for (const int64_t count : seen) EXPECT_NEAR(static_cast<double>(count), 400, 45);
}

TEST(PromptSampler, SeedsDecideTheOrderAndNothingElse) {
  const auto drawn = [](uint64_t seed) {
    return PromptSampler({.sizes = {50}, .weights = {}, .seed = seed}).draw(50);
  };
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 50; ++seed) orders.insert(drawn(seed));
  orders.insert(drawn(UINT64_MAX));
  EXPECT_EQ(orders.size(), 51u);
  EXPECT_EQ(drawn(9), drawn(9));
  PromptSampler in_file_order(
      {.sizes = {2, 3}, .weights = {1, 1}, .seed = 9, .order = Order::file});
  EXPECT_EQ(in_file_order.draw(7), (std::vector<int64_t>{0, 2, 1, 3, 0, 4, 1}));
}

TEST(PromptSampler, OneRow) {
  PromptSampler sampler({.sizes = {0, 1, 0}, .weights = {}});
  EXPECT_EQ(sampler.draw(1), std::vector<int64_t>{0});
  EXPECT_EQ(sampler.draw(1), std::vector<int64_t>{0});
  EXPECT_EQ(sampler.epoch(), 2);
}

TEST(PromptSampler, SharesFollowTheWeightsToWithinOneRow) {
  const std::vector<double> weights{5, 0, 2, 1.5};
  PromptSampler sampler({.sizes = {50, 0, 7, 100}, .weights = weights, .seed = 1});
  std::vector<int64_t> taken(4);
  for (int64_t k = 1; k <= 2000; ++k) {
    const int64_t row = sampler.draw(1)[0];
    ++taken[row < 50 ? 0 : row < 57 ? 2 : 3];
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_LE(std::abs(static_cast<double>(taken[i]) - weights[i] / 8.5 * static_cast<double>(k)),
                1.0 + 1e-9)
          << k;
    }
  }
  EXPECT_EQ(taken[1], 0);
}

TEST(PromptSampler, WeightedSourcesHaveEpochsOfTheirOwn) {
  PromptSampler sampler({.sizes = {4, 4}, .weights = {1, 1}, .seed = 9});
  std::vector<std::vector<int64_t>> rows(2);
  for (const int64_t row : sampler.draw(64)) rows[row < 4 ? 0 : 1].push_back(row % 4);
  for (const auto& source : rows) {
    ASSERT_EQ(source.size(), 32u);
    for (size_t epoch = 0; epoch < 8; ++epoch) {
      const std::set<int64_t> seen(source.begin() + static_cast<int64_t>(epoch) * 4,
                                   source.begin() + static_cast<int64_t>(epoch) * 4 + 4);
      EXPECT_EQ(seen.size(), 4u);
    }
  }
  EXPECT_NE(rows[0], rows[1]) << "two sources of one size are not shuffled alike";
}

TEST(PromptSampler, Refusals) {
  const auto refuse = [](SamplerOptions options) {
    return test::error_of(ExitCode::configuration,
                          [&] { PromptSampler sampler(std::move(options)); });
  };
  EXPECT_NE(refuse({.sizes = {}, .weights = {}}).find("no rows"), std::string::npos);
  EXPECT_NE(refuse({.sizes = {0, 0}, .weights = {}}).find("no rows"), std::string::npos);
  EXPECT_NE(refuse({.sizes = {1, 1}, .weights = {1}}).find("1 weights for 2 files"),
            std::string::npos);
  EXPECT_NE(refuse({.sizes = {1, 1}, .weights = {1, -1}}).find("negative"), std::string::npos);
  EXPECT_NE(refuse({.sizes = {1, 1}, .weights = {1, NAN}}).find("finite"), std::string::npos);
  EXPECT_NE(refuse({.sizes = {1, 1}, .weights = {0, 0}}).find("zero"), std::string::npos);
  EXPECT_NE(refuse({.sizes = {1, 0}, .weights = {1, 1}}).find("no usable rows"), std::string::npos);
  PromptSampler sampler({.sizes = {5}, .weights = {}});
  PromptSampler other({.sizes = {6}, .weights = {}});
  const auto message = test::error_of(ExitCode::bad_data, [&] { sampler.restore(other.state()); });
  EXPECT_NE(message.find("other data"), std::string::npos);
  for (const SamplerState& damaged : {SamplerState{{5}, {-1}}, SamplerState{{5}, {}},
                                      SamplerState{{5}, {1, 1}}, SamplerState{}}) {
    test::error_of(ExitCode::bad_data, [&] { sampler.restore(damaged); });
  }
  EXPECT_EQ(sampler.state().taken, std::vector<int64_t>{0}) << "a refused state changes nothing";
}

}  // namespace
}  // namespace trireme::data
