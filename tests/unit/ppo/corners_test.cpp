// Losses and controllers at the points where a formula changes branch: numbers worked out by hand.
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "support/policy_statistics.hpp"
#include "trireme/base/error.hpp"
#include "trireme/ppo/balance.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/kl.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/preference.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;
using Columns = std::vector<double>;

Tensor column(const Columns& values) { return at::tensor(values).to(at::kFloat); }
Tensor logs(const Columns& values) { return column(values).log(); }
Tensor ones(const Tensor& like) { return at::ones_like(like, at::kBool); }

struct Graded {
  double value;
  Columns gradient;  // of `leaf`
};
template <class Loss>
Graded graded(const Tensor& start, const Loss& loss) {
  Tensor leaf = start.clone();
  leaf.set_requires_grad(true);
  const Tensor value = loss(leaf);
  value.backward();
  const Tensor wide = leaf.grad().to(at::kDouble);
  return {value.item<double>(),
          {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()}};
}

struct Step {
  double ratio, advantage;
  double loss, gradient;  // of one token; the gradient is that of its log-prob
  bool clipped;
};

void expect_steps(const PolicyLossOptions& options, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    SCOPED_TRACE(testing::Message() << "ratio " << step.ratio << ", advantage " << step.advantage);
    PolicyStatistics statistics;
    const auto [loss, gradient] = graded(logs({step.ratio}), [&](const Tensor& leaf) {
      const PolicyLoss out = policy_loss(
          {leaf, column({0}), {}, column({step.advantage}), ones(leaf), Segments({0, 1})}, options,
          {});
      statistics = statistics_of(out);
      return out.loss;
    });
    EXPECT_NEAR(loss, step.loss, 1e-5 * (1 + std::abs(step.loss)));
    EXPECT_NEAR(gradient[0], step.gradient, 1e-5 * (1 + std::abs(step.gradient)));
    EXPECT_EQ(statistics.clip_ratio(), step.clipped ? 1 : 0);
  }
}

TEST(PolicyLoss, ClipActsOnlyWhereItLowersTheObjective) {
  PolicyLossOptions options;
  options.clip_low = 0.2;
  options.clip_high = 0.3;
  expect_steps(options, {{1, 1, -1, -1, false},
                         {1.25, 1, -1.25, -1.25, false},
                         {2, 1, -1.3, 0, true},
                         {0.5, 1, -0.5, -0.5, false},
                         {0.5, -1, 0.8, 0, true},
                         {0.85, -1, 0.85, 0.85, false},
                         {2, -1, 2, 2, false},
                         {2, 0, 0, 0, false},
                         {1e-30, 2, -2e-30, -2e-30, false}});
}

TEST(PolicyLoss, DualClipBoundsTheLossOfBadTokens) {
  PolicyLossOptions options;
  options.dual_clip = 3;
  expect_steps(options, {{2.9, -1, 2.9, 2.9, false},
                         {3.1, -1, 3, 0, false},
                         {1e6, -2, 6, 0, false},
                         {1e6, 2, -2.4, 0, true},
                         {0.5, -1, 0.8, 0, true}});
}

TEST(PolicyLoss, RatiosBeyondFloatStayFinite) {
  for (const double distance : {-1e4, -100.0, 100.0, 1e4}) {
    for (const double advantage : {-1.0, 1.0}) {
      const auto [loss, gradient] = graded(column({distance}), [&](const Tensor& leaf) {
        return policy_loss(
                   {leaf, column({0}), {}, column({advantage}), ones(leaf), Segments({0, 1})}, {},
                   {})
            .loss;
      });
      EXPECT_TRUE(std::isfinite(loss) && std::isfinite(gradient[0]))
          << distance << " " << advantage;
    }
  }
}

struct Gate {
  config::CorrectionLevel level;
  config::CorrectionMode mode;
  config::CorrectionGate gate;
  double low, high;
  Columns weights;  // per token
  double filtered;  // share of tokens or sequences
};

