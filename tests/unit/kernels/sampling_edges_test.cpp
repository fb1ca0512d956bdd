// Draws at the edges: ties, masked logits, uniform numbers at the ends of their range, bf16 rows,
// and frequencies. tests/unit/generate/sampling_test.cpp compares draws with the distribution
// function in double.
#include "trireme/kernels/sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "trireme/base/philox.hpp"
#include "values.hpp"

namespace trireme::test {
namespace {

using namespace kernels;

constexpr float largest_uniform = 0x0.ffffffp0f;  // 1 - 2^-24

LogitsRow row_of(const std::vector<float>& x) {
  return {ElementType::f32, x.data(), static_cast<int64_t>(x.size())};
}
LogitsRow row_of(const std::vector<uint16_t>& x) {
  return {ElementType::bf16, x.data(), static_cast<int64_t>(x.size())};
}

LogSumExp total_of(const LogitsRow& row, float scale = 1) {
  std::vector<LogSumExp> after;
  accumulate(row, scale, after);
  return after.back();
}

int64_t draw(const LogitsRow& row, float scale, float uniform) {
  std::vector<LogSumExp> after;
  accumulate(row, scale, after);
  const SliceChoice choice = choose_slice({&after.back(), 1}, after.back(), uniform);
  return choose_index(row, scale, after, choice.target);
}

std::vector<Candidate> candidates_of(const LogitsRow& row) {
  std::vector<Candidate> out;
  collect_candidates(row, 0, 1, -infinity, out);
  return out;
}

float uniform(uint32_t i) { return base::uniform(9, base::Stream::test, 77, i); }

// The 99.99 % quantile of the statistic lies near this for ten and more degrees of freedom.
double chi_square_limit(double degrees) { return degrees + 4.5 * std::sqrt(2 * degrees); }

template <class Draw>
void expect_frequencies(const std::map<int64_t, double>& probabilities, const Draw& draw_one) {
  constexpr uint32_t draws = 40000;
  std::map<int64_t, double> counts;
  for (uint32_t i = 0; i < draws; ++i) counts[draw_one(uniform(i))] += 1;
  double statistic = 0;
  for (const auto& [id, p] : probabilities) {
    statistic += std::pow(counts[id] - draws * p, 2) / (draws * p);
    counts.erase(id);
  }
  EXPECT_TRUE(counts.empty()) << "an id without probability was drawn: " << counts.begin()->first;
  EXPECT_LT(statistic, chi_square_limit(static_cast<double>(probabilities.size()) - 1));
}

std::map<int64_t, double> softmax(const std::vector<float>& logits, float scale,
                                  const std::vector<int64_t>& ids) {
  std::map<int64_t, double> out;
  double sum = 0;
  for (const int64_t id : ids)
    sum += out[id] =
        std::exp(static_cast<double>(scale) * static_cast<double>(logits[static_cast<size_t>(id)]));
  for (auto& [id, p] : out) p /= sum;
  return out;
}

std::vector<int64_t> best_ids(const std::vector<float>& logits, size_t k) {
  std::vector<int64_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  ids.resize(k);
  return ids;
}

TEST(SamplingFrequencies, PlainDrawsFollowTheSoftmax) {
  const auto logits = normals(1, 40, 1);
  for (const float scale : {1.f, 0.5f, 1.4f}) {
    expect_frequencies(softmax(logits, scale, best_ids(logits, 40)),
                       [&](float u) { return draw(row_of(logits), scale, u); });
  }
}

TEST(SamplingFrequencies, TruncatedDrawsFollowTheRenormalisedSoftmax) {
  const auto logits = normals(2, 200, 1);
  const auto all = candidates_of(row_of(logits));
  const LogSumExp total = total_of(row_of(logits));
  expect_frequencies(softmax(logits, 1, best_ids(logits, 25)), [&](float u) {
    return draw_truncated(all, {1, 25}, total, u).id;
  });
}

TEST(SamplingTies, TheLowestIdsAreKept) {
  const std::vector<float> equal(10, 0.25f);
  struct Kept {
    Truncation truncation;
    int32_t count;
  };
  // 0.25 of ten ids of 0.1 each takes three of them, 0.2 exactly two.
  for (const Kept& kept : std::initializer_list<Kept>{{{1, 3}, 3},
                                                      {{0.25, 0}, 3},
                                                      {{0.2, 0}, 2},
                                                      {{0.01, 0}, 1},
                                                      {{0.5, 4}, 2},
                                                      {{1, 10}, 10},
                                                      {{0.95, 40}, 10}}) {
    auto candidates = candidates_of(row_of(equal));
    std::reverse(candidates.begin(), candidates.end());
    for (const float u : {0.f, 0.3f, 0.5f, 0.7f, largest_uniform}) {
      const TruncatedDraw d =
          draw_truncated(candidates, kept.truncation, total_of(row_of(equal)), u);
      EXPECT_EQ(d.id, static_cast<int32_t>(kept.count * static_cast<double>(u)))
          << kept.truncation.top_p << " " << kept.truncation.top_k;
      EXPECT_NEAR(d.log_prob, -std::log(kept.count), 1e-6);
      EXPECT_EQ(d.z, 0.25f);
    }
  }
}

TEST(SamplingTies, ArgmaxIsTheFirstLargestAtEveryLength) {
  std::mt19937 random(5);
  for (size_t n = 1; n <= 50; ++n) {
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<float> logits(n);
      for (float& x : logits) x = static_cast<float>(static_cast<int>(random() % 7)) - 9;
      const auto want = std::max_element(logits.begin(), logits.end()) - logits.begin();
      EXPECT_EQ(argmax(row_of(logits)), want);
      EXPECT_EQ(argmax(row_of(to_bf16(logits))), want);
    }
  }
  EXPECT_EQ(argmax(row_of(std::vector<float>{-1.f, -0.f, 0.f})), 1);
  EXPECT_EQ(argmax(row_of(std::vector<float>{-infinity, -3e38f, -infinity})), 1);
}

TEST(SamplingEdges, UniformNumbersAtTheEndsGiveTheFirstAndTheLastIdWithProbability) {
  for (const int64_t n : {3, 16, 17, 4096, 4097, 9000}) {
    std::vector<float> logits(static_cast<size_t>(n), 0.f);
    logits.front() = logits.back() = -infinity;
    EXPECT_EQ(draw(row_of(logits), 1, 0.f), 1) << n;
    EXPECT_EQ(draw(row_of(logits), 1, largest_uniform), n - 2) << n;
    const auto all = candidates_of(row_of(logits));
    EXPECT_EQ(draw_truncated(all, {0.9999999, 0}, total_of(row_of(logits)), 0.f).id, 1);
    EXPECT_EQ(draw_truncated(all, {1, n}, total_of(row_of(logits)), largest_uniform).id, n - 2);
  }
}

TEST(SamplingEdges, AnIntervalHasItsLowerEnd) {
  for (const uint32_t n : {2u, 4u, 16u, 64u, 8192u}) {  // 8192: the bound between two chunks
    const std::vector<float> equal(n, -1.f);
    for (const uint32_t id : {0u, n / 4, n / 2, n - 1})
      EXPECT_EQ(draw(row_of(equal), 1, static_cast<float>(id) / static_cast<float>(n)), id);
  }
}

// The sum that uniform numbers are measured with is rounded otherwise than the one that is walked
// along.
TEST(SamplingEdges, RoundingAtTheEndGivesNoMaskedId) {
  for (uint64_t stream = 100; stream < 200; ++stream) {
    std::vector<float> logits = normals(stream, 1500);
    logits.resize(1540, -infinity);
    EXPECT_LT(draw(row_of(logits), 1, largest_uniform), 1500);
  }
}

TEST(SamplingEdges, MaskedIdsAreNeverDrawn) {
  auto logits = normals(3, 300, 1);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i % 10 != 4) logits[i] = -infinity;
  }
  const auto all = candidates_of(row_of(logits));
  const LogSumExp total = total_of(row_of(logits));
  for (uint32_t i = 0; i < 500; ++i) {
    EXPECT_EQ(draw(row_of(logits), 1.25f, uniform(i)) % 10, 4);
    EXPECT_EQ(draw_truncated(all, {1, 100}, total, uniform(i)).id % 10, 4);
    EXPECT_EQ(draw_truncated(all, {0.95, 0}, total, uniform(i)).id % 10, 4);
  }
}

