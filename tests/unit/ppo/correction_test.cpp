// The importance correction of answers that several versions of the weights wrote, drawn from what
// top-p or top-k left: against a plain computation, sequence by sequence and in double.
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "support/policy_statistics.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/losses.hpp"

namespace trireme::test {
namespace {

using namespace ppo;

struct Token {
  double now, old, full, drawn;  // log-probs: policy, before the update, full distribution that
                                 // wrote it, what was left of it
  double advantage;
  int version;
};
using Sequence = std::vector<Token>;

// Sequences of a few tokens, cut into runs of one version; top-p kept between half and all of the
// probability.
std::vector<Sequence> some_sequences() {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> unit(0, 1);
  std::vector<Sequence> out;
  for (const int length : {1, 5, 9, 2, 12, 7}) {
    Sequence sequence;
    int version = 3;
    for (int t = 0; t < length; ++t) {
      if (t > 0 && unit(random) < 0.3) ++version;
      const double full = -3 * unit(random) - 0.1, old = full + unit(random) - 0.6;
      sequence.push_back({old + 0.4 * unit(random) - 0.2, old, full,
                          full - std::log(0.5 + 0.5 * unit(random)), 4 * unit(random) - 2,
                          version});
    }
    out.push_back(sequence);
  }
  return out;
}

double divergence(const Token& token, config::CorrectionGate gate) {
  const double p = std::clamp(std::exp(token.full), 1e-6, 1 - 1e-6),
               q = std::clamp(std::exp(token.old), 1e-6, 1 - 1e-6);
  if (gate == config::CorrectionGate::tv) return std::abs(p - q);
  return p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q));
}

struct PlainLoss {
  double loss = 0, judged = 0, dropped = 0, rollout_kl = 0;
};

// Tokens [begin, end) are judged together: what they add to the loss, not yet divided.
void add_run(const Sequence& sequence, size_t begin, size_t end,
             const config::ImportanceCorrection& how, PlainLoss& out) {
  double sum = 0;
  for (size_t t = begin; t < end; ++t) {
    sum += how.gate == config::CorrectionGate::ratio ? sequence[t].old - sequence[t].drawn
                                                     : divergence(sequence[t], how.gate);
  }
  const double mean = sum / static_cast<double>(end - begin),
               value = how.gate == config::CorrectionGate::ratio ? std::exp(mean) : mean;
  const bool kept = value >= how.low && value <= how.high;
  ++out.judged;
  out.dropped += !kept;
  for (size_t t = begin; t < end; ++t) {
    const Token& token = sequence[t];
    double weight = std::exp(token.old - token.drawn);
    if (how.mode == config::CorrectionMode::clip) {
      weight = std::clamp(weight, how.low, how.high);
    } else if (!kept) {
      weight = 0;
    }
    const double ratio = std::exp(token.now - token.old);
    out.loss -=
        weight * std::min(ratio * token.advantage, std::clamp(ratio, 0.8, 1.2) * token.advantage);
    out.rollout_kl += token.full - token.old;
  }
}

PlainLoss plain_loss(const std::vector<Sequence>& sequences,
                     const config::ImportanceCorrection& how) {
  PlainLoss out;
  double tokens = 0;
  for (const Sequence& sequence : sequences) {
    for (size_t begin = 0, end = 0; begin < sequence.size(); begin = end) {
      end = begin + 1;
      const auto together = [&](size_t t) {
        return how.level == config::CorrectionLevel::sequence ||
               (how.level == config::CorrectionLevel::segment &&
                sequence[t].version == sequence[begin].version);
      };
      while (end < sequence.size() && together(end)) ++end;
      add_run(sequence, begin, end, how, out);
    }
    tokens += static_cast<double>(sequence.size());
  }
  out.loss /= tokens;
  out.rollout_kl /= tokens;
  return out;
}

PolicyLossInput input_of(const std::vector<Sequence>& sequences) {
  std::array<std::vector<float>, 5> columns;
  std::vector<int64_t> ends{0}, written{0};
  for (const Sequence& sequence : sequences) {
    for (size_t t = 0; t < sequence.size(); ++t) {
      const Token& token = sequence[t];
      const std::array<double, 5> values{token.now, token.old, token.full, token.advantage,
                                         token.drawn};
      if (t > 0 && token.version != sequence[t - 1].version)
        written.push_back(static_cast<int64_t>(columns[0].size()));
      for (size_t c = 0; c < columns.size(); ++c)
        columns[c].push_back(static_cast<float>(values[c]));
    }
    ends.push_back(static_cast<int64_t>(columns[0].size()));
    written.push_back(ends.back());
  }
  const auto tensor = [&](size_t c) { return at::tensor(columns[c]); };
  return {
      tensor(0),      tensor(1), tensor(2),        tensor(3), at::ones_like(tensor(0), at::kBool),
      Segments(ends), tensor(4), Segments(written)};
}