// Two sequences of two tokens: the trainer's probabilities over the rollout's are 0.25, 4 | 0.5, 8.
// TV 0.3, 0.3 | 0.1, 0.7; binary KL of (0.4, 0.1): 0.4 ln 4 + 0.6 ln (0.6/0.9) = 0.3112, of (0.1,
// 0.4): 0.2263, of (0.2, 0.1): 0.0444, of (0.1, 0.8): 1.1457.
TEST(ImportanceCorrection, EveryGateOnRatiosByHand) {
  using enum config::CorrectionLevel;
  using enum config::CorrectionMode;
  using enum config::CorrectionGate;
  const Tensor rollout = logs({0.4, 0.1, 0.2, 0.1}), old = logs({0.1, 0.4, 0.1, 0.8});
  const std::vector<Gate> gates{
      {token, clip, ratio, 0.4, 5, {0.4, 4, 0.5, 5}, 0.5},
      {token, mask, ratio, 0.4, 5, {0, 4, 0.5, 0}, 0.5},
      {sequence, mask, ratio, 0.9, 1.1, {0.25, 4, 0, 0}, 0.5},  // geometric means 1 and 2
      {sequence, mask, ratio, 1.9, 2.1, {0, 0, 0.5, 8}, 0.5},
      {token, mask, tv, 0, 0.31, {0.25, 4, 0.5, 0}, 0.25},
      {token, mask, binary_kl, 0, 0.25, {0, 4, 0.5, 0}, 0.5},
      {sequence, mask, tv, 0, 0.35, {0.25, 4, 0, 0}, 0.5},        // means 0.3 and 0.4
      {sequence, mask, binary_kl, 0, 0.3, {0.25, 4, 0, 0}, 0.5},  // means 0.2687 and 0.5950
      {sequence, mask, binary_kl, 0, 0.6, {0.25, 4, 0.5, 8}, 0},
  };
  const Columns advantages{1, -2, 3, -4};
  for (const Gate& gate : gates) {
    SCOPED_TRACE(testing::Message() << &gate - gates.data());
    PolicyLossOptions options;
    options.correction = {true, gate.level, gate.mode, gate.gate, gate.low, gate.high};
    PolicyStatistics statistics;
    const auto [loss, gradient] =
        graded(old, [&](const Tensor& leaf) {  // on policy: the probability ratio is 1
          const PolicyLoss out =
              policy_loss({leaf, old, rollout, column(advantages), ones(leaf), Segments({0, 2, 4})},
                          options, {});
          statistics = statistics_of(out);
          return out.loss;
        });
    double want = 0;
    for (size_t t = 0; t < 4; ++t) {
      want -= gate.weights[t] * advantages[t] / 4;
      EXPECT_NEAR(gradient[t], -gate.weights[t] * advantages[t] / 4, 1e-5);
    }
    EXPECT_NEAR(loss, want, 1e-5);
    EXPECT_EQ(statistics.filter_ratio(), gate.filtered);
    EXPECT_NEAR(statistics.rollout_kl(), -std::log(0.25 * 4 * 0.5 * 8) / 4, 1e-6);
  }
}

TEST(Kl, EstimatesTheirGradientsAndTheirClamp) {
  const auto check = [](config::KlEstimator estimator, double rho, double value, double slope) {
    const auto [got, gradient] = graded(column({rho}), [&](const Tensor& leaf) {
      return approximate_kl(leaf, column({0}), estimator).sum();
    });
    EXPECT_NEAR(got, value, 1e-6 * (1 + std::abs(value))) << rho;
    EXPECT_NEAR(gradient[0], slope, 1e-6 * (1 + std::abs(slope))) << rho;
  };
  using enum config::KlEstimator;
  check(k1, -0.5, -0.5, 1);
  check(k1, 11, 10, 0);
  check(k1, -11, -10, 0);
  check(k2, -0.5, 0.125, -0.5);
  check(k2, 5, 10, 0);
  check(k3, 0, 0, 0);
  check(k3, 0.5, std::exp(-0.5) - 0.5, 1 - std::exp(-0.5));
  check(k3, -0.5, std::exp(0.5) - 1.5, 1 - std::exp(0.5));
  check(k3, -30, 10, 0);
  check(k3, -1000, 10, 0);
}