TEST(SamplingEdges, TopOneIsTheArgmaxWithCertainty) {
  const auto logits = normals(4, 500, 1);
  const auto all = candidates_of(row_of(logits));
  for (uint32_t i = 0; i < 20; ++i) {
    const TruncatedDraw d = draw_truncated(all, {1, 1}, total_of(row_of(logits)), uniform(i));
    EXPECT_EQ(d.id, argmax(row_of(logits)));
    EXPECT_EQ(d.log_prob, 0.f);
  }
}

// A bf16 row is drawn from as the same values in fp32.
TEST(SamplingEdges, Bf16RowsAreTheirValues) {
  const std::vector<uint16_t> bits = to_bf16(normals(5, 5000, 3));
  std::vector<float> values;
  for (const uint16_t b : bits) values.push_back(from_bf16(b));
  for (int64_t i = 0; i < 5000; i += 611) EXPECT_EQ(row_of(bits)[i], row_of(values)[i]);
  EXPECT_EQ(total_of(row_of(bits), 0.7f).sum, total_of(row_of(values), 0.7f).sum);
  EXPECT_EQ(argmax(row_of(bits)), argmax(row_of(values)));
  EXPECT_EQ(candidates_of(row_of(bits)), candidates_of(row_of(values)));
  for (uint32_t i = 0; i < 100; ++i)
    EXPECT_EQ(draw(row_of(bits), 0.7f, uniform(i)), draw(row_of(values), 0.7f, uniform(i)));
}

