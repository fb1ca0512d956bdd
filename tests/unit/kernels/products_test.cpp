// Products of training against fp64, with bf16 multiplied natively and by fp32 arithmetic on
// widened values.
#include "torch/torch.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "trireme/base/isa.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/row_invariant.hpp"
#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using kernels::Sum;

// Products as they are on a processor without AVX512-BF16, also on one that has it.
class Products : public testing::TestWithParam<int> {
 protected:
  Products() {
    at::set_num_threads(GetParam());
    const base::Isa lower = std::min(base::best_isa(), base::Isa::avx512);
    base::use_isa(lower);
  }
  ~Products() override {
    base::use_isa(base::best_isa());
    at::set_num_threads(1);
  }
  Tensor random(at::IntArrayRef shape, at::ScalarType type = at::kBFloat16) {
    return at::normal(0.0, 1.0, shape, generator_).to(type);
  }
  at::Generator generator_ = at::make_generator<at::CPUGeneratorImpl>(5);
};

// The nearest bf16 of a sum that is known up to a relative error of its absolute terms: where the
// exact sum lies that near to the middle between two bf16 numbers, either neighbour is right.
void expect_rounded_once(const Tensor& got, const Tensor& exact, const Tensor& magnitude,
                         const char* what) {
  const Tensor low = exact - magnitude * 1e-6, high = exact + magnitude * 1e-6;
  const Tensor value = got.to(at::kDouble);
  EXPECT_TRUE(
      at::all(at::ge(value, low.to(at::kFloat).to(at::kBFloat16).to(at::kDouble))).item<bool>())
      << what;
  EXPECT_TRUE(
      at::all(at::le(value, high.to(at::kFloat).to(at::kBFloat16).to(at::kDouble))).item<bool>())
      << what;
}

TEST_P(Products, WidenedProductsAreFp64RoundedOnce) {
  ASSERT_FALSE(kernels::multiplies_bf16(at::kCPU));
  for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 1, 1},
                               {3, 70, 5},
                               {64, 33, 100},
                               {200, 576, 300},
                               {1100, 40, 5000}}) {
    const Tensor a = random({m, k}), b = random({k, n}), c = random({n, k}), d = random({k, m});
    const auto check = [&](const Tensor& left, const Tensor& right, const char* what) {
      const Tensor exact = at::matmul(left.to(at::kDouble), right.to(at::kDouble));
      const Tensor magnitude = at::matmul(left.abs().to(at::kDouble), right.abs().to(at::kDouble));
      const Tensor out = at::empty({m, n}, at::kBFloat16), wide = at::ones({m, n}, at::kFloat);
      kernels::multiply(out, left, right);
      expect_rounded_once(out, exact, magnitude, what);
      kernels::multiply(wide, left, right, Sum::add);  // unrounded, on top of 1
      EXPECT_LT(at::max(at::abs(wide.to(at::kDouble) - 1 - exact) / (magnitude + 1)).item<double>(),
                2e-6)
          << what;
    };
    check(a, b, "a b");
    check(a, c.t(), "a c^T");
    check(d.t(), b, "d^T b");
  }
}

