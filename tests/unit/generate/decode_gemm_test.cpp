#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "support/instruction_sets.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/row_invariant.hpp"

namespace trireme::test {
namespace {

using namespace kernels;

struct Problem {
  ElementType type;
  int64_t m, k, n;
  at::Tensor x, weight, bias, padded;

  Problem(ElementType element, int64_t rows, int64_t inputs, int64_t outputs)
      : type(element), m(rows), k(inputs), n(outputs) {
    const auto dtype = type == ElementType::f32 ? at::kFloat : at::kBFloat16;
    x = at::randn({m, k}).to(dtype);
    // Whoever reads past the weight's end multiplies NaN.
    weight = at::full({n * k + 64}, std::numeric_limits<double>::quiet_NaN(), x.options())
                 .narrow(0, 0, n * k)
                 .view({n, k});
    weight.copy_(at::randn({n, k}));
    bias = at::randn({n}).to(dtype);
    padded = at::zeros({m, gemm_padded(k)}, x.options());
    padded.narrow(1, 0, k).copy_(x);
  }

  GemmArguments arguments(int64_t block, int64_t first, int64_t rows) const {
    GemmArguments a;
    a.type = type;
    a.weight = weight.const_data_ptr();
    a.x = static_cast<const std::byte*>(padded.const_data_ptr()) +
          first * gemm_padded(k) * static_cast<int64_t>(size_of(type));
    a.m = rows;
    a.k = k;
    a.n = n;
    a.ldx = gemm_padded(k);
    a.ldy = n;
    a.order.block = block;
    return a;
  }

  // Rows [first, first + rows) of the product.
  at::Tensor multiply(int64_t block, int64_t first, int64_t rows, bool with_bias = false,
                      GemmOutput output = GemmOutput::element, int64_t cut = 0) const {
    at::Tensor y = at::empty(
        {rows, n}, output == GemmOutput::f32 ? x.options().dtype(at::kFloat) : x.options());
    GemmArguments a = arguments(block, first, rows);
    a.bias = with_bias ? bias.const_data_ptr() : nullptr;
    a.y = y.mutable_data_ptr();
    a.output = output;
    gemm_columns(a, 0, cut);
    gemm_columns(a, cut, n);
    return y;
  }

  // The first `rows` rows of the product, added in an order that was found.
  at::Tensor multiply_in(const GemmOrder& order, int64_t rows, bool with_bias = false) const {
    at::Tensor y = at::empty({rows, n}, x.options());
    GemmArguments a = arguments(order.block, 0, rows);
    a.order = order;
    a.bias = with_bias ? bias.const_data_ptr() : nullptr;
    a.y = y.mutable_data_ptr();
    gemm_columns(a, 0, n);
    return y;
  }
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

class DecodeGemm : public testing::TestWithParam<ElementType> {};

// fp32 has two sets of bits: products added with one rounding, and with two. bf16 has one.
TEST_P(DecodeGemm, EveryInstructionSetGivesTheSameBits) {
  for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 576, 64},
                               {2, 64, 90},
                               {3, 100, 37},
                               {4, 98, 8},
                               {5, 32, 128},
                               {8, 33, 50},
                               {9, 640, 33},
                               {17, 416, 24},
                               {29, 1056, 70},
                               {250, 64, 16}}) {
    const Problem p(GetParam(), m, k, n);
    for (const bool bias : {false, true}) {
      std::optional<at::Tensor> want[2], wide[2];
      for (const base::Isa isa : usable_instruction_sets()) {
        const UnderInstructionSet use(isa);
        const size_t kind = GetParam() == ElementType::f32 && !products_are_fused();
        const at::Tensor got = p.multiply(192, 0, m, bias),
                         sums = p.multiply(192, 0, m, bias, GemmOutput::f32);
        if (!want[kind]) want[kind] = got, wide[kind] = sums;
        EXPECT_TRUE(same_bits(got, *want[kind]))
            << to_string(isa) << " " << m << "x" << k << "x" << n;
        EXPECT_TRUE(same_bits(sums, *wide[kind]))
            << to_string(isa) << " " << m << "x" << k << "x" << n;
      }
    }
  }
}

