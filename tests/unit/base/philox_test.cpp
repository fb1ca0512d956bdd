#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "trireme/base/philox.hpp"

namespace trireme::base {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
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

}  // namespace
}  // namespace trireme::base