TEST(SamplingEdges, CandidatesAreThoseAtOrAboveTheThreshold) {
  const auto logits = normals(6, 1000, 2);
  for (const int64_t count : {1, 15, 16, 17, 999}) {
    const float threshold =
        logits[static_cast<size_t>(count) / 2] * 1.5f;  // one of the values itself
    std::vector<Candidate> got{{9.f, 9}}, want = got;
    collect_candidates({ElementType::f32, logits.data(), count}, 7000, 1.5f, threshold, got);
    for (int64_t i = 0; i < count; ++i) {
      const float z = logits[static_cast<size_t>(i)] * 1.5f;
      if (z >= threshold) want.push_back({z, static_cast<int32_t>(7000 + i)});
    }
    EXPECT_EQ(got, want);
  }
}

TEST(SamplingEdges, SlicesWithoutProbabilityAreSkipped) {
  const std::vector<float> masked(20, -infinity), far(20, -500.f), real = normals(7, 20, 1);
  const std::vector<LogSumExp> slices{total_of(row_of(masked)), total_of(row_of(far)),
                                      total_of(row_of(real)), total_of(row_of(far))};
  const LogSumExp total = combine(slices);
  EXPECT_EQ(total.log_sum_exp(), slices[2].log_sum_exp());
  for (const float u : {0.f, 0.5f, largest_uniform})
    EXPECT_EQ(choose_slice(slices, total, u).slice, 2u);
  const std::vector<LogSumExp> halves{slices[2], slices[2]};
  EXPECT_EQ(choose_slice(halves, combine(halves), 0.5f).slice, 1u)
      << "an interval has its lower end, not its upper";
  EXPECT_EQ(combine({&slices[2], 1}).sum, slices[2].sum) << "one slice comes back unchanged";
}

}  // namespace
}  // namespace trireme::test
