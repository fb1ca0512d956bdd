// Losses of whole rows of logits, in chunks of rows, against the plain formula.
#include "torch/torch.hpp"

#include "trireme/kernels/row_losses.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "trireme/base/text.hpp"

namespace trireme::test {
namespace {

using at::Tensor;

// Rows of more than one chunk on the host: 16 MiB of fp32 logits.
constexpr int64_t many_tokens = 70'000, row_width = 16, row_count = 150;

Tensor drawn(at::IntArrayRef shape, double scale, uint64_t seed) {
  return at::normal(0.0, scale, shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}

class RowLosses : public testing::TestWithParam<at::ScalarType> {
 protected:
  Tensor leaf(at::IntArrayRef shape, double scale, uint64_t seed) const {
    return drawn(shape, scale, seed).to(GetParam()).requires_grad_(true);
  }
  double tolerance() const { return GetParam() == at::kFloat ? 1e-4 : 3e-2; }
  void expect_near(const Tensor& got, const Tensor& wanted, const char* what,
                   double slack = 1) const {
    const double scale = wanted.abs().max().to(at::kDouble).item<double>();
    const double error = (got.to(at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(error, slack * tolerance() * scale) << what;
  }
};

// Each row has a formula of its own: its place counts, so that a chunk that starts elsewhere shows.
Tensor row_formula(const Tensor& logits, int64_t first) {
  const Tensor place = at::arange(first, first + logits.size(0)).to(at::kFloat) * 0.01 + 1;
  const Tensor log_p = at::log_softmax(logits * place.unsqueeze(1), -1);
  return -(log_p.exp() * log_p).sum(-1) * place;
}

TEST_P(RowLosses, EqualThePlainFormula) {
  ASSERT_LT(kernels::rows_of_chunk(many_tokens, at::kCPU), row_count / 2) << "several chunks";
  const Tensor hidden = leaf({row_count, row_width}, 1, 1),
               weight = leaf({many_tokens, row_width}, 0.3, 2), flow = drawn({row_count}, 1, 3);
  const Tensor wanted = row_formula(at::linear(hidden, weight).to(at::kFloat), 0);
  (wanted * flow).sum().backward();
  const Tensor hidden_grad = hidden.grad().clone(), weight_grad = weight.grad().clone();
  hidden.mutable_grad() = Tensor{};
  weight.mutable_grad() = Tensor{};
  const Tensor got = kernels::row_losses(hidden, weight, row_formula);
  (got * flow).sum().backward();
  expect_near(got.detach(), wanted.detach(), "losses");
  expect_near(hidden.grad(), hidden_grad, "gradient of the hidden states");
  expect_near(weight.grad(), weight_grad, "gradient of the weight");
}

TEST_P(RowLosses, TakeAnAdapterOfTheHead) {
  constexpr int64_t rank = 3, vocabulary = 500, rows = 7;
  const Tensor hidden = leaf({rows, row_width + rank}, 1, 1),
               weight = leaf({vocabulary, row_width}, 0.3, 2),
               low = leaf({vocabulary, rank}, 0.3, 3), flow = drawn({rows}, 1, 4);
  const std::vector<Tensor> leaves{hidden, weight, low};
  const auto gradients = [&](const Tensor& losses) {
    (losses * flow).sum().backward();
    std::vector<Tensor> out;
    for (const Tensor& of : leaves) out.push_back(std::exchange(of.mutable_grad(), Tensor{}));
    return out;
  };
  const Tensor wanted =
      row_formula(at::linear(hidden, at::cat({weight, low}, 1)).to(at::kFloat), 0);
  const std::vector<Tensor> wanted_gradients = gradients(wanted);
  const Tensor got = kernels::row_losses(hidden, {weight, low}, row_formula);
  const std::vector<Tensor> got_gradients = gradients(got);
  // Logits are sums of two products here, each of which is rounded.
  expect_near(got.detach(), wanted.detach(), "losses", 2);
  for (size_t i = 0; i < leaves.size(); ++i)
    expect_near(got_gradients[i], wanted_gradients[i], "gradients of hidden, weight, adapter", 2);
  weight.set_requires_grad(false);  // a frozen base
  EXPECT_FALSE(gradients(kernels::row_losses(hidden, {weight, low}, row_formula))[1].defined());
}

TEST_P(RowLosses, AddToTheWeightsOwnGradient) {
  const Tensor hidden = leaf({3, row_width}, 1, 1), weight = leaf({50, row_width}, 0.3, 2);
  kernels::row_losses(hidden, weight, row_formula).sum().backward();
  const Tensor once = weight.grad().to(at::kFloat);
  const Tensor slot = at::ones({50, row_width});
  if (GetParam() == at::kFloat) {
    weight.mutable_grad() = slot;
    kernels::row_losses(hidden, weight, row_formula).sum().backward();
    EXPECT_EQ(weight.grad().data_ptr(), slot.data_ptr());
    expect_near(slot - 1, once, "what was added");
  }
  weight.set_requires_grad(false);  // a frozen head
  hidden.mutable_grad() = Tensor{};
  kernels::row_losses(hidden, weight, row_formula).sum().backward();
  EXPECT_TRUE(hidden.grad().defined());
}

INSTANTIATE_TEST_SUITE_P(Types, RowLosses, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& type) {
                           return type.param == at::kFloat ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
