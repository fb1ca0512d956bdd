// Scans under the runtime and without it, against the recursion written out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "trireme/kernels/runtime.hpp"
#include "trireme/kernels/scan.hpp"

namespace trireme::kernels {
void check_row_functors_by_exec();     // row_functors_test.cpp
void check_paged_attention_by_exec();  // paged_attention_test.cpp
}  // namespace trireme::kernels

namespace trireme::test {
namespace {

struct Columns {
  std::vector<int64_t> cu_seqlens{0};
  std::vector<float> values, rewards;
  std::vector<uint8_t> mask;

  // Sequences of these lengths; what the mask hides is NaN.
  Columns(const std::vector<int64_t>& lengths, unsigned seed) {
    for (const int64_t length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
    std::mt19937 random(seed);
    const auto number = [&] { return static_cast<float>(random() % 2001) / 1000 - 1; };
    for (int64_t t = 0; t < cu_seqlens.back(); ++t) {
      values.push_back(number());
      rewards.push_back(number());
      mask.push_back(random() % 4 != 0);
      if (mask.back() == 0)
        values.back() = rewards.back() = std::numeric_limits<float>::quiet_NaN();
    }
  }
  kernels::Ragged ragged() const {
    return {cu_seqlens.data(), static_cast<int64_t>(cu_seqlens.size()) - 1};
  }
};

void check_gae(const Columns& c, float gamma, float lambda) {
  std::vector<float> advantages(c.values.size()), returns(c.values.size()), sums(c.values.size());
  kernels::gae(c.ragged(), {c.values.data(), c.rewards.data(), c.mask.data()}, gamma, lambda,
               advantages.data(), returns.data());
  kernels::discounted_returns(c.ragged(), c.rewards.data(), c.mask.data(), gamma, sums.data());
  for (size_t i = 0; i + 1 < c.cu_seqlens.size(); ++i) {
    const auto begin = static_cast<size_t>(c.cu_seqlens[i]),
               end = static_cast<size_t>(c.cu_seqlens[i + 1]);
    const auto v = [&](size_t t) {
      return t < end && c.mask[t] ? static_cast<double>(c.values[t]) : 0.0;
    };
    const auto r = [&](size_t t) {
      return t < end && c.mask[t] ? static_cast<double>(c.rewards[t]) : 0.0;
    };
    for (size_t t = begin; t < end; ++t) {
      double advantage = 0, sum = 0;
      for (size_t k = t; k < end;
           ++k) {  // the sum of discounted deltas: the definition, not the recursion
        const double power = static_cast<double>(k - t);
        advantage +=
            std::pow(static_cast<double>(gamma) * lambda, power) * (r(k) + gamma * v(k + 1) - v(k));
        sum += std::pow(static_cast<double>(gamma), power) * r(k);
      }
      EXPECT_NEAR(advantages[t], advantage, 5e-6) << t;
      EXPECT_NEAR(returns[t], advantage + v(t), 5e-6) << t;
      EXPECT_NEAR(sums[t], sum, 5e-6) << t;
    }
  }
}

void check_moments(const Columns& c) {
  const auto got = kernels::masked_moments(c.rewards.data(), c.mask.data(),
                                           static_cast<int64_t>(c.mask.size()), 0.5);
  double count = 0, sum = 0, squares = 0;
  for (size_t t = 0; t < c.mask.size(); ++t) {
    if (!c.mask[t]) continue;
    count += 1;
    sum += c.rewards[t] - 0.5;
    squares += (c.rewards[t] - 0.5) * (c.rewards[t] - 0.5);
  }
  EXPECT_EQ(got.count, count);
  EXPECT_NEAR(got.sum, sum, 1e-12);
  EXPECT_NEAR(got.squares, squares, 1e-12);
}

void check_all() {
  const std::vector<std::vector<int64_t>> layouts{
      {}, {0}, {1}, {4, 0, 1, 7}, {0, 0, 30, 0}, {1, 1, 1, 1, 1}, {64, 3, 65}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(i);
    const Columns c(layouts[i], static_cast<unsigned>(i));
    for (const float gamma : {0.f, 0.9f, 1.f}) {
      for (const float lambda : {0.f, 0.8f, 1.f}) check_gae(c, gamma, lambda);
    }
    check_moments(c);
  }
}

TEST(Scan, WithoutRuntimeThenUnderKokkos) {  // one test: Kokkos starts once in a process
  check_all();
  const kernels::Runtime runtime(1);
  EXPECT_NE(std::string(kernels::runtime_name()).find("Kokkos"), std::string::npos);
  check_all();
  kernels::check_row_functors_by_exec();
  kernels::check_paged_attention_by_exec();
}

}  // namespace
}  // namespace trireme::test