TEST(ProductsAreFused, OnEveryInstructionSetWithFma) {
  for (const base::Isa isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    EXPECT_TRUE(isa == base::Isa::portable || products_are_fused()) << to_string(isa);
    const Problem p(ElementType::f32, 1, 1536, 16);
    // The same sums in the order written in the header, one product after another.
    const at::Tensor got = p.multiply(192, 0, 1);
    for (int64_t n = 0; n < p.n; ++n) {
      float total = 0;
      for (int64_t begin = 0; begin < p.k; begin += 192) {
        float sum = 0;
        for (int64_t k = begin; k < begin + 192; ++k) {
          const float x = p.x.const_data_ptr<float>()[k],
                      w = p.weight.const_data_ptr<float>()[n * p.k + k];
          sum = products_are_fused() ? std::fma(x, w, sum) : x * w + sum;
        }
        total += sum;
      }
      EXPECT_EQ(got.const_data_ptr<float>()[n], total) << to_string(isa) << " output " << n;
    }
  }
}

// The order in which an fp32 product of widened values adds.
TEST(DecodeGemmAscending, Bf16AddsAsFp32Does) {
  for (const base::Isa isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    if (!products_are_fused()) continue;  // two roundings in fp32, one in bf16
    for (const int64_t rows : {1, 3, 8, 40}) {
      const Problem p(ElementType::bf16, rows, 1000, 70);
      at::Tensor y = at::empty({rows, 70}, at::kFloat), wide = at::empty({rows, 70}, at::kFloat);
      const at::Tensor weight = p.weight.to(at::kFloat), x = p.padded.to(at::kFloat);
      GemmArguments a = p.arguments(192, 0, rows);
      a.order.ascending = true;
      a.output = GemmOutput::f32;
      a.y = y.mutable_data_ptr();
      gemm_columns(a, 0, 70);
      a.type = ElementType::f32;
      a.weight = weight.const_data_ptr();
      a.x = x.const_data_ptr();
      a.y = wide.mutable_data_ptr();
      gemm_columns(a, 0, 70);
      EXPECT_TRUE(same_bits(y, wide)) << to_string(isa) << ", " << rows << " rows";
      EXPECT_FALSE(same_bits(y, p.multiply(192, 0, rows, false, GemmOutput::f32)))
          << "pair by pair gives the same: nothing was tested";
    }
  }
}

TEST_P(DecodeGemm, ARowDoesNotDependOnTheBatchOrTheColumnRanges) {
  for (const base::Isa isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    const Problem p(GetParam(), 301, 600, 100);
    const at::Tensor all = p.multiply(192, 0, 301);
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 32, 240, 241}) {
      EXPECT_TRUE(same_bits(p.multiply(192, 17, rows), all.narrow(0, 17, rows)))
          << to_string(isa) << ", " << rows << " rows";
      for (const int64_t cut : {32, 37}) {
        EXPECT_TRUE(same_bits(p.multiply(192, 17, rows, false, GemmOutput::element, cut),
                              all.narrow(0, 17, rows)))
            << to_string(isa) << ", " << rows << " rows, cut at " << cut;
      }
    }
  }
}

TEST_P(DecodeGemm, WritesItsOwnColumnsOnly) {  // other threads write the columns beside them
  for (const base::Isa isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const int64_t rows : {1, 3, 8, 40}) {
      const Problem p(GetParam(), rows, 64, 64);
      at::Tensor y = at::full({rows, 64}, 7.0, p.x.options());
      GemmArguments a = p.arguments(192, 0, rows);
      a.y = y.mutable_data_ptr();
      gemm_columns(a, 5, 37);
      EXPECT_TRUE(at::all(y.narrow(1, 0, 5) == 7).item<bool>() &&
                  at::all(y.narrow(1, 37, 27) == 7).item<bool>())
          << to_string(isa) << ", " << rows << " rows";
      EXPECT_TRUE(at::equal(y.narrow(1, 5, 32), p.multiply(192, 0, rows).narrow(1, 5, 32)))
          << to_string(isa) << ", " << rows << " rows";
    }
  }
}

