#include "torch/torch.hpp"

#include "trireme/learn/mismatch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/world.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::learn {
namespace {

using test::world;

// Value i of all ranks' values together: many decades, some of them equal, some 0.
float value(int64_t i) {
  const float u = base::uniform(3, base::Stream::test, 1, static_cast<uint32_t>(i / 2));
  return u < 0.1f ? 0 : std::pow(10.0f, 20 * u - 12);
}

TEST(Quantile, IsThatOfTheSortedValuesOfAllRanks) {
  for (const int64_t total : {1, 2, 7, 999, 1000, 1001, 5000}) {
    std::vector<float> all, mine;
    for (int64_t i = 0; i < total; ++i) {
      all.push_back(value(i));
      // Uneven, and with many values nothing at all on the last rank.
      const int64_t owner = std::min<int64_t>(i % 3, std::max(world().size() - 2, 0));
      if (owner == world().rank()) mine.push_back(value(i));
    }
    std::sort(all.begin(), all.end());
    for (const double share : {0.0, 0.5, 0.999, 1.0}) {
      const auto at =
          static_cast<size_t>(std::max(1.0, std::ceil(share * static_cast<double>(total)))) - 1;
      EXPECT_EQ(quantile(mine, share, world()), all[at]) << share << " of " << total;
    }
  }
  EXPECT_EQ(quantile({}, 0.999, world()), 0);
}

// One sequence per rank: a prompt token and `tokens` actions.
Samples samples_of(int64_t tokens) {
  Samples s;
  s.id = {static_cast<uint64_t>(world().rank())};
  s.prompt_row = {0};
  s.prompt_len = {1};
  s.finish_reason = {FinishReason::length};
  s.cu_seqlens = {0, tokens + 1};
  for (int64_t t = 0; t <= tokens; ++t) {
    s.ids.push_back(1);
    s.action_mask.push_back(t > 0);
    s.log_probs.push_back(t > 0 ? -1.5f : 0);
    s.version.push_back(t > 0 ? 4 : -1);
  }
  return s;
}

TEST(Mismatch, CountsActionTokensOfAllRanks) {
  const Samples samples = samples_of(4);
  at::Tensor log_probs = at::full({5}, -1.5);
  float* values = log_probs.mutable_data_ptr<float>();
  values[0] = 100;  // the prompt does not count
  Mismatch same = compare_log_probs(samples, log_probs, world());
  EXPECT_EQ(same.max, 0);
  EXPECT_EQ(same.mean, 0);
  EXPECT_EQ(same.p999, 0);
  EXPECT_EQ(same.kl, 0);
  EXPECT_EQ(same.tokens, 4 * world().size());
  if (world().rank() == 0) {
    values[1] += 0.5f;
    values[2] -= 0.25f;
  }
  const Mismatch other = compare_log_probs(samples, log_probs, world());
  const double tokens = 4.0 * world().size();
  EXPECT_EQ(other.max, 0.5);
  EXPECT_EQ(other.p999, 0.5);
  EXPECT_DOUBLE_EQ(other.mean, 0.75 / tokens);
  EXPECT_NEAR(other.kl, (std::exp(0.5) - 1.5 + std::exp(-0.25) - 0.75) / tokens, 1e-15);
  if (world().rank() == world().size() - 1) values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(compare_log_probs(samples, log_probs, world()).max))
      << "a log-prob that is no number is a difference";
}

// Sequence i of all ranks' together; its log-probs and the trainer's follow from i and the token.
struct Pair {
  float rollout, train;
  bool action;
};
Pair pair_at(uint64_t sequence, uint32_t token) {
  const auto draw = [&](uint64_t which) {
    return base::uniform(which, base::Stream::test, sequence, token);
  };
  const float rollout = -4 * draw(1);
  return {rollout, rollout + (draw(2) < 0.7f ? 0 : draw(3) - 0.5f), token > 2 && draw(4) < 0.8f};
}

