#include "trireme/kernels/sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trireme/base/philox.hpp"

namespace trireme::test {
namespace {

using namespace kernels;

std::vector<float> random_logits(int64_t count, uint64_t seed) {
  std::vector<float> out(static_cast<size_t>(count));
  base::normals(seed, 3, 0, out);
  for (float& x : out) x *= 3;
  return out;
}

LogitsRow row_of(const std::vector<float>& logits) {
  return {ElementType::f32, logits.data(), static_cast<int64_t>(logits.size())};
}

int32_t draw(const std::vector<float>& logits, float scale, float uniform) {
  std::vector<LogSumExp> after;
  accumulate(row_of(logits), scale, after);
  const SliceChoice slice = choose_slice({&after.back(), 1}, after.back(), uniform);
  return static_cast<int32_t>(choose_index(row_of(logits), scale, after, slice.target));
}

// The inverse distribution function in double, and how far `uniform` is from the boundaries of the
// id it gives.
std::pair<int32_t, double> exact_draw(const std::vector<float>& logits, double scale,
                                      double uniform) {
  const double max = *std::max_element(logits.begin(), logits.end()) * scale;
  double total = 0;
  for (const float x : logits) total += std::exp(x * scale - max);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double next = sum + std::exp(logits[i] * scale - max) / total;
    if (next > uniform) return {static_cast<int32_t>(i), std::min(uniform - sum, next - uniform)};
    sum = next;
  }
  return {static_cast<int32_t>(logits.size()) - 1, 0};
}

TEST(Sampling, IsTheInverseDistributionFunctionInIdOrder) {
  for (const int64_t vocab : {5, 500, 4096, 9001}) {
    const auto logits = random_logits(vocab, 2);
    int64_t compared = 0;
    for (int i = 0; i < 500; ++i) {
      const float u = base::uniform(1, base::Stream::test, 5, static_cast<uint32_t>(i));
      const auto [want, distance] = exact_draw(logits, 0.8, static_cast<double>(u));
      if (distance < 1e-6) continue;
      ++compared;
      EXPECT_EQ(draw(logits, 0.8f, u), want) << "vocabulary " << vocab << " u " << u;
    }
    EXPECT_GT(compared, 480);
  }
}

TEST(Sampling, IdsWithoutProbabilityAreNeverDrawn) {
  std::vector<float> logits(5000, -200.f);
  logits[4500] = 1;
  for (const float u : {0.f, 0.3f, 0.99999994f}) EXPECT_EQ(draw(logits, 1, u), 4500);
}

TEST(Sampling, SlicesOfTheVocabularyGiveTheSameDraws) {
  const auto logits = random_logits(9001, 4);
  const std::vector<size_t> bounds{0, 3000, 3003, 9001};
  std::vector<LogSumExp> slices;
  std::vector<std::vector<LogSumExp>> after(3);
  std::vector<LogitsRow> rows;
  for (size_t r = 0; r < 3; ++r) {
    rows.push_back({ElementType::f32, logits.data() + bounds[r],
                    static_cast<int64_t>(bounds[r + 1] - bounds[r])});
    accumulate(rows[r], 1, after[r]);
    slices.push_back(after[r].back());
  }
  const LogSumExp total = combine(slices);
  std::vector<LogSumExp> whole;
  accumulate(row_of(logits), 1, whole);
  EXPECT_NEAR(total.log_sum_exp(), whole.back().log_sum_exp(), 1e-5);
  for (int i = 0; i < 300; ++i) {
    const float u = base::uniform(1, base::Stream::test, 6, static_cast<uint32_t>(i));
    const auto [want, distance] = exact_draw(logits, 1, static_cast<double>(u));
    if (distance < 1e-6) continue;
    const SliceChoice slice = choose_slice(slices, total, u);
    EXPECT_EQ(static_cast<int64_t>(bounds[slice.slice]) +
                  choose_index(rows[slice.slice], 1, after[slice.slice], slice.target),
              want);
  }
}

TEST(Sampling, ArgmaxTakesTheLowestOfEqualIds) {
  std::vector<float> logits(1000, 0.f);
  EXPECT_EQ(argmax(row_of(logits)), 0);
  logits[700] = logits[317] = 2;
  EXPECT_EQ(argmax(row_of(logits)), 317);
  const std::vector<uint16_t> bf16{0x3f80, 0x4000, 0x4000, 0xc000};  // 1, 2, 2, -2
  EXPECT_EQ(argmax({ElementType::bf16, bf16.data(), 4}), 1);
}

// What transformers keeps: top-k first, then the shortest prefix that reaches top_p of the rest.
std::map<int32_t, double> brute_force(const std::vector<float>& logits, const Truncation& t) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (t.top_k > 0 && t.top_k < static_cast<int64_t>(order.size()))
    order.resize(static_cast<size_t>(t.top_k));
  const auto weight = [&](int32_t id) {
    return std::exp(static_cast<double>(logits[static_cast<size_t>(id)]));
  };
  double total = 0;
  for (const int32_t id : order) total += weight(id);
  std::map<int32_t, double> kept;
  double sum = 0;
  for (const int32_t id : order) {
    if (!kept.empty() && sum >= t.top_p * total) break;
    sum += weight(id);
    kept[id] = weight(id);
  }
  for (auto& [id, p] : kept) p /= sum;
  return kept;
}

