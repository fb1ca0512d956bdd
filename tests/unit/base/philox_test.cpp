#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "trireme/base/philox.hpp"

namespace trireme::base {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformsLieInTheUnitInterval) {
  double sum = 0;
  for (uint32_t i = 0; i < 20000; ++i) {
    const float u = uniform(7, Stream::sampling, 3, i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += u;
  }
  EXPECT_NEAR(sum / 20000, 0.5, 0.01);
  EXPECT_NE(uniform(7, Stream::sampling, 3, 0), uniform(8, Stream::sampling, 3, 0));
  EXPECT_NE(uniform(7, Stream::sampling, 3, 0), uniform(7, Stream::test, 3, 0));
}

TEST(Philox, PermutationsArePermutations) {
  for (int64_t n : {0, 1, 2, 100}) {
    auto order = permutation(1, 0, n);
    EXPECT_NE(n < 50 ? std::vector<int64_t>{-1} : permutation(1, 1, n), order);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
  std::set<std::vector<int64_t>> seen;  // all 6 orders of three occur
  for (uint64_t epoch = 0; epoch < 200; ++epoch) seen.insert(permutation(1, epoch, 3));
  EXPECT_EQ(seen.size(), 6u);
}

TEST(Philox, NormalsDependOnTheElementOnly) {
  std::vector<float> whole(1000);
  normals(5, 2, 0, whole);
  std::vector<float> part(17);
  normals(5, 2, 333, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 333));
  std::vector<float> many(100000);
  normals(5, 3, 0, many);
  double mean = 0;
  double square = 0;
  for (const float x : many) {
    ASSERT_TRUE(std::isfinite(x));
    mean += x;
    square += double{x} * x;
  }
  EXPECT_NEAR(mean / 100000, 0, 0.02);
  EXPECT_NEAR(square / 100000, 1, 0.02);
}

TEST(Philox, UnitFloatsAreTheUpperTwentyFourBits) {
  EXPECT_EQ(unit_float(0xffffffff), 1 - 0x1p-24f);
  for (const uint32_t bits :
       {0u, 1u, 255u, 256u, 0x7fffffffu, 0x80000000u, 0xdeadbeefu, 0xffffff00u, 0xffffffffu}) {
    EXPECT_EQ(std::ldexp(static_cast<double>(unit_float(bits)), 24), bits >> 8) << std::hex << bits;
  }
}

// Seeds, requests and positions that differ in one bit have draws of their own.
TEST(Philox, EveryBitOfSeedRequestAndPositionCounts) {
  std::set<float> seen{uniform(0, Stream::sampling, 0, 0)};
  for (int bit = 0; bit < 64; ++bit) {
    seen.insert(uniform(uint64_t{1} << bit, Stream::sampling, 0, 0));
    seen.insert(uniform(0, Stream::sampling, uint64_t{1} << bit, 0));
    if (bit < 32) seen.insert(uniform(0, Stream::sampling, 0, uint32_t{1} << bit));
  }
  for (const auto stream : {Stream::shuffle, Stream::init, Stream::test})
    seen.insert(uniform(0, stream, 0, 0));
  EXPECT_EQ(seen.size(), 1u + 64 + 64 + 32 + 3);
}

// The statistic has `counts` - 1 degrees of freedom; 4.5 standard deviations let one in 100,000
// seeds fail.
void expect_uniform(const std::vector<int>& counts, double expected) {
  double statistic = 0;
  for (const int count : counts) statistic += (count - expected) * (count - expected) / expected;
  const double degrees = static_cast<double>(counts.size()) - 1;
  EXPECT_NEAR(statistic, degrees, 4.5 * std::sqrt(2 * degrees));
}

TEST(Philox, DrawsFillTheIntervalAndPairsTheSquare) {
  constexpr uint32_t draws = 65536;
  for (const bool along_requests : {false, true}) {
    std::vector<int> line(256, 0), square(256, 0);
    int before = 0;
    for (uint32_t i = 0; i < draws; ++i) {
      const float u =
          along_requests ? uniform(3, Stream::sampling, i, 5) : uniform(3, Stream::sampling, 5, i);
      const int cell = static_cast<int>(u * 16);
      ++line[static_cast<size_t>(u * 256)];
      ++square[static_cast<size_t>(16 * before + cell)];
      before = cell;
    }
    expect_uniform(line, draws / 256.0);
    expect_uniform(square, draws / 256.0);
  }
}

TEST(Philox, PermutationsAreEquallyLikely) {
  std::map<std::vector<int64_t>, int> seen;
  for (uint64_t epoch = 0; epoch < 6000; ++epoch) ++seen[permutation(9, epoch, 5)];
  std::vector<int> counts;
  for (const auto& [order, count] : seen) counts.push_back(count);
  ASSERT_EQ(counts.size(), 120u);
  expect_uniform(counts, 50);
  std::set<std::vector<int64_t>> other;  // high words count too
  for (const uint64_t word : {uint64_t{0}, uint64_t{1} << 32, uint64_t{1} << 40}) {
    other.insert(permutation(word, 0, 20));
    other.insert(permutation(0, word, 20));
  }
  EXPECT_EQ(other.size(), 5u);
}

// Kolmogorov-Smirnov: the largest distance between the observed and the normal distribution
// function.
double distance_from_normal(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  double worst = 0;
  const auto n = static_cast<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double p = 0.5 * std::erfc(-static_cast<double>(values[i]) / std::sqrt(2.0));
    worst = std::max({worst, std::abs(p - static_cast<double>(i) / n),
                      std::abs(p - static_cast<double>(i + 1) / n)});
  }
  return worst;
}

TEST(Philox, NormalsAreNormalAndTheirStreamsIndependent) {
  constexpr size_t n = 40000;
  std::vector<std::vector<float>> streams;
  for (const auto& [seed, a] :
       std::vector<std::pair<uint64_t, uint64_t>>{{1, 0}, {1, 1}, {2, 0}, {1, uint64_t{1} << 33}}) {
    streams.emplace_back(n);
    normals(seed, a, 0, streams.back());
    EXPECT_LT(distance_from_normal(streams.back()) * std::sqrt(static_cast<double>(n)), 1.95)
        << "p = 0.001";
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      double product = 0;
      for (size_t k = 0; k < n; ++k)
        product += static_cast<double>(streams[i][k]) * static_cast<double>(streams[j][k]);
      EXPECT_LT(std::abs(product) / std::sqrt(static_cast<double>(n)), 4) << i << " and " << j;
    }
  }
}

}  // namespace
}  // namespace trireme::base