TEST(Kl, UnbiasedGradientIsWeightedByTheRatioUpToTen) {
  for (const auto& [old, weight] : {std::pair{-1.0, 1.0}, {-2.0, std::exp(1.0)}, {-9.0, 10.0}}) {
    const auto [value, gradient] =
        graded(column({-1}), [&, &old_log_prob = old](const Tensor& leaf) {
          return approximate_kl_unbiased(leaf, column({-1.5}), column({old_log_prob}),
                                         config::KlEstimator::k2)
              .sum();
        });
    EXPECT_NEAR(value, 0.125, 1e-6) << "the value of k2";
    EXPECT_NEAR(gradient[0], 0.5 * weight, 1e-5);
  }
}

TEST(Kl, ControllerMovesByAFifthAtMost) {
  EXPECT_DOUBLE_EQ(adapt_kl_coefficient(0.2, 6, 6, 64, 10000), 0.2);
  EXPECT_DOUBLE_EQ(adapt_kl_coefficient(0.2, 6.6, 6, 64, 10000), 0.2 * (1 + 0.1 * 0.0064));
  EXPECT_DOUBLE_EQ(adapt_kl_coefficient(0.2, 600, 6, 64, 10000), 0.2 * (1 + 0.2 * 0.0064));
  EXPECT_DOUBLE_EQ(adapt_kl_coefficient(0.2, -1, 6, 64, 10000), 0.2 * (1 - 0.2 * 0.0064));
  EXPECT_EQ(adapt_kl_coefficient(0, 600, 6, 64, 10000), 0);
  EXPECT_EQ(adapt_kl_coefficient(0.2, std::nan(""), 6, 64, 10000), 0.2)
      << "one bad batch does not spoil it for ever";
}

TEST(Preference, LossesAtAndFarFromZero) {
  const auto reward_loss = [](double chosen, double rejected, double margin,
                              config::PreferenceLoss loss) {
    return reward_model_loss(column({chosen}), column({rejected}), column({margin}), loss, 1)
        .item<double>();
  };
  EXPECT_NEAR(reward_loss(1, 1, 0, config::PreferenceLoss::sigmoid), std::log(2), 1e-6);
  EXPECT_NEAR(reward_loss(3, 1, 2, config::PreferenceLoss::sigmoid), std::log(2), 1e-6);
  EXPECT_NEAR(reward_loss(3, 1, 2, config::PreferenceLoss::logexp), std::log1p(std::exp(-2)), 1e-6)
      << "it has no margin";
  EXPECT_NEAR(reward_loss(-500, 500, 0, config::PreferenceLoss::logexp), 1000, 1e-3);
  EXPECT_EQ(reward_loss(500, -500, 0, config::PreferenceLoss::sigmoid), 0);
  PairInput far;
  far.policy = {column({-400}), column({400})};
  far.reference = {column({0}), column({0})};
  EXPECT_NEAR(pair_losses(far, {.beta = 1}).losses.item<double>(), 800, 1e-3);
}

// Karmarkar and Karp's differencing on {4, 5, 6, 7, 8} ends with sums that differ by 2 (the example
// of Wikipedia's article on it).
TEST(Bins, LargestDifferencing) {
  const std::vector<int64_t> lengths{4, 5, 6, 7, 8};
  std::vector<int64_t> sums;
  for (const auto& bin : balanced_bins(lengths, 2, BinSize::any)) {
    sums.push_back(0);
    for (const int64_t i : bin) sums.back() += lengths[static_cast<size_t>(i)];
  }
  std::sort(sums.begin(), sums.end());
  EXPECT_EQ(sums, (std::vector<int64_t>{14, 16}));
}