// bf16 into fp32 by the processor's matrix units, against fp64 and against what it replaces:
// operands in all layouts, results that are parts of larger matrices, bits that depend on neither
// threads nor places.
TEST(ExactProducts, AddUnrounded) {
  if (!kernels::exact_products(at::kCPU)) GTEST_SKIP() << "no AMX here, or no MKL";
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto random = [&](at::IntArrayRef shape) {
    return at::normal(0.0, 1.0, shape, generator).to(at::kBFloat16);
  };
  for (const auto [m, k, n] : {std::array<int64_t, 3>{1, 1, 1},
                               {3, 70, 5},
                               {64, 33, 100},
                               {576, 300, 192},
                               {5000, 40, 64},
                               {7, 1, 9},
                               {1, 50, 1}}) {
    const Tensor a = random({m, k}), b = random({k, n}), c = random({n, k}), d = random({k, m}),
                 wide = random({m, k + 3});
    for (const auto& [left, right] :
         {std::pair{a, b}, {a, c.t()}, {d.t(), b}, {d.t(), c.t()}, {wide.narrow(1, 2, k), b}}) {
      const Tensor exact = at::matmul(left.to(at::kDouble), right.to(at::kDouble)),
                   magnitude = at::matmul(left.abs().to(at::kDouble), right.abs().to(at::kDouble));
      std::vector<Tensor> results;
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        Tensor whole = at::ones({m + 2, n + threads}, at::kFloat);
        kernels::multiply(whole.narrow(0, 1, m).narrow(1, threads, n), left, right, Sum::add);
        EXPECT_EQ(at::sum(whole.narrow(0, 0, 1)).item<float>(), n + threads)
            << "nothing beside it is touched";
        EXPECT_TRUE(at::all(at::eq(whole.narrow(1, 0, threads), 1)).item<bool>());
        results.push_back(whole.narrow(0, 1, m).narrow(1, threads, n).clone());
        EXPECT_LT(at::max(at::abs(results.back().to(at::kDouble) - 1 - exact) / (magnitude + 1))
                      .item<double>(),
                  2e-6);
      }
      at::set_num_threads(1);
      EXPECT_TRUE(at::equal(results[0], results[1]) && at::equal(results[0], results[2]));
      const Tensor fresh = at::full({m, n}, std::numeric_limits<float>::quiet_NaN());
      kernels::multiply(fresh, left, right);
      EXPECT_LT(at::max(at::abs(fresh.to(at::kDouble) - exact) / (magnitude + 1)).item<double>(),
                2e-6);
      kernels::use_exact_products(false);
      const Tensor rounded = at::ones({m, n}, at::kFloat);
      kernels::multiply(rounded, left, right, Sum::add);
      kernels::use_exact_products(true);
      EXPECT_TRUE(at::equal(rounded, at::mm(left, right).to(at::kFloat) + 1))
          << "as LibTorch does it";
    }
  }
}

TEST_P(Products, BiasIsAddedBeforeTheRounding) {
  const Tensor x = random({130, 96}), weight = random({72, 96}), bias = random({72});
  const Tensor y = kernels::linear(x, weight, bias);
  const Tensor exact =
      at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t()) + bias.to(at::kDouble);
  const Tensor magnitude = at::matmul(x.abs().to(at::kDouble), weight.abs().to(at::kDouble).t()) +
                           bias.abs().to(at::kDouble);
  expect_rounded_once(y, exact, magnitude, "linear");
}

// Forward and gradients of a linear layer whose leaves take fp32 gradients, as the trainer's do.
std::vector<Tensor> layer(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                          const Tensor& dy) {
  const Tensor x_leaf = x.clone().set_requires_grad(true),
               w_leaf = weight.clone().set_requires_grad(true);
  std::optional<Tensor> b_leaf;
  w_leaf.set_grad_dtype(at::kFloat);
  if (bias) {
    b_leaf = bias->clone().set_requires_grad(true);
    b_leaf->set_grad_dtype(at::kFloat);
  }
  const Tensor y = kernels::linear(x_leaf, w_leaf, b_leaf);
  y.backward(dy);
  std::vector<Tensor> out{y.detach(), x_leaf.grad(), w_leaf.grad()};
  if (bias) out.push_back(b_leaf->grad());
  return out;
}

TEST_P(Products, ALayerWithoutBiasHasGradients) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor x = random({70, 32}, type), weight = random({24, 32}, type),
                 dy = random({70, 24}, type);
    const auto got = layer(x, weight, std::nullopt, dy);
    ASSERT_EQ(got.size(), 3u);
    const Tensor dx = at::matmul(dy.to(at::kDouble), weight.to(at::kDouble)),
                 dw = at::matmul(dy.to(at::kDouble).t(), x.to(at::kDouble));
    EXPECT_LT(at::max(at::abs(got[1].to(at::kDouble) - dx)).item<double>(),
              type == at::kFloat ? 1e-4 : 0.15);
    EXPECT_LT(at::max(at::abs(got[2].to(at::kDouble) - dw)).item<double>(), 1e-4);
  }
}