TEST_P(DecodeGemm, IsTheProduct) {
  for (const base::Isa isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 1, 1},
                                 {1, 577, 70},
                                 {2, 40, 41},
                                 {4, 31, 17},
                                 {7, 129, 33},
                                 {40, 257, 95}}) {
      const Problem p(GetParam(), m, k, n);
      const at::Tensor want =
          at::matmul(p.x.to(at::kDouble), p.weight.to(at::kDouble).t()) + p.bias.to(at::kDouble);
      const at::Tensor got = p.multiply(192, 0, m, true, GemmOutput::f32).to(at::kDouble);
      EXPECT_LT(at::max(at::abs(got - want)).item<double>(), 1e-4) << to_string(isa);
    }
  }
}

TEST_P(DecodeGemm, FollowsTheTrainersOrder) {
  at::set_num_threads(1);
  for (const base::Isa isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto [k, n] : {std::array<int64_t, 2>{576, 576},
                              {576, 1536},
                              {1536, 576},
                              {576, 4096},
                              {1024, 512},
                              {96, 160}}) {
      const GemmOrder order = find_order(GetParam(), k, n);
      if (GetParam() == ElementType::f32 && !products_are_fused()) continue;
      if (!order.matches_library && !order.tiles)
        GTEST_SKIP() << "LibTorch adds in another order on this processor: "
                     << describe(GetParam(), k, n, order);
      const Problem p(GetParam(), 64, k, n);
      const at::Tensor want = kernels::linear(p.x, p.weight, std::nullopt);
      for (const int64_t rows : {1, 4, 8, 9, 64}) {
        EXPECT_TRUE(same_bits(p.multiply_in(order, rows), want.narrow(0, 0, rows)))
            << to_string(isa) << ", " << describe(GetParam(), k, n, order) << ", rows " << rows;
      }
      EXPECT_TRUE(same_bits(p.multiply_in(order, 64, true), kernels::linear(p.x, p.weight, p.bias)))
          << "with bias, " << k << "x" << n;
    }
  }
}

// Matrix units: steps of 32 along k, of which even and odd elements are added apart (Intel's
// manual, TDPBF16PS).
float sum_in_tiles(const Problem& p, int64_t row, int64_t output) {
  const auto* x = p.x.const_data_ptr<at::BFloat16>() + row * p.k;
  const auto* w = p.weight.const_data_ptr<at::BFloat16>() + output * p.k;
  float total = 0;
  for (int64_t begin = 0; begin < p.k; begin += 32) {
    float sums[2] = {};
    for (int64_t k = begin; k < std::min(begin + 32, p.k); ++k)
      sums[k % 2] = std::fma(static_cast<float>(x[k]), static_cast<float>(w[k]), sums[k % 2]);
    total += sums[0] + sums[1];
  }
  return total;
}

class DecodeGemmTiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!base::has_matrix_units()) GTEST_SKIP() << "no matrix units, or they are capped";
  }
};

TEST_F(DecodeGemmTiles, AddAsTheManualSaysAndWriteTheirOwnColumnsOnly) {
  for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 576, 64},
                               {1, 1, 1},
                               {5, 100, 37},
                               {16, 577, 95},
                               {17, 64, 40},
                               {33, 31, 5},
                               {48, 96, 130},
                               {290, 200, 50}}) {
    const Problem p(ElementType::bf16, m, k, n);
    for (const int64_t cut : {int64_t{0}, n / 2}) {
      at::Tensor sums = at::full({m, n}, 7.0, at::kFloat);
      GemmArguments a = p.arguments(gemm_padded(k), 0, m);
      a.x = p.x.const_data_ptr();  // not padded
      a.ldx = k;
      a.order.tiles = true;
      a.output = GemmOutput::f32;
      a.y = sums.mutable_data_ptr();
      gemm_columns(a, cut, n);
      for (int64_t row = 0; row < m; ++row) {
        for (int64_t output = 0; output < n; ++output) {
          const float got = sums.const_data_ptr<float>()[row * n + output];
          ASSERT_EQ(got, output < cut ? 7.f : sum_in_tiles(p, row, output))
              << m << "x" << k << "x" << n << " from " << cut << ": row " << row << ", output "
              << output;
        }
      }
    }
  }
}

