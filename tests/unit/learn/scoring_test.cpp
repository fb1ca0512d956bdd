// Micro-batches of action tokens against a walk over each sequence, and the scale of a score head.
#include "torch/torch.hpp"

#include "trireme/learn/scoring.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "support/samples.hpp"

namespace trireme::learn {
namespace {

std::vector<int64_t> list(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), at::kLong);
  const auto* values = tensor.const_data_ptr<int64_t>();
  return {values, values + tensor.numel()};
}

// Sequences with masks of any kind: holes (several turns), all of it (a text), nothing; one of a
// single token.
Samples of_any_mask() {
  std::mt19937 random(9);
  Samples samples = test::samples_of({4, 0, 16, 7, 11, 3, 5});
  for (auto& mask : samples.action_mask) mask = random() % 2;
  const auto fill = [&](int64_t i, uint8_t mask) {
    std::fill_n(samples.action_mask.begin() + samples.begin(i), samples.length(i), mask);
  };
  fill(1, 0);
  fill(2, 1);
  samples.ids.push_back(77);
  samples.action_mask.push_back(1);
  samples.cu_seqlens.push_back(samples.cu_seqlens.back() + 1);
  return samples;
}

TEST(ActionBatch, ColumnsAreTheActionsAndTheirPredictorsStandBefore) {
  const Samples samples = of_any_mask();
  for (const std::vector<int64_t>& which :
       {std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, {6, 2, 2, 0}, {1}, {7}, {7, 1, 7}, {}}) {
    const ActionBatch batch = make_action_batch(samples, which, at::kCPU);
    std::vector<int64_t> columns, targets, packed, actions{0};
    for (const int64_t i : which) {
      const auto first = static_cast<int64_t>(packed.size());
      for (int64_t t = 0; t < samples.length(i); ++t) {
        const auto at = static_cast<size_t>(samples.begin(i) + t);
        packed.push_back(samples.ids[at]);
        if (t == 0 || !samples.action_mask[at]) continue;  // nothing predicts a first token
        columns.push_back(first + t);
        targets.push_back(samples.ids[at]);
      }
      actions.push_back(static_cast<int64_t>(columns.size()));
    }
    EXPECT_EQ(list(batch.packed.ids), packed);
    EXPECT_EQ(list(batch.columns), columns);
    EXPECT_EQ(list(batch.targets), targets);
    for (auto& column : columns) --column;
    EXPECT_EQ(list(batch.rows), columns);
    EXPECT_EQ(batch.segments.cu_seqlens(), actions);
    EXPECT_EQ(batch.packed.sequences(), static_cast<int64_t>(which.size()));
  }
}

TEST(ActionBatch, WithoutAListItIsAllSequences) {
  const Samples samples = of_any_mask();
  std::vector<int64_t> all(static_cast<size_t>(samples.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  const ActionBatch one = make_action_batch(samples, at::kCPU);
  const ActionBatch other = make_action_batch(samples, all, at::kCPU);
  EXPECT_EQ(list(one.columns), list(other.columns));
  EXPECT_EQ(list(one.packed.ids), list(other.packed.ids));
  EXPECT_EQ(make_action_batch(Samples{}, at::kCPU).packed.tokens(), 0);
}

TEST(CriticScale, IsTheModelsOwnWhereItIsAskedForAndThere) {
  config::Options options;
  config::ModelShape shape;
  const auto scale = [&] {
    const ScoreScale s = critic_scale(options, shape);
    return std::pair(s.mean, s.deviation);
  };
  const std::pair none(0.0, 1.0);
  options.reward.normalize_enable = true;
  EXPECT_EQ(scale(), none) << "the model does not say";
  shape.score_mean = 3;
  EXPECT_EQ(scale(), none) << "half of it is nothing";
  shape.score_std = 0.5;
  EXPECT_EQ(scale(), std::pair(3.0, 0.5));
  options.reward.normalize_enable = false;
  EXPECT_EQ(scale(), none);
}

TEST(ScoreHead, IsAProductInFloatShiftedAndScaled) {
  const at::Tensor hidden = at::arange(12, at::kFloat).view({4, 3}).sub(5).div(8);
  const at::Tensor weight = at::arange(1, 4, at::kFloat).view({1, 3});
  const at::Tensor plain = score_head(hidden.to(at::kBFloat16), weight.to(at::kBFloat16));
  const at::Tensor scaled = score_head(hidden, weight, {.mean = -1, .deviation = 4});
  ASSERT_EQ(plain.sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(plain.scalar_type(), at::kFloat);
  for (int64_t a = 0; a < 4; ++a) {
    double want = 0;
    for (int64_t d = 0; d < 3; ++d)
      want += (static_cast<double>(3 * a + d) - 5) / 8 * static_cast<double>(d + 1);
    EXPECT_EQ(plain[a].item<double>(), want) << "exact: eighths";
    EXPECT_EQ(scaled[a].item<double>(), (want + 1) / 4);
  }
}

}  // namespace
}  // namespace trireme::learn
