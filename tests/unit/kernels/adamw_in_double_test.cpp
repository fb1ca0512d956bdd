// The optimizer pass against AdamW in double over several steps, and what it does with values that
// are not finite. tests/unit/zero/adamw_test.cpp compares its code paths with each other and one
// step with LibTorch's.
#include "trireme/kernels/adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "values.hpp"

namespace trireme::test {
namespace {

using kernels::AdamWStep;

// One shard with guard values behind each of its arrays.
struct Shard {
  explicit Shard(int64_t n)
      : elements(n),
        master(normals(1, n)),
        moment1(master.size()),
        moment2(master.size()),
        bf16(to_bf16(master)),
        fp32(master),
        changed((master.size() + 63) / 64, ~uint64_t{0}) {
    for (auto* column : {&master, &moment1, &moment2, &fp32}) column->push_back(guard);
    bf16.push_back(guard_bits);
  }
  kernels::AdamWShard pointers(const std::vector<float>& gradient, bool as_bf16) {
    kernels::AdamWShard out;
    out.master = master.data();
    out.moment1 = moment1.data();
    out.moment2 = moment2.data();
    out.gradient = gradient.data();
    out.compute_bf16 = as_bf16 ? bf16.data() : nullptr;
    out.compute_fp32 = as_bf16 ? nullptr : fp32.data();
    out.changed = changed.data();
    out.elements = elements;
    return out;
  }
  bool guards_stand() const {
    return master.back() == guard && moment1.back() == guard && moment2.back() == guard &&
           fp32.back() == guard && bf16.back() == guard_bits;
  }
  bool bit(int64_t i) const { return (changed[static_cast<size_t>(i / 64)] >> (i % 64) & 1u) != 0; }

  static constexpr float guard = -77.f;
  static constexpr uint16_t guard_bits = 0xabcd;
  int64_t elements;
  std::vector<float> master, moment1, moment2;
  std::vector<uint16_t> bf16;
  std::vector<float> fp32;
  std::vector<uint64_t> changed;
};

// Loshchilov & Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2, with
// bias-corrected moments.
struct Double {
  double value, m = 0, v = 0;
  void step(double gradient, const AdamWStep& s) {
    gradient *= s.clip_factor;
    m = s.beta1 * m + (1 - s.beta1) * gradient;
    v = s.beta2 * v + (1 - s.beta2) * gradient * gradient;
    const auto t = static_cast<double>(s.step);
    const double corrected_m = m / (1 - std::pow(s.beta1, t)),
                 corrected_v = v / (1 - std::pow(s.beta2, t));
    value = value - s.lr * s.weight_decay * value -
            s.lr * corrected_m / (std::sqrt(corrected_v) + s.eps);
  }
};

TEST(AdamWInDouble, TenStepsAtEveryLengthAroundAVector) {
  for (const int64_t n : {1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 130}) {
    for (const double decay : {0.0, 0.3}) {
      Shard shard(n);
      std::vector<Double> exact;
      for (int64_t i = 0; i < n; ++i)
        exact.push_back({static_cast<double>(shard.master[static_cast<size_t>(i)])});
      for (int64_t step = 1; step <= 10; ++step) {
        const std::vector<float> gradient = normals(10 + static_cast<uint64_t>(step), n);
        const AdamWStep s{.lr = 3e-2, .weight_decay = decay, .clip_factor = 0.8, .step = step};
        kernels::adamw(shard.pointers(gradient, true), s);
        for (size_t i = 0; i < exact.size(); ++i)
          exact[i].step(static_cast<double>(gradient[i]), s);
      }
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_NEAR(shard.master[i], exact[i].value, 2e-6) << i << " of " << n;
        EXPECT_NEAR(shard.moment1[i], exact[i].m, 1e-6) << i << " of " << n;
        EXPECT_NEAR(shard.moment2[i], exact[i].v, 1e-6) << i << " of " << n;
        EXPECT_EQ(shard.bf16[i], to_bf16(shard.master[i])) << i << " of " << n;
      }
      EXPECT_TRUE(shard.guards_stand()) << n;
    }
  }
}

// With the bias corrections the first step is lr long whatever the gradient's size.
TEST(AdamWInDouble, TheFirstStepHasTheLengthOfTheLearningRate) {
  Shard shard(100);
  const std::vector<float> before = shard.master, gradient = normals(2, 100);
  kernels::adamw(shard.pointers(gradient, true), {.lr = 0.25, .eps = 0, .step = 1});
  for (size_t i = 0; i < 100; ++i)
    EXPECT_NEAR(before[i] - shard.master[i], std::copysign(0.25f, gradient[i]), 1e-6);
}

TEST(AdamWInDouble, CountsAndMarksWhatChanged) {
  for (const bool as_bf16 : {true, false}) {
    for (const int64_t n : {1, 63, 64, 65, 200}) {
      Shard shard(n);
      const auto before_bf16 = shard.bf16;
      const auto before_fp32 = shard.fp32;
      std::vector<float> gradient = normals(3, n);
      for (size_t i = 0; i < gradient.size(); i += 3) gradient[i] = 0;  // with m = v = 0 these stay
      const int64_t count =
          kernels::adamw(shard.pointers(gradient, as_bf16), {.lr = 2e-3, .step = 1});
      int64_t want = 0;
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        const bool differs = as_bf16 ? shard.bf16[at] != before_bf16[at]
                                     : std::bit_cast<uint32_t>(shard.fp32[at]) !=
                                           std::bit_cast<uint32_t>(before_fp32[at]);
        EXPECT_EQ(shard.bit(i), differs) << i << " of " << n;
        want += differs;
      }
      EXPECT_EQ(count, want);
      EXPECT_LE(count, n - (n + 2) / 3);
      for (int64_t i = n; i % 64 != 0; ++i)
        EXPECT_FALSE(shard.bit(i)) << "bits beyond the shard of " << n;
      EXPECT_TRUE(shard.guards_stand());
    }
  }
}

