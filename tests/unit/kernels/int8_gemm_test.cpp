// Weights in 8 bits: what they stand for, and products with them, against double and between
// instruction sets.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "support/instruction_sets.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/int8_gemm.hpp"
#include "values.hpp"

namespace trireme::test {
namespace {

using namespace kernels;

// Values in fp32 that are exact in the type, and as it stores them.
struct Matrix {
  Matrix(ElementType element, std::vector<float> values)
      : type(element), f32(std::move(values)), bits(to_bf16(f32)) {
    if (type == ElementType::bf16) std::ranges::transform(bits, f32.begin(), from_bf16);
  }
  const void* data() const {
    return type == ElementType::bf16 ? static_cast<const void*>(bits.data()) : f32.data();
  }
  ElementType type;
  std::vector<float> f32;
  std::vector<uint16_t> bits;
};

std::vector<std::byte> quantised(const Matrix& weight, int64_t k, int64_t n) {
  std::vector<std::byte> out(static_cast<size_t>(int8_bytes(k, n)), std::byte{0x55});
  const int64_t half = int8_panels(n) / 2;
  const Int8Source source{weight.type, weight.data(), k, n};
  quantise(source, out.data(), half, int8_panels(n));
  quantise(source, out.data(), 0, half);
  return out;
}

struct Problem {
  Problem(ElementType type, int64_t rows, int64_t inputs, int64_t outputs)
      : m(rows),
        k(inputs),
        n(outputs),
        x(type, padded(rows, inputs)),
        weight(type, normals(2, outputs * inputs)),
        bias(type, normals(3, outputs)),
        int8(quantised(weight, inputs, outputs)) {}

  static std::vector<float> padded(int64_t rows, int64_t k) {
    std::vector<float> out(static_cast<size_t>(rows * gemm_padded(k)));
    const std::vector<float> values = normals(1, rows * k);
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(values.begin() + r * k, k, out.begin() + r * gemm_padded(k));
    return out;
  }

  // Rows [first, first + rows) of the product, in fp32; columns in two parts.
  std::vector<float> multiply(int64_t first, int64_t rows, bool with_bias = false,
                              int64_t cut = 0) const {
    std::vector<float> y(static_cast<size_t>(rows * n), -7.f);
    const auto* from = static_cast<const std::byte*>(x.data()) +
                       first * gemm_padded(k) * static_cast<int64_t>(size_of(x.type));
    const GemmArguments a{.type = x.type,
                          .weight = nullptr,
                          .int8 = int8.data(),
                          .bias = with_bias ? bias.data() : nullptr,
                          .x = from,
                          .y = y.data(),
                          .m = rows,
                          .k = k,
                          .n = n,
                          .ldx = gemm_padded(k),
                          .ldy = n,
                          .order = {},
                          .output = GemmOutput::f32};
    gemm_columns(a, 0, cut);
    gemm_columns(a, cut, n);
    return y;
  }

  int64_t m, k, n;
  Matrix x, weight, bias;
  std::vector<std::byte> int8;
};

// What the copy stands for: its products with unit vectors in fp32, which are exact.
std::vector<float> dequantised(const std::vector<std::byte>& int8, int64_t k, int64_t n) {
  std::vector<float> unit(static_cast<size_t>(k * gemm_padded(k))), y(static_cast<size_t>(k * n)),
      out(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < k; ++i) unit[static_cast<size_t>(i * gemm_padded(k) + i)] = 1;
  gemm_columns({.type = ElementType::f32,
                .weight = nullptr,
                .int8 = int8.data(),
                .bias = nullptr,
                .x = unit.data(),
                .y = y.data(),
                .m = k,
                .k = k,
                .n = n,
                .ldx = gemm_padded(k),
                .ldy = n,
                .order = {},
                .output = GemmOutput::f32},
               0, n);
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < n; ++j)
      out[static_cast<size_t>(j * k + i)] = y[static_cast<size_t>(i * n + j)];
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class Int8Gemm : public testing::TestWithParam<ElementType> {};

TEST_P(Int8Gemm, EachValueIsTheNearestOfItsGroup) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto [k, n] : {std::array<int64_t, 2>{64, 16}, {1, 1}, {150, 37}, {96, 50}}) {
      Matrix weight(GetParam(), normals(4, n * k));
      std::fill_n(weight.f32.begin(), std::min<int64_t>(k, int8_group), 0.f);  // a group of zeros
      std::fill_n(weight.bits.begin(), std::min<int64_t>(k, int8_group), uint16_t{0});
      const auto got = dequantised(quantised(weight, k, n), k, n);
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t begin = 0; begin < k; begin += int8_group) {
          const int64_t end = std::min(begin + int8_group, k);
          float largest = 0;
          for (int64_t i = begin; i < end; ++i)
            largest = std::max(largest, std::abs(weight.f32[static_cast<size_t>(j * k + i)]));
          for (int64_t i = begin; i < end; ++i) {
            const auto at = static_cast<size_t>(j * k + i);
            ASSERT_NEAR(got[at], weight.f32[at], largest / 127 * 0.5001f)
                << base::to_string(isa) << " " << k << "x" << n;
            if (std::abs(weight.f32[at]) == largest) { ASSERT_FLOAT_EQ(got[at], weight.f32[at]); }
          }
        }
      }
    }
  }
}