TEST(Bins, EqualAndInterleavedOnesHaveTheirSizes) {
  for (int64_t count = 0; count < 40; ++count) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < count; ++i)
      lengths.push_back((i * 7919) % 13);  // many ties, some of length 0
    for (int64_t k = 1; k <= 7; ++k) {
      std::vector<int> seen(static_cast<size_t>(count));
      for (const auto& bin : interleaved_bins(lengths, k)) {
        EXPECT_LE(std::abs(std::ssize(bin) * k - count), k - 1) << count << " in " << k;
        for (const int64_t i : bin) ++seen[static_cast<size_t>(i)];
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
      if (count % k != 0) continue;
      for (const auto& bin : balanced_bins(lengths, k, BinSize::equal))
        EXPECT_EQ(std::ssize(bin) * k, count);
    }
  }
  const std::vector<int64_t> six{6, 5, 4, 3, 2, 1};
  EXPECT_EQ(interleaved_bins(six, 2), (Bins{{0, 5, 3}, {1, 4, 2}}))
      << "the last round is dealt from the light end";
  EXPECT_THROW(balanced_bins(std::vector<int64_t>{1, 2, 3}, 2, BinSize::equal), UserError);
  EXPECT_THROW(interleaved_bins({}, 0), UserError);
}

// Ranks and places as OpenRLHF 0.11.2 dealt them (balance_experiences); a number of items that the
// ranks do not divide leaves the round of the lightest short, and equal lengths stay in their
// order.
TEST(Bins, InterleavedOnesAreThoseOfOpenRlhf) {
  const std::vector<int64_t> fourteen{7, 7, 3, 9, 3, 7, 5, 5, 9, 1, 3, 5, 7, 9};
  EXPECT_EQ(interleaved_bins(fourteen, 4),
            (Bins{{3, 9, 1, 4}, {8, 10, 5, 2}, {13, 12, 11}, {0, 6, 7}}));
  EXPECT_EQ(interleaved_bins(std::vector<int64_t>(14, 1), 4),
            (Bins{{0, 13, 4, 11}, {1, 12, 5, 10}, {2, 6, 9}, {3, 7, 8}}));
  EXPECT_EQ(interleaved_bins(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 4),
            (Bins{{9, 0, 2}, {8, 1, 3}, {7, 4}, {6, 5}}));
  EXPECT_EQ(interleaved_bins(std::vector<int64_t>{5, 5, 5}, 4), (Bins{{2}, {1}, {0}, {}}));
  EXPECT_EQ(interleaved_bins(std::vector<int64_t>{2, 9, 4}, 1), (Bins{{1, 0, 2}}));
}

TEST(Bins, FirstFit) {
  EXPECT_EQ(first_fit_bins(std::vector<int64_t>{}, 10), 0);
  EXPECT_EQ(first_fit_bins(std::vector<int64_t>{5, 5, 5, 5}, 10), 2);
  EXPECT_EQ(first_fit_bins(std::vector<int64_t>{6, 5, 4, 5}, 10), 2)
      << "the first bin that has room takes it";
  EXPECT_EQ(first_fit_bins(std::vector<int64_t>{11, 1, 10}, 10), 3) << "a longer one is alone";
}

// What a cut at max_len does to mask and counts.
TEST(Sequences, AreCutInsideAndBeforeTheirActions) {
  const auto cut = [](int64_t max_len) {
    Samples samples;
    samples.add({1, 0, {1, 2, 3, 4, 5, 6}, {{2, 3}, {4, 6}}, std::vector<float>(6, -1.f)}, max_len);
    samples.check();
    return samples;
  };
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(cut(6).action_mask, (Bytes{0, 0, 1, 0, 1, 1}));
  EXPECT_EQ(response_lengths(cut(6)), std::vector<int64_t>{4});
  EXPECT_EQ(action_counts(cut(6)), std::vector<int64_t>{3});
  EXPECT_EQ(cut(6).finish_reason[0], FinishReason::stop);
  EXPECT_EQ(cut(5).action_mask, (Bytes{0, 0, 1, 0, 1}));
  EXPECT_EQ(cut(5).finish_reason[0], FinishReason::length);
  EXPECT_EQ(response_lengths(cut(4)), std::vector<int64_t>{1})
      << "an observation at the end is no response";
  EXPECT_EQ(cut(2).action_mask, (Bytes{0, 0}));
  EXPECT_EQ(response_lengths(cut(2)), std::vector<int64_t>{0});
  EXPECT_EQ(cut(1).prompt_len, std::vector<int32_t>{1});
}