// Where LibTorch's library adds all of K in one go too.
TEST_F(DecodeGemmTiles, GiveLibTorchsBits) {
  at::set_num_threads(1);
  bool shown = false;
  for (const auto [k, n] : {std::array<int64_t, 2>{64, 192}, {272, 576}, {576, 192}, {577, 64}}) {
    const Problem p(ElementType::bf16, 128, k, n);
    GemmOrder order;
    order.tiles = true;
    order.block = gemm_padded(k);
    const at::Tensor want = at::linear(p.x, p.weight);
    for (const int64_t rows : {1, 8, 31, 128})
      EXPECT_TRUE(same_bits(p.multiply_in(order, rows), want.narrow(0, 0, rows)))
          << k << "x" << n << ", " << rows << " rows";
    shown = shown ||
            !same_bits(p.multiply(512, 0, 128), want);  // rounding hides the order of short sums
  }
  EXPECT_TRUE(shown) << "pair by pair gives the same: nothing was tested";
}

// The library's own products differ there: it cuts K by rows, columns and threads.
TEST_F(DecodeGemmTiles, AreTheTrainersForEveryNumberOfRowsAndThreads) {
  for (const auto [k, n] : {std::array<int64_t, 2>{1000, 576}, {2304, 192}, {4096, 64}, {31, 48}}) {
    const Problem p(ElementType::bf16, 600, k, n);
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      const GemmOrder order = find_order(ElementType::bf16, k, n);
      EXPECT_TRUE(order.tiles && order.matches_with_bias)
          << describe(ElementType::bf16, k, n, order);
      for (const int64_t rows : {1, 2, 33, 96, 300, 600}) {
        EXPECT_TRUE(same_bits(kernels::linear(p.x.narrow(0, 0, rows), p.weight, p.bias),
                              p.multiply_in(order, rows, true)))
            << k << "x" << n << ", " << rows << " rows, " << threads << " threads";
      }
    }
  }
  at::set_num_threads(1);
}

TEST_P(DecodeGemm, AnotherBlockLengthGivesOtherBits) {  // or the test above could not fail
  const Problem p(GetParam(), 8, 1536, 64);
  EXPECT_FALSE(same_bits(p.multiply(192, 0, 8, false, GemmOutput::f32),
                         p.multiply(512, 0, 8, false, GemmOutput::f32)));
}

#if defined(__x86_64__)
// The parts of the register file that are in use, where the processor tells: bit 2 the upper halves
// of ymm, bit 6 those of zmm, bits 17 and 18 tiles.
std::optional<uint64_t> registers_in_use() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(13, 1, &a, &b, &c, &d) == 0 || (a & 4) == 0) return std::nullopt;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
  return static_cast<uint64_t>(d) << 32 | a;
}

TEST_P(DecodeGemm, LeavesNoUpperHalvesInUse) {  // or code for older instruction sets runs at a
                                                // third of its speed from then on
  if (!registers_in_use()) GTEST_SKIP() << "this processor does not tell";
  for (const base::Isa isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const int64_t rows : {1, 2, 8, 40}) {
      const Problem p(GetParam(), rows, 64, 64);
      at::Tensor y = at::empty({rows, 64}, p.x.options());
      GemmArguments a = p.arguments(192, 0, rows);
      a.y = y.mutable_data_ptr();
      a.order.tiles = GetParam() == ElementType::bf16 && base::has_matrix_units();
      gemm_columns(a, 0, 64);
      EXPECT_EQ(*registers_in_use() & 0x60044, 0u) << to_string(isa) << ", " << rows << " rows";
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Types, DecodeGemm, testing::Values(ElementType::f32, ElementType::bf16),
                         [](const auto& tested) {
                           return tested.param == ElementType::f32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