// A sign that changes changes the weight that is sent: -0 is not 0.
TEST(AdamWInDouble, NegativeZeroIsAnotherValue) {
  Shard shard(1);
  shard.master[0] = 0.f;
  shard.fp32[0] = -0.f;
  EXPECT_EQ(kernels::adamw(shard.pointers({0.f}, false), {.lr = 0, .step = 1}), 1);
}

TEST(AdamWInDouble, WithoutAComputeCopyNothingIsCounted) {
  Shard shard(70);
  const std::vector<float> gradient = normals(4, 70);
  auto pointers = shard.pointers(gradient, false);
  pointers.compute_fp32 = nullptr;
  EXPECT_EQ(kernels::adamw(pointers, {.lr = 0.1, .step = 1}), 0);
  EXPECT_EQ(shard.changed, (std::vector<uint64_t>{0, 0}));
  pointers.changed = nullptr;
  EXPECT_EQ(kernels::adamw(pointers, {.lr = 0.1, .step = 2}), 0);
}

TEST(AdamWInDouble, AGradientThatIsNotFiniteSpoilsItsOwnElementOnly) {
  constexpr int64_t n = 100;
  const float all_ones =
      std::bit_cast<float>(0x7fffffffu);  // a NaN that rounding up would turn into -0
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), all_ones,
                       std::numeric_limits<float>::infinity(), 3e38f};
  for (const int64_t at : {0, 15, 40, 63, 64, 99}) {
    for (const float value : bad) {
      Shard shard(n), sound(n);
      std::vector<float> gradient = normals(5, n);
      const AdamWStep step{.lr = 1e-2, .step = 1};
      kernels::adamw(sound.pointers(gradient, true), step);
      gradient[static_cast<size_t>(at)] = value;
      kernels::adamw(shard.pointers(gradient, true), step);
      for (int64_t i = 0; i < n; ++i) {
        const auto j = static_cast<size_t>(i);
        if (i != at) {
          EXPECT_EQ(shard.master[j], sound.master[j]) << i;
          EXPECT_EQ(shard.bf16[j], sound.bf16[j]) << i;
        } else if (value < 3.1e38f) {
          EXPECT_FALSE(std::isnan(shard.master[j])) << "the square overflows: no step, but no NaN";
        } else {
          EXPECT_TRUE(std::isnan(shard.master[j]) && std::isnan(from_bf16(shard.bf16[j]))) << i;
          EXPECT_TRUE(shard.bit(i));
        }
      }
    }
  }
}

TEST(MovingAverage, EqualsItsFormulaInDouble) {
  for (const int64_t n : {0, 1, 15, 16, 17, 1000}) {
    for (const double beta : {0.0, 0.992, 1.0}) {
      std::vector<float> average = normals(6, n + 1);
      const std::vector<float> before = average, values = normals(7, n);
      kernels::moving_average(average.data(), values.data(), beta, n);
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(
            average[i],
            beta * static_cast<double>(before[i]) + (1 - beta) * static_cast<double>(values[i]),
            3e-7);
      }
      EXPECT_EQ(average.back(), before.back());
    }
  }
}

TEST(SquaredNorm, HasTheRangeOfDouble) {
  const std::vector<float> large(5000, 3e38f), small(5000, 1e-44f);
  EXPECT_NEAR(
      kernels::squared_norm(large.data(), 5000) / (5000 * std::pow(static_cast<double>(3e38f), 2)),
      1, 1e-13);
  EXPECT_NEAR(
      kernels::squared_norm(small.data(), 5000) / (5000 * std::pow(static_cast<double>(1e-44f), 2)),
      1, 1e-13);
  std::vector<float> spoiled(5000, 1.f);
  spoiled[4321] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(kernels::squared_norm(spoiled.data(), 5000)));
}

}  // namespace
}  // namespace trireme::test