TEST_P(Products, LayerAndGradientsAreThoseOfNativeBf16UpToRounding) {
  const Tensor x = random({150, 192}), weight = random({320, 192}), bias = random({320}),
               dy = random({150, 320});
  const auto widened = layer(x, weight, bias, dy);
  const Tensor dw = at::matmul(dy.to(at::kDouble).t(), x.to(at::kDouble));
  const Tensor magnitude = at::matmul(dy.abs().to(at::kDouble).t(), x.abs().to(at::kDouble));
  EXPECT_EQ(widened[2].scalar_type(), at::kFloat);
  EXPECT_LT(at::max(at::abs(widened[2].to(at::kDouble) - dw) / magnitude).item<double>(), 1e-6)
      << "the weight's gradient is not rounded";
  if (base::best_isa() < base::Isa::avx512_bf16)
    GTEST_SKIP() << "this processor multiplies no bf16";
  base::use_isa(base::Isa::avx512_bf16);
  const auto native = layer(x, weight, bias, dy);
  for (size_t i = 0; i < native.size(); ++i) {
    EXPECT_EQ(native[i].scalar_type(), widened[i].scalar_type());
    const Tensor difference = at::abs(native[i].to(at::kDouble) - widened[i].to(at::kDouble));
    const Tensor scale = at::abs(native[i].to(at::kDouble)) + 0.5;  // 2^-8: one bf16 rounding step
    EXPECT_LT(at::max(difference / scale).item<double>(), 1.0 / 128) << i;
  }
}

TEST_P(Products, RowsDoNotDependOnTheirNumber) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto [k, n] : {std::array<int64_t, 2>{256, 64}, {192, 700}, {768, 256}}) {
      const Tensor x = random({1300, k}, type), weight = random({n, k}, type);
      const Tensor all = kernels::linear(x, weight, std::nullopt);
      for (const int64_t rows : {1, 5, 63, 64, 65, 127, 129, 190, 257, 700, 1025}) {
        EXPECT_TRUE(at::equal(kernels::linear(x.narrow(0, 0, rows), weight, std::nullopt),
                              all.narrow(0, 0, rows)))
            << type << " " << k << "x" << n << ", " << rows << " rows";
      }
    }
  }
}

TEST_P(Products, TheDecodeKernelFollowsWidenedProducts) {
  const auto order = kernels::find_order(kernels::ElementType::bf16, 576, 600);
  EXPECT_TRUE(order.ascending);
  if (!order.matches_library)
    GTEST_SKIP() << kernels::describe(kernels::ElementType::bf16, 576, 600, order);
  const Tensor x = random({3, 576}), weight = random({600, 576}),
               y = at::empty({3, 600}, at::kBFloat16);
  kernels::GemmArguments a;
  a.type = kernels::ElementType::bf16;
  a.weight = weight.const_data_ptr();
  a.x = x.const_data_ptr();
  a.y = y.mutable_data_ptr();
  a.m = 3;
  a.k = a.ldx = 576;
  a.n = a.ldy = 600;
  a.order = order;
  kernels::gemm_columns(a, 0, 600);
  EXPECT_TRUE(at::equal(y, kernels::linear(x, weight, std::nullopt)));
}

TEST_P(Products, HeadGradientsAreThoseOfNativeBf16UpToRounding) {
  const Tensor hidden = random({90, 64}), weight = random({300, 64});
  const Tensor targets = at::arange(90, at::kLong);
  const auto head = [&] {
    const Tensor h = hidden.clone().set_requires_grad(true),
                 w = weight.clone().set_requires_grad(true);
    const auto out = kernels::token_log_probs(h, w, targets, 4.0, kernels::Entropy::skip, {128});
    out.log_probs.sum().backward();
    return std::vector<Tensor>{out.log_probs.detach(), h.grad(), w.grad()};
  };
  const auto widened = head();
  if (base::best_isa() < base::Isa::avx512_bf16)
    GTEST_SKIP() << "this processor multiplies no bf16";
  base::use_isa(base::Isa::avx512_bf16);
  const auto native = head();
  for (size_t i = 0; i < native.size(); ++i) {
    const double largest = at::max(at::abs(native[i].to(at::kDouble))).item<double>();
    EXPECT_LT(
        at::max(at::abs(native[i].to(at::kDouble) - widened[i].to(at::kDouble))).item<double>(),
        largest / 64)
        << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Products, testing::Values(1, 2, 5));

}  // namespace
}  // namespace trireme::test
