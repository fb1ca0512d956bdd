// What lies under the mask does not matter: NaN there must reach neither a loss nor a gradient.
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "support/one_rank.hpp"
#include "support/policy_statistics.hpp"
#include "trireme/base/error.hpp"
#include "trireme/ppo/advantages.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/losses.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;

const float nan = std::numeric_limits<float>::quiet_NaN();

Tensor masked_nan(std::vector<float> values) {
  values[1] = values[4] = nan;
  return at::tensor(values);
}

struct Batch {
  Segments segments{{0, 3, 3, 5}};  // the second sequence is empty
  Tensor mask = at::tensor(std::vector<int64_t>{1, 0, 1, 1, 0});
  Tensor a = masked_nan({-1.f, 0, -2.f, -0.5f, 0}), b = masked_nan({-1.1f, 0, -1.5f, -0.4f, 0}),
         c = masked_nan({-0.7f, 0, -2.1f, -0.6f, 0});
  Tensor leaf() const {
    Tensor out = a.clone();
    out.set_requires_grad(true);
    return out;
  }
};

void expect_clean(const Tensor& loss, const Tensor& leaf) {
  EXPECT_TRUE(at::isfinite(loss).all().item<bool>());
  loss.backward();
  EXPECT_TRUE(at::isfinite(leaf.grad()).all().item<bool>());
  EXPECT_EQ(leaf.grad()[1].item<float>(), 0.f);
  EXPECT_NE(leaf.grad().abs().sum().item<float>(), 0.f);
}

TEST(Mask, NanUnderItDoesNoHarm) {
  const Batch batch;
  for (const config::PolicyLossTraits& line : config::policy_loss_table) {
    const config::PolicyLoss type = line.loss;
    for (const auto level : {config::CorrectionLevel::token, config::CorrectionLevel::sequence}) {
      for (const auto gate : {config::CorrectionGate::ratio, config::CorrectionGate::binary_kl,
                              config::CorrectionGate::tv}) {
        PolicyLossOptions options;
        options.type = type;
        options.dual_clip = 3;
        options.off_policy_threshold = 100;
        options.correction = {true, level, config::CorrectionMode::mask, gate, 0.0, 5.0};
        const Tensor leaf = batch.leaf();
        const PolicyLoss got =
            policy_loss({leaf, batch.b, batch.c, batch.a, batch.mask, batch.segments}, options, {});
        expect_clean(got.loss, leaf);
        const PolicyStatistics statistics = statistics_of(got);
        for (const double sum : statistics.sums) EXPECT_TRUE(std::isfinite(sum));
      }
    }
  }
  for (const auto estimator :
       {config::KlEstimator::k1, config::KlEstimator::k2, config::KlEstimator::k3}) {
    for (const bool unbiased : {false, true}) {
      config::KlOptions options;
      options.estimator = estimator;
      options.unbiased_gradient = unbiased;
      const Tensor leaf = batch.leaf();
      expect_clean(kl_loss(leaf, batch.b, batch.c, options, {batch.mask, batch.segments}), leaf);
    }
  }
  for (const auto aggregation :
       {config::LossAggregation::token_mean, config::LossAggregation::seq_mean_token_mean}) {
    const Tensor values = batch.leaf(), log_probs = batch.leaf();
    expect_clean(
        value_loss(values, batch.b, batch.c, 0.1, aggregation, {batch.mask, batch.segments}),
        values);
    expect_clean(sft_loss(log_probs, aggregation, {batch.mask, batch.segments}), log_probs);
  }
  const Tensor entropy = batch.leaf();
  expect_clean(entropy_term(entropy, {batch.mask, batch.segments}), entropy);
}

TEST(Mask, WhiteningReadsActionsOnly) {
  const Batch batch;
  const Tensor got = whiten(batch.a, batch.mask, Whiten::standardize, no_ranks);
  const Tensor actions = at::masked_select(got, batch.mask.to(at::kBool));
  EXPECT_NEAR(actions.mean().item<float>(), 0, 1e-6);
  EXPECT_NEAR(actions.square().mean().item<float>(), 1, 1e-5);
}