// OpenRLHF: is_clipped = total_length >= max_len, while `truncated` is what the generator says: an
// end token may be the last that fits.
// Turns of a sequence of `actions` (1: an action), whose reward is `reward` in all.
std::vector<float> of_turns(const std::vector<uint8_t>& actions, const std::vector<Turn>& turns,
                            float reward, std::optional<config::Range> clip = std::nullopt) {
  const Tensor mask = at::tensor(std::vector<int64_t>(actions.begin(), actions.end()));
  const std::vector<float> rewards{reward};
  const std::vector<std::vector<Turn>> all{turns};
  const Tensor out = token_rewards({rewards, all}, at::full({mask.numel()}, 0.25f), mask,
                                   Segments({0, mask.numel()}), 0.1, clip);
  return {out.const_data_ptr<float>(), out.const_data_ptr<float>() + out.numel()};
}

TEST(Turns, RewardsGoToTheLastActionOfTheirTurn) {
  const float kl = -0.1f * 0.25f;
  const auto expect = [&](const std::vector<float>& got, const std::vector<float>& added) {
    ASSERT_EQ(got.size(), added.size());
    for (size_t t = 0; t < got.size(); ++t) EXPECT_FLOAT_EQ(got[t], kl + added[t]) << t;
  };
  const std::vector<uint8_t> two{0, 1, 1, 0, 1, 0};
  expect(of_turns(two, {{3, 1}, {5, 2}}, 3), {0, 0, 1, 0, 2, 0});
  expect(of_turns(two, {{3, 1}, {5, 2}}, 3.5f), {0, 0, 1, 0, 2.5f, 0});  // a rule adds 0.5
  expect(of_turns(two, {{3, 1}, {5, 2}}, 3, config::Range{-1, 1}), {0, 0, 1, 0, 0, 0});
  expect(of_turns(two, {{3, 1}, {5, 2}, {9, 4}}, 7), {0, 0, 1, 0, 6, 0});  // cut off
  expect(of_turns(two, {}, 3), {0, 0, 0, 0, 3, 0});
  // The first turn is masked, all turns are.
  expect(of_turns({0, 0, 0, 0, 1, 0}, {{3, 1}, {5, 2}}, 3), {0, 0, 0, 0, 3, 0});
  expect(of_turns({0, 0, 0, 0, 0, 0}, {{3, 1}, {5, 2}}, 3), {0, 0, 0, 0, 0, 3});
}

TEST(Turns, OneGivesTheBitsOfAnAnswerWithoutTurns) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<uint8_t> actions{0, 1, static_cast<uint8_t>(i % 2),
                                       static_cast<uint8_t>(i % 3 > 0)};
    const float reward = std::ldexp(normal(random), i % 9 - 4), sources = normal(random);
    const float all = i % 5 == 0 ? reward : static_cast<float>(double{reward} + double{sources});
    EXPECT_EQ(of_turns(actions, {{4, reward}}, all), of_turns(actions, {}, all));
  }
}

TEST(Sequences, ThatEndExactlyAtTheLimitAreClippedButNotTruncated) {
  Samples samples;
  const auto add = [&](int64_t tokens, FinishReason reason) {
    const auto count = static_cast<size_t>(tokens);
    samples.add({samples.id.size(),
                 0,
                 std::vector<int32_t>(count, 7),
                 {{1, tokens}},
                 std::vector<float>(count, -1.f),
                 reason},
                6);
  };
  add(5, FinishReason::stop);
  add(6, FinishReason::stop);
  add(6, FinishReason::length);
  add(7, FinishReason::stop);
  add(4, FinishReason::length);
  EXPECT_EQ(clipped(samples, 6), (std::vector<uint8_t>{0, 1, 1, 1, 0}));
  samples.reward.resize(5);
  EXPECT_EQ(reward_table(samples).truncated, (std::vector<uint8_t>{0, 0, 1, 1, 1}));
}

TEST(Sequences, KeepTheVersionOfEachToken) {
  Samples samples;
  samples.add(
      {1, 0, {1, 2, 3, 4}, {{2, 4}}, std::vector<float>(4, -1.f), FinishReason::stop, {0, 0, 8, 9}},
      100);
  EXPECT_EQ(samples.version, (std::vector<int32_t>{-1, -1, 8, 9}));
  EXPECT_TRUE(samples.sample_log_probs.empty());
}

}  // namespace
}  // namespace trireme::test