TEST(Sampling, TopKAndTopPKeepWhatTheyShould) {
  auto logits = random_logits(3000, 8);
  logits[10] = logits[20] = logits[30] =
      *std::max_element(logits.begin(), logits.end());  // ties at the top
  std::vector<LogSumExp> after;
  accumulate(row_of(logits), 1, after);
  const LogSumExp& total = after.back();
  for (const Truncation t :
       {Truncation{1, 2}, Truncation{1, 50}, Truncation{0.5, 0}, Truncation{0.9, 0},
        Truncation{0.999, 0}, Truncation{0.7, 40}, Truncation{0.01, 0}}) {
    const auto kept = brute_force(logits, t);
    std::map<int32_t, int> drawn;
    for (const float band : {8.f, 16.f, 1000.f}) {
      std::vector<Candidate> candidates;
      collect_candidates(row_of(logits), 0, 1, total.max - band, candidates);
      if (!sufficient(candidates, t, total, total.max - band)) continue;
      for (int i = 0; i < 400; ++i) {
        const float u = static_cast<float>(i) / 400;
        const TruncatedDraw d = draw_truncated(candidates, t, total, u);
        ASSERT_TRUE(kept.contains(d.id))
            << "id " << d.id << " top_p " << t.top_p << " top_k " << t.top_k;
        EXPECT_NEAR(d.log_prob, std::log(kept.at(d.id)), 1e-5);
        ++drawn[d.id];
      }
      break;
    }
    for (const auto& [id, p] : kept) EXPECT_NEAR(drawn[id] / 400.0, p, 0.006) << "id " << id;
  }
}

TEST(Sampling, CandidatesThatDoNotReachTheMassDoNotSuffice) {
  const std::vector<float> logits(100, 0.f);
  std::vector<LogSumExp> after;
  accumulate(row_of(logits), 1, after);
  const std::vector<Candidate> half(50);
  EXPECT_FALSE(sufficient(half, {0.6, 0}, after.back(), 0));
  EXPECT_TRUE(sufficient(half, {0.4, 0}, after.back(), 0));
  EXPECT_FALSE(sufficient(half, {1, 51}, after.back(), 0));
  EXPECT_TRUE(sufficient(half, {1, 50}, after.back(), 0));
  // All ids with a hundredth of the likeliest one's probability are above -5.
  EXPECT_TRUE(sufficient(half, {1, 0, 0.01}, after.back(), -5));
  EXPECT_FALSE(sufficient(half, {1, 0, 0.01}, after.back(), -4));
  EXPECT_FALSE(sufficient(half, {0.6, 60, 0.01}, after.back(), -5)) << "the mass of 60 ids";
}

}  // namespace
}  // namespace trireme::test