TEST(Mismatch, IsTheLoopOverTheActionsOfAllRanks) {
  constexpr uint64_t sequences = 60;
  std::vector<double> all;
  Samples samples;
  std::vector<float> train;
  for (uint64_t i = 0; i < sequences; ++i) {
    const auto tokens = static_cast<uint32_t>(3 + i * 7 % 50);
    const bool mine = static_cast<int>(i * i % 5) % world().size() == world().rank();
    for (uint32_t t = 0; t < tokens; ++t) {
      const Pair pair = pair_at(i, t);
      if (pair.action) all.push_back(double{pair.train} - double{pair.rollout});
      if (!mine) continue;
      samples.ids.push_back(1);
      samples.action_mask.push_back(pair.action);
      samples.log_probs.push_back(pair.rollout);
      train.push_back(pair.train);
    }
    if (mine) samples.cu_seqlens.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  double sum = 0, kl = 0;
  for (auto& d : all) kl += std::exp(d) - 1 - d, d = std::abs(d), sum += d;
  std::sort(all.begin(), all.end());
  const auto n = static_cast<double>(all.size());
  const Mismatch got = compare_log_probs(samples, at::tensor(at::ArrayRef<float>(train)), world());
  EXPECT_EQ(got.tokens, n);
  EXPECT_EQ(got.max, all.back());
  EXPECT_EQ(got.p999, static_cast<double>(
                          static_cast<float>(all[static_cast<size_t>(std::ceil(0.999 * n)) - 1])));
  EXPECT_NEAR(got.mean, sum / n, 1e-14);
  EXPECT_NEAR(got.kl, kl / n, 1e-14);
}

TEST(Mismatch, NothingToCompareIsNoMismatch) {
  const Mismatch none = compare_log_probs(Samples{}, at::zeros({0}), world());
  EXPECT_EQ(none.tokens, 0);
  EXPECT_EQ(none.max + none.mean + none.p999 + none.kl, 0);
}

TEST(Mismatch, ReasonsOfAllRanksOnce) {
  const std::vector<std::string> mine{"every rank",
                                      world().rank() == 0 ? "the first" : "every rank"};
  const auto all = bit_differences(world(), mine, "");
  EXPECT_EQ(all, (std::vector<std::string>{"every rank", "the first"}));
  EXPECT_TRUE(bit_differences(world(), {}, "").empty());
}

TEST(Mismatch, RanksThatAddInOtherOrdersAreNamed) {
  const int ranks = world().size(), odd = ranks - 1;
  EXPECT_TRUE(bit_differences(world(), {}, world().rank() == 0 ? "" : "blocks of 192").empty())
      << "a rank without these roles says nothing";
  const auto found =
      bit_differences(world(), {}, world().rank() == odd ? "blocks of 384" : "blocks of 192");
  if (ranks == 1) {
    EXPECT_TRUE(found.empty());
  } else {
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found.front(), "ranks 0 and " + std::to_string(odd) +
                                 " add in different orders (their processors differ)");
  }
}

TEST(Mismatch, SummationOrdersNameEveryShapeOfTheModel) {
  config::ModelShape shape;
  shape.hidden = 64;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.ffn = 96;
  shape.vocab = 5000;
  const std::string orders = summation_orders(shape, config::DType::f32, config::DType::f32);
  for (const char* product :
       {"fp32 64x64:", "fp32 64x32:", "fp32 64x96:", "fp32 96x64:", "fp32 64x4096:"}) {
    EXPECT_NE(orders.find(product), std::string::npos) << product << " in " << orders;
  }
  EXPECT_EQ(orders, summation_orders(shape, config::DType::f32, config::DType::f32));
}

TEST(OldLogProbs, SaysWhatItDoes) {
  config::Options options;
  EXPECT_NE(OldLogProbs(options, {}).describe().find("those of the rollout"), std::string::npos);
  EXPECT_NE(OldLogProbs(options, {"one", "two"}).describe().find("may differ: one; two"),
            std::string::npos);
  options.train.old_log_probs = config::OldLogProbs::always;
  EXPECT_NE(OldLogProbs(options, {}).describe().find("train.old_log_probs"), std::string::npos);
}

}  // namespace
}  // namespace trireme::learn
