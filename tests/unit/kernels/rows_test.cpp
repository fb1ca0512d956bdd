// Row sums of generation in their order of additions, and library products that do not depend on
// the number of rows.
#include "torch/torch.hpp"

#include "trireme/kernels/decode_rows.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstring>

#include "trireme/kernels/row_invariant.hpp"
#include "values.hpp"

namespace trireme::test {
namespace {

using kernels::ElementType;

TEST(DecodeRows, ResidualsAreAddedOnceAndRoundedOnce) {
  for (int64_t n = 0; n <= 40; ++n) {
    const auto count = static_cast<size_t>(n);
    std::vector<float> x = normals(1, n + 1);
    const std::vector<float> before = x, y = normals(2, n);
    kernels::add_row(ElementType::f32, x.data(), y.data(), n);
    std::vector<uint16_t> bits = to_bf16(before);
    const std::vector<uint16_t> bits_before = bits, bits_y = to_bf16(y);
    kernels::add_row(ElementType::bf16, bits.data(), bits_y.data(), n);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(x[i], before[i] + y[i]);
      EXPECT_EQ(bits[i], to_bf16(from_bf16(bits_before[i]) + from_bf16(bits_y[i])))
          << i << " of " << n;
    }
    EXPECT_EQ(x[count], before[count]);
    EXPECT_EQ(bits[count], bits_before[count]);
  }
}

TEST(DecodeRows, PartialSumsAreAddedInOrderInFp32) {
  constexpr int64_t stride = 50;
  int64_t another_order_differs = 0;
  for (const int64_t parts : {1, 2, 3, 8}) {
    const std::vector<float> partials = normals(3, parts * stride);
    for (int64_t n = 0; n <= 40; ++n) {
      std::vector<float> f32(static_cast<size_t>(n) + 1, -7.f);
      std::vector<uint16_t> bf16(f32.size(), 0xabcd);
      kernels::reduce_row(ElementType::f32, partials.data(), parts, stride, f32.data(), n);
      kernels::reduce_row(ElementType::bf16, partials.data(), parts, stride, bf16.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        float forward = 0, backward = 0;
        for (int64_t r = 0; r < parts; ++r) {
          forward += partials[static_cast<size_t>(r * stride + i)];
          backward += partials[static_cast<size_t>((parts - 1 - r) * stride + i)];
        }
        EXPECT_EQ(f32[static_cast<size_t>(i)], forward) << parts << " parts, " << i << " of " << n;
        EXPECT_EQ(bf16[static_cast<size_t>(i)], to_bf16(forward))
            << parts << " parts, " << i << " of " << n;
        another_order_differs += forward != backward;
      }
      EXPECT_EQ(f32.back(), -7.f);
      EXPECT_EQ(bf16.back(), 0xabcd);
    }
  }
  EXPECT_GT(another_order_differs, 0) << "data on which the order does not show";
}

class RowInvariant : public testing::TestWithParam<at::ScalarType> {
 protected:
  static constexpr int64_t k = 96, n = 48, most = 200;
  RowInvariant() {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(31);
    x_ = at::normal(0.0, 1.0, {most, k}, generator).to(GetParam());
    weight_ = at::normal(0.0, 1.0, {n, k}, generator).to(GetParam());
    bias_ = at::normal(0.0, 1.0, {n}, generator).to(GetParam());
  }
  at::Tensor x_, weight_, bias_;
};

TEST_P(RowInvariant, AnyNumberOfRowsGivesTheSameBits) {
  for (const bool with_bias : {false, true}) {
    const std::optional<at::Tensor> bias = with_bias ? std::optional(bias_) : std::nullopt;
    const at::Tensor all = kernels::linear(x_, weight_, bias);
    for (int64_t rows = 0; rows <= most; ++rows) {
      EXPECT_TRUE(
          at::equal(kernels::linear(x_.narrow(0, 0, rows), weight_, bias), all.narrow(0, 0, rows)))
          << rows << " rows";
    }
    for (int64_t row = 0; row < most; row += 7) {  // at another place of the batch
      EXPECT_TRUE(
          at::equal(kernels::linear(x_.narrow(0, row, 1), weight_, bias), all.narrow(0, row, 1)))
          << "row " << row;
    }
  }
}

TEST_P(RowInvariant, GradientsAreThoseWithoutPadding) {
  for (const int64_t rows : {1, 5, 31, 32}) {
    const auto gradients = [&](bool padded) {
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& t : {x_.narrow(0, 0, rows), weight_, bias_})
        leaves.push_back(t.clone().set_requires_grad(true));
      const at::Tensor y = padded ? kernels::linear(leaves[0], leaves[1], leaves[2])
                                  : at::linear(leaves[0], leaves[1], leaves[2]);
      y.to(at::kFloat).pow(2).sum().backward();
      for (at::Tensor& t : leaves) t = t.grad().to(at::kDouble);
      return leaves;
    };
    const auto got = gradients(true), want = gradients(false);
    const double tolerance = GetParam() == at::kFloat ? 1e-5 : 2e-2;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), want[i].sizes());
      EXPECT_LT((got[i] - want[i]).abs().max().item<double>(),
                tolerance * want[i].abs().max().item<double>())
          << rows << " rows";
    }
  }
}

TEST_P(RowInvariant, PaddingAppendsZeroRowsUpToTheLimitOnly) {
  const int64_t limit = kernels::invariant_rows();
  ASSERT_LE(limit, most);
  const at::Tensor enough = x_.narrow(0, 0, limit);
  EXPECT_TRUE(kernels::pad_rows(enough).is_same(enough));
  for (const int64_t rows : {0, 1, 31}) {
    const at::Tensor padded = kernels::pad_rows(x_.narrow(0, 0, rows));
    ASSERT_EQ(padded.size(0), limit);
    EXPECT_TRUE(at::equal(padded.narrow(0, 0, rows), x_.narrow(0, 0, rows)));
    EXPECT_EQ(at::count_nonzero(padded.narrow(0, rows, limit - rows)).item<int64_t>(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RowInvariant, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& tested) {
                           return tested.param == at::kFloat ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