TEST(Losses, NothingToTrainOn) {
  const Segments none({0});
  const Tensor empty = at::zeros({0});
  Tensor leaf = at::zeros({0});
  leaf.set_requires_grad(true);
  const PolicyLoss got =
      policy_loss({leaf, empty, {}, empty, empty.to(at::kBool), none}, {}, {10.0, 2.0, 1.0});
  EXPECT_EQ(got.loss.item<float>(), 0);
  got.loss.backward();
  EXPECT_EQ(statistics_of(got).clip_ratio(), 0);
}

TEST(Losses, StepTotalsMakeMicroBatchesAddUp) {
  const Batch batch;
  const Normalizer whole =
      step_normalizer(std::vector<CountedSequence>{{2}, {0}, {1}}, {}, no_ranks);
  EXPECT_EQ(*whole.action_tokens, 3);
  EXPECT_EQ(*whole.sequences, 2);
  const auto part = [&](int64_t first, int64_t count) {
    return sft_loss(batch.a.narrow(0, first, count), config::LossAggregation::seq_mean_token_mean,
                    {batch.mask.narrow(0, first, count), Segments({0, count}), whole})
        .item<float>();
  };
  const float all =
      sft_loss(batch.a, config::LossAggregation::seq_mean_token_mean, {batch.mask, batch.segments})
          .item<float>();
  EXPECT_FLOAT_EQ(part(0, 3) + part(3, 2), all);
}

TEST(Losses, CombinationsWithoutMeaningAreRefused) {
  config::Options options;
  options.algo.advantage.is_correction_enable = true;
  options.algo.advantage.is_correction_type = config::CorrectionType::custom;
  options.algo.advantage.is_correction_level = config::CorrectionLevel::sequence;
  options.algo.advantage.is_correction_mode = config::CorrectionMode::clip;
  EXPECT_THROW(policy_loss_options(options), UserError);
  options.algo.advantage.is_correction_level = config::CorrectionLevel::token;
  EXPECT_NO_THROW(policy_loss_options(options));
  options.algo.advantage.is_correction_gating = config::CorrectionGate::tv;
  EXPECT_THROW(policy_loss_options(options), UserError);
}

// Ranks hold different sequences and get what one rank with all of them gets.
TEST(Experience, AdvantagesDoNotDependOnTheDistribution) {
  Samples samples;
  for (uint64_t i = 0; i < 6; ++i) {
    const auto n = static_cast<int64_t>(4 + i);
    samples.add({i,
                 0,
                 std::vector<int32_t>(static_cast<size_t>(n), 7),
                 {{2, n}},
                 std::vector<float>(static_cast<size_t>(n), -1.f)},
                100);
    samples.reward.push_back(0.3f * static_cast<float>(i * i % 5));
  }
  Experience whole = Experience::from(samples);
  whole.old_log_probs = at::arange(whole.tokens(), at::kFloat) * -0.01;
  whole.ref_log_probs = at::arange(whole.tokens(), at::kFloat) * -0.012;
  whole.values = at::arange(whole.tokens(), at::kFloat) * 0.02;
  PipelineOptions options;
  options.kl_coef = 0.1;
  options.gae.lambda = 0.95;
  const RewardTable table = reward_table(samples);
  const std::vector<int64_t> all{0, 1, 2, 3, 4, 5}, first{4, 0}, second{1, 2, 3, 5};
  Experience a = whole.select(first), b = whole.select(second);
  advantages(whole, table, all, options, no_ranks);

  // Two passes over both parts: the second one sees the first one's totals.
  std::vector<std::vector<double>> totals(2);
  for (int pass = 0; pass < 3; ++pass) {
    for (Experience* part : {&a, &b}) {
      size_t call = 0;
      const Sum sum = [&](std::span<double> x) {
        auto& total = totals[call];
        if (pass == static_cast<int>(call)) {
          total.resize(x.size(), 0.0);
          for (size_t i = 0; i < x.size(); ++i) total[i] += x[i];
        } else if (pass > static_cast<int>(call)) {
          std::copy(total.begin(), total.end(), x.begin());
        }
        ++call;
      };
      advantages(*part, table, part == &a ? first : second, options, sum);
    }
  }
  for (const auto& [part, rows] : {std::pair{&a, first}, std::pair{&b, second}}) {
    const Experience want = whole.select(rows);
    EXPECT_LT((part->advantages - want.advantages).abs().max().item<float>(), 1e-6);
    EXPECT_TRUE(at::equal(part->returns, want.returns));
  }
}

}  // namespace
}  // namespace trireme::test
