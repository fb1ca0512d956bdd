// Gradients into memory with old values, beside those that are added to zeros: the same bits.
#include "torch/torch.hpp"

#include "trireme/kernels/own_gradient.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "support/instruction_sets.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/row_invariant.hpp"
#include "trireme/kernels/row_losses.hpp"
#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::test {
namespace {

using at::Tensor;

class OwnGradients : public testing::TestWithParam<at::ScalarType> {
 protected:
  Tensor random(at::IntArrayRef shape) {
    return at::normal(0.0, 1.0, shape, generator_).to(GetParam());
  }
  static Tensor leaf(const Tensor& values) {
    Tensor out = values.detach().clone();
    out.set_requires_grad(true);
    if (out.scalar_type() != at::kFloat) out.set_grad_dtype(at::kFloat);
    return out;
  }
  using Backward = std::function<void(const Tensor& weight)>;
  // What backward passes leave in a slot of zeros, to which all of them add, or in one of old
  // values.
  static Tensor slot_after(const Tensor& weight, bool zeros, const std::vector<Backward>& passes) {
    const Tensor slot = zeros ? at::zeros(weight.sizes())
                              : at::full(weight.sizes(), std::numeric_limits<float>::quiet_NaN());
    for (size_t i = 0; i < passes.size(); ++i) {
      const Tensor fresh = leaf(weight);
      if (zeros || i > 0) {
        fresh.mutable_grad() = slot;
      } else {
        kernels::overwrite_gradient(fresh, slot);
      }
      if (passes[i]) passes[i](fresh);
      kernels::zero_unwritten_gradient(fresh);
      EXPECT_EQ(fresh.grad().const_data_ptr(), slot.const_data_ptr());
      EXPECT_EQ(fresh.grad().sizes(), fresh.sizes());
    }
    return slot;
  }
  // Added to what owners have, which begins with zeros, -0 is 0.
  static void expect_same_sums(const Tensor& weight, const std::vector<Backward>& passes,
                               const char* what) {
    const Tensor want = at::zeros(weight.sizes()) + slot_after(weight, true, passes),
                 got = at::zeros(weight.sizes()) + slot_after(weight, false, passes);
    EXPECT_EQ(std::memcmp(got.const_data_ptr(), want.const_data_ptr(), want.nbytes()), 0) << what;
  }
  at::Generator generator_ = at::make_generator<at::CPUGeneratorImpl>(11);
};

TEST_P(OwnGradients, HaveTheBitsOfSumsThatBeginWithZeros) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet under(isa);
    for (const int threads : {1, 3}) {
      at::set_num_threads(threads);
      for (const auto [rows, in, out] : {std::array<int64_t, 3>{1, 1, 1},
                                         {3, 70, 5},
                                         {64, 33, 100},
                                         {300, 576, 192},
                                         {256, 192, 1536},
                                         {1100, 40, 64}}) {
        const Tensor x = random({rows, in}), flow = random({rows, out}), weight = random({out, in});
        flow.narrow(0, 0, (rows + 1) / 2).zero_();
        const Backward product = [&](const Tensor& w) {
          kernels::linear(x, w, std::nullopt).backward(flow.neg());
        };
        expect_same_sums(weight, {product}, "one product");
        expect_same_sums(weight, {product, product}, "two passes");
        expect_same_sums(
            weight, {[&](const Tensor& w) {
              (kernels::linear(x, w, std::nullopt) + kernels::linear(x.neg(), w, std::nullopt))
                  .backward(flow);
            }},
            "two products of a pass");
      }
    }
    at::set_num_threads(1);
  }
}

TEST_P(OwnGradients, AreZeroWhereNoneComes) {
  const Tensor weight = random({7, 5}), x = random({3, 5});
  expect_same_sums(weight, {nullptr}, "no pass");
  expect_same_sums(weight, {[&](const Tensor&) { leaf(x).sum().backward(); }}, "another leaf");
  expect_same_sums(weight, {[&](const Tensor& w) {
                     kernels::linear(x.narrow(0, 0, 0), w, std::nullopt).sum().backward();
                   }},
                   "no rows");
  EXPECT_TRUE(slot_after(weight, false, {nullptr}).eq(0).all().item<bool>());
}

// What autograd adds: biases and norms, a weight that is used in both ways.
TEST_P(OwnGradients, ComeByAutogradToo) {
  const Tensor weight = random({7, 5}), bias = random({7}), x = random({3, 5});
  expect_same_sums(weight, {[&](const Tensor& w) { (w * 3).sum().backward(); }}, "by autograd");
  expect_same_sums(bias, {[&](const Tensor& b) { kernels::linear(x, weight, b).sum().backward(); }},
                   "a bias");
  expect_same_sums(weight, {[&](const Tensor& w) {
                     (kernels::linear(x, w, std::nullopt).sum() + (w * 3).sum()).backward();
                   }},
                   "both");
}

TEST_P(OwnGradients, OfTheHeadAreWrittenInChunks) {
  constexpr int64_t vocabulary = 600, width = 24, rows = 9;
  const Tensor hidden = random({rows, width}), weight = random({vocabulary, width}),
               targets = at::arange(rows);
  expect_same_sums(weight, {[&](const Tensor& w) {
                     kernels::token_log_probs(leaf(hidden), w, targets, 1, kernels::Entropy::skip,
                                              {256})
                         .log_probs.sum()
                         .backward();
                   }},
                   "log-probs");
  const kernels::RowLoss formula = [](const Tensor& logits, int64_t) {
    return at::log_softmax(logits, -1).select(1, 0);
  };
  const Tensor many = random({3 * kernels::rows_of_chunk(vocabulary, at::kCPU) / 2, width});
  expect_same_sums(weight, {[&](const Tensor& w) {
                     kernels::row_losses(leaf(many), w, formula).sum().backward();
                   }},
                   "row losses");
  expect_same_sums(weight, {[&](const Tensor& w) {
                     kernels::row_losses(leaf(many.narrow(0, 0, 0)), w, formula).sum().backward();
                   }},
                   "row losses of no rows");
}

INSTANTIATE_TEST_SUITE_P(Types, OwnGradients, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& type) {
                           return type.param == at::kFloat ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