TEST_P(Int8Gemm, EveryInstructionSetMakesTheSameCopy) {
  const Matrix weight(GetParam(), normals(5, 70 * 200));
  std::optional<std::vector<std::byte>> want;
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    const auto got = quantised(weight, 200, 70);
    if (!want) want = got;
    EXPECT_TRUE(got == *want) << base::to_string(isa);
  }
}

TEST_P(Int8Gemm, IsTheProductOfWhatTheCopyStandsFor) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 1, 1},
                                 {2, 576, 70},
                                 {3, 31, 17},
                                 {7, 129, 33},
                                 {16, 96, 41},
                                 {40, 257, 95}}) {
      const Problem p(GetParam(), m, k, n);
      const auto weight = dequantised(p.int8, k, n), got = p.multiply(0, m, true);
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t j = 0; j < n; ++j) {
          double want = p.bias.f32[static_cast<size_t>(j)], size = std::abs(want);
          for (int64_t i = 0; i < k; ++i) {
            const double term = double{p.x.f32[static_cast<size_t>(r * gemm_padded(k) + i)]} *
                                double{weight[static_cast<size_t>(j * k + i)]};
            want += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(got[static_cast<size_t>(r * n + j)], want, 2e-6 * size)
              << base::to_string(isa) << " " << m << "x" << k << "x" << n;
        }
      }
    }
  }
}

// fp32 has two sets of bits: products added with one rounding, and with two. Products of bf16 and 8
// bits are exact.
TEST_P(Int8Gemm, EveryInstructionSetGivesTheSameBits) {
  for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 576, 64},
                               {2, 64, 90},
                               {4, 98, 8},
                               {8, 33, 50},
                               {9, 640, 33},
                               {29, 1056, 70},
                               {250, 64, 16}}) {
    const Problem p(GetParam(), m, k, n);
    std::optional<std::vector<float>> want[2];
    for (const auto isa : usable_instruction_sets()) {
      const UnderInstructionSet use(isa);
      auto& kind = want[GetParam() == ElementType::f32 && !products_are_fused()];
      const auto got = p.multiply(0, m, true);
      if (!kind) kind = got;
      EXPECT_TRUE(same_bits(got, *kind))
          << base::to_string(isa) << " " << m << "x" << k << "x" << n;
    }
  }
}

TEST_P(Int8Gemm, ARowDoesNotDependOnTheBatchOrTheColumnRanges) {
  const Problem p(GetParam(), 301, 300, 100);
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    const auto all = p.multiply(0, 301);
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 13, 16, 17, 32, 33, 240, 241}) {
      const std::vector<float> want(all.begin() + 17 * p.n, all.begin() + (17 + rows) * p.n);
      for (const int64_t cut : {0, 16, 32, 80}) {
        EXPECT_TRUE(same_bits(p.multiply(17, rows, false, cut), want))
            << base::to_string(isa) << ", " << rows << " rows, cut at " << cut;
      }
    }
  }
}

TEST_P(Int8Gemm, WritesItsOwnColumnsOnly) {  // other threads write the columns beside them
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const int64_t rows : {1, 3, 8, 40}) {
      const Problem p(GetParam(), rows, 64, 64);
      std::vector<float> y(static_cast<size_t>(rows * 64), 7.f);
      gemm_columns({.type = GetParam(),
                    .weight = nullptr,
                    .int8 = p.int8.data(),
                    .bias = nullptr,
                    .x = p.x.data(),
                    .y = y.data(),
                    .m = rows,
                    .k = 64,
                    .n = 64,
                    .ldx = 64,
                    .ldy = 64,
                    .order = {},
                    .output = GemmOutput::f32},
                   16, 37);
      const auto want = p.multiply(0, rows);
      for (size_t i = 0; i < y.size(); ++i) {
        EXPECT_EQ(y[i], i % 64 >= 16 && i % 64 < 37 ? want[i] : 7.f)
            << base::to_string(isa) << ", " << rows << " rows, element " << i;
      }
    }
  }
}

TEST_P(Int8Gemm, DamagedWeightsShow) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const float damage : {std::nanf(""), infinity, -infinity}) {
      Matrix weight(GetParam(), normals(6, 16 * 64));
      weight.f32[70] = damage;
      weight.bits[70] = std::isnan(damage) ? 0x7fc0 : to_bf16(damage);
      const auto got = dequantised(quantised(weight, 64, 16), 64, 16);
      EXPECT_FALSE(std::isfinite(got[70])) << base::to_string(isa) << ", " << damage;
      EXPECT_TRUE(std::isfinite(got[63]) && std::isfinite(got[128])) << "other rows keep theirs";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Int8Gemm, testing::Values(ElementType::f32, ElementType::bf16),
                         [](const auto& tested) {
                           return tested.param == ElementType::f32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
