#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/row_invariant.hpp"

namespace trireme::test {
namespace {

using namespace kernels;

struct Problem {
  ElementType type;
  int64_t m, k, n;
  at::Tensor x, weight, bias, padded;

  Problem(ElementType element, int64_t rows, int64_t inputs, int64_t outputs) : type(element), m(rows), k(inputs), n(outputs) {
    const auto dtype = type == ElementType::f32 ? at::kFloat : at::kBFloat16;
    x = at::randn({m, k}).to(dtype);
    // Whoever reads past the weight's end multiplies NaN.
    weight = at::full({n * k + 64}, std::numeric_limits<double>::quiet_NaN(), x.options()).narrow(0, 0, n * k).view({n, k});
    weight.copy_(at::randn({n, k}));
    bias = at::randn({n}).to(dtype);
    padded = at::zeros({m, gemm_padded(k)}, x.options());
    padded.narrow(1, 0, k).copy_(x);
  }

  // Rows [first, first + rows) of the product.
  at::Tensor multiply(int64_t block, int64_t first, int64_t rows, bool with_bias = false, GemmOutput output = GemmOutput::element,
                      int64_t cut = -1) const {
    at::Tensor y = at::empty({rows, n}, output == GemmOutput::f32 ? x.options().dtype(at::kFloat) : x.options());
    GemmArguments a;
    a.type = type;
    a.weight = weight.const_data_ptr();
    a.bias = with_bias ? bias.const_data_ptr() : nullptr;
    a.x = static_cast<const std::byte*>(padded.const_data_ptr()) + first * gemm_padded(k) * static_cast<int64_t>(size_of(type));
    a.y = y.mutable_data_ptr();
    a.m = rows;
    a.k = k;
    a.n = n;
    a.ldx = gemm_padded(k);
    a.ldy = n;
    a.order.block = block;
    a.output = output;
    if (cut < 0) {
      gemm_columns(a, 0, n);
    } else {
      gemm_columns(a, 0, cut);
      gemm_columns(a, cut, n);
    }
    return y;
  }
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

class RestoreIsa {
 public:
  ~RestoreIsa() { base::use_isa(base::best_isa()); }
};

class DecodeGemm : public testing::TestWithParam<ElementType> {};

TEST_P(DecodeGemm, EveryInstructionSetGivesTheSameBits) {
  if (base::best_isa() < base::Isa::avx512) GTEST_SKIP() << "this processor has no AVX-512";
  const RestoreIsa restore;
  for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 576, 64}, {3, 100, 37}, {8, 33, 50}, {9, 640, 33}, {29, 1056, 70}, {250, 64, 16}}) {
    const Problem p(GetParam(), m, k, n);
    for (const bool bias : {false, true}) {
      base::use_isa(base::Isa::portable);
      const at::Tensor want = p.multiply(192, 0, m, bias), wide = p.multiply(192, 0, m, bias, GemmOutput::f32);
      for (const base::Isa isa : {base::Isa::avx512, base::Isa::avx512_bf16}) {
        if (isa > base::best_isa()) continue;
        base::use_isa(isa);
        EXPECT_TRUE(same_bits(p.multiply(192, 0, m, bias), want)) << to_string(isa) << " " << m << "x" << k << "x" << n;
        EXPECT_TRUE(same_bits(p.multiply(192, 0, m, bias, GemmOutput::f32), wide)) << to_string(isa) << " " << m << "x" << k << "x" << n;
      }
    }
  }
}

TEST_P(DecodeGemm, ARowDoesNotDependOnTheBatchOrTheColumnRanges) {
  const Problem p(GetParam(), 301, 600, 100);
  const at::Tensor all = p.multiply(192, 0, 301);
  for (const int64_t rows : {1, 2, 5, 7, 8, 9, 12, 13, 32, 240, 241}) {
    EXPECT_TRUE(same_bits(p.multiply(192, 17, rows), all.narrow(0, 17, rows))) << rows << " rows";
    EXPECT_TRUE(same_bits(p.multiply(192, 17, rows, false, GemmOutput::element, 32), all.narrow(0, 17, rows))) << rows << " rows, two ranges";
  }
}

TEST_P(DecodeGemm, IsTheProduct) {
  for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 1, 1}, {4, 31, 17}, {40, 257, 95}}) {
    const Problem p(GetParam(), m, k, n);
    const at::Tensor want = at::matmul(p.x.to(at::kDouble), p.weight.to(at::kDouble).t()) + p.bias.to(at::kDouble);
    const at::Tensor got = p.multiply(192, 0, m, true, GemmOutput::f32).to(at::kDouble);
    EXPECT_LT(at::max(at::abs(got - want)).item<double>(), 1e-4);
  }
}

TEST_P(DecodeGemm, FollowsTheTrainersOrder) {
  at::set_num_threads(1);
  for (const auto [k, n] : {std::array<int64_t, 2>{576, 576}, {576, 1536}, {1536, 576}, {576, 4096}, {1024, 512}, {96, 160}}) {
    const GemmOrder order = find_order(GetParam(), k, n);
    if (!order.matches_library) GTEST_SKIP() << "LibTorch adds in another order on this processor: " << describe(GetParam(), k, n, order);
    if (order.ascending) GTEST_SKIP() << "this processor multiplies no bf16: products_test compares the order of widened products";
    const Problem p(GetParam(), 64, k, n);
    const at::Tensor want = kernels::linear(p.x, p.weight, std::nullopt);
    for (const int64_t rows : {1, 4, 8, 9, 64}) {
      EXPECT_TRUE(same_bits(p.multiply(order.block, 0, rows), want.narrow(0, 0, rows))) << describe(GetParam(), k, n, order) << ", rows " << rows;
    }
    EXPECT_TRUE(same_bits(p.multiply(order.block, 0, 64, true), kernels::linear(p.x, p.weight, p.bias))) << "with bias, " << k << "x" << n;
  }
}

TEST_P(DecodeGemm, AnotherBlockLengthGivesOtherBits) {  // or the test above could not fail
  const Problem p(GetParam(), 8, 1536, 64);
  EXPECT_FALSE(same_bits(p.multiply(192, 0, 8, false, GemmOutput::f32), p.multiply(512, 0, 8, false, GemmOutput::f32)));
}

INSTANTIATE_TEST_SUITE_P(Types, DecodeGemm, testing::Values(ElementType::f32, ElementType::bf16),
                         [](const auto& tested) { return tested.param == ElementType::f32 ? "fp32" : "bf16"; });

}  // namespace
}  // namespace trireme::test