TEST(ImportanceCorrection, BySegmentAndOfTheTruncatedDistribution) {
  using enum config::CorrectionLevel;
  using enum config::CorrectionMode;
  using enum config::CorrectionGate;
  const auto sequences = some_sequences();
  const std::vector<config::ImportanceCorrection> ways{
      {true, token, clip, ratio, 0.535, 1.1},    {true, token, mask, ratio, 0.535, 1.1},
      {true, sequence, mask, ratio, 0.58, 1.5},  {true, segment, mask, ratio, 0.58, 1.5},
      {true, segment, mask, tv, 0, 0.048},       {true, segment, mask, binary_kl, 0, 0.008},
      {true, sequence, mask, binary_kl, 0, 0.01}};
  std::vector<double> judged;
  for (const auto& how : ways) {
    SCOPED_TRACE(testing::Message() << &how - ways.data());
    PolicyLossOptions options;
    options.correction = how;
    const PolicyLoss got = policy_loss(input_of(sequences), options, {});
    const PlainLoss want = plain_loss(sequences, how);
    EXPECT_NEAR(got.loss.item<double>(), want.loss, 1e-5);
    EXPECT_EQ(statistics_of(got).filter_ratio(), want.dropped / want.judged);
    EXPECT_NEAR(statistics_of(got).rollout_kl(), want.rollout_kl, 1e-5)
        << "of full distributions, whatever was left of them";
    EXPECT_TRUE(want.dropped > 0 && want.dropped < want.judged) << "or this says nothing";
    judged.push_back(want.judged);
  }
  EXPECT_GT(judged[3], judged[2]) << "segments are shorter than sequences";
  EXPECT_LT(judged[3], judged[0]);
}

// With p = 1/2 kept of each draw's distribution, a policy that has not changed has the weight 1/2:
// not 1.
TEST(ImportanceCorrection, TheShareThatTopPKeptIsTheWeight) {
  const at::Tensor full = at::tensor(std::vector<float>{-1, -2, -0.5f});
  PolicyLossInput input{full,
                        full,
                        full,
                        at::ones({3}),
                        at::ones({3}, at::kBool),
                        Segments({0, 3}),
                        full - std::log(0.5)};
  PolicyLossOptions options;
  options.correction = {true,
                        config::CorrectionLevel::token,
                        config::CorrectionMode::clip,
                        config::CorrectionGate::ratio,
                        0.1,
                        5};
  EXPECT_NEAR(policy_loss(input, options, {}).loss.item<double>(), -0.5, 1e-6);
  input.sample_log_probs = at::Tensor{};
  EXPECT_NEAR(policy_loss(input, options, {}).loss.item<double>(), -1, 1e-6);
}

TEST(Experience, TokensOfOldWeightsAreNoActions) {
  Samples samples;
  samples.add(
      {.id = 1, .ids = {1, 2, 3, 4, 5}, .action_ranges = {{1, 5}}, .versions = {-1, 4, 4, 6, 7}});
  samples.add({.id = 2, .ids = {1, 2}, .action_ranges = {{1, 2}}, .versions = {-1, 5}});
  Experience experience = Experience::from(samples);
  EXPECT_EQ(mask_older_than(experience, 3, 7), 0);
  EXPECT_EQ(experience.samples, samples);
  EXPECT_EQ(mask_older_than(experience, 1, 7), 3);
  EXPECT_EQ(experience.samples.action_mask, (std::vector<uint8_t>{0, 0, 0, 1, 1, 0, 0}));
  EXPECT_TRUE(at::equal(experience.mask,
                        at::tensor(std::vector<int64_t>{0, 0, 0, 1, 1, 0, 0}).to(at::kByte)));
  EXPECT_EQ(action_counts(experience.samples), (std::vector<int64_t>{2, 0}));
}

}  // namespace
}  // namespace trireme::test
