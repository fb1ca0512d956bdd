// Scans under the runtime and without it, against the recursion written out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "trireme/kernels/runtime.hpp"
#include "trireme/kernels/scan.hpp"

namespace trireme::test {
namespace {

struct Columns {
  std::vector<int64_t> cu_seqlens{0, 4, 4, 5, 12};
  std::vector<float> values, rewards;
  std::vector<uint8_t> mask;

  Columns() {
    for (int t = 0; t < 12; ++t) {
      values.push_back(0.1f * static_cast<float>(t) - 0.4f);
      rewards.push_back(static_cast<float>(t % 3) - 1);
      mask.push_back(t % 4 != 1);
      if (mask.back() == 0) values.back() = rewards.back() = std::numeric_limits<float>::quiet_NaN();
    }
  }
  kernels::Ragged ragged() const { return {cu_seqlens.data(), static_cast<int64_t>(cu_seqlens.size()) - 1}; }
};

void check_gae() {
  const Columns c;
  const float gamma = 0.9f, lambda = 0.8f;
  std::vector<float> advantages(12), returns(12), sums(12);
  kernels::gae(c.ragged(), c.values.data(), c.rewards.data(), c.mask.data(), gamma, lambda, advantages.data(), returns.data());
  kernels::discounted_returns(c.ragged(), c.rewards.data(), c.mask.data(), gamma, sums.data());
  for (size_t i = 0; i + 1 < c.cu_seqlens.size(); ++i) {
    const auto begin = static_cast<size_t>(c.cu_seqlens[i]), end = static_cast<size_t>(c.cu_seqlens[i + 1]);
    const auto v = [&](size_t t) { return t < end && c.mask[t] ? static_cast<double>(c.values[t]) : 0.0; };
    const auto r = [&](size_t t) { return t < end && c.mask[t] ? static_cast<double>(c.rewards[t]) : 0.0; };
    for (size_t t = begin; t < end; ++t) {
      double advantage = 0, sum = 0;
      for (size_t k = t; k < end; ++k) {  // the sum of discounted deltas: the definition, not the recursion
        const double power = static_cast<double>(k - t);
        advantage += std::pow(static_cast<double>(gamma) * lambda, power) * (r(k) + gamma * v(k + 1) - v(k));
        sum += std::pow(static_cast<double>(gamma), power) * r(k);
      }
      EXPECT_NEAR(advantages[t], advantage, 1e-6) << t;
      EXPECT_NEAR(returns[t], advantage + v(t), 1e-6) << t;
      EXPECT_NEAR(sums[t], sum, 1e-6) << t;
    }
  }
}

void check_moments() {
  const Columns c;
  const auto got = kernels::masked_moments(c.rewards.data(), c.mask.data(), 12, 0.5);
  double count = 0, sum = 0, squares = 0;
  for (size_t t = 0; t < 12; ++t) {
    if (!c.mask[t]) continue;
    count += 1;
    sum += c.rewards[t] - 0.5;
    squares += (c.rewards[t] - 0.5) * (c.rewards[t] - 0.5);
  }
  EXPECT_EQ(got.count, count);
  EXPECT_DOUBLE_EQ(got.sum, sum);
  EXPECT_DOUBLE_EQ(got.squares, squares);
}

TEST(Scan, WithoutRuntimeThenUnderKokkos) {  // one test: Kokkos starts once in a process
  check_gae();
  check_moments();
  const kernels::Runtime runtime(1);
  EXPECT_NE(std::string(kernels::runtime_name()).find("Kokkos"), std::string::npos);
  check_gae();
  check_moments();
}

}  // namespace
}  // namespace trireme::test
