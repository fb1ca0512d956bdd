// The chunked head against its formulas in double.
#include "torch/torch.hpp"

#include "trireme/kernels/token_log_probs.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using kernels::Entropy;

struct Case {
  int64_t vocabulary;
  int64_t chunk;
  double temperature;
};

// Legend: N rows, D hidden, V vocabulary.
struct HeadProblem {
  Tensor hidden, weight, targets, grad_log_probs, grad_entropy;

  explicit HeadProblem(const Case& c) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(17);
    // The first and last token of the first, the second and the last chunk.
    const int64_t last = c.vocabulary - 1;
    const std::vector<int64_t> edges{0,
                                     std::min(c.chunk - 1, last),
                                     std::min(c.chunk, last),
                                     std::min(2 * c.chunk - 1, last),
                                     last / c.chunk * c.chunk,
                                     last};
    const auto rows = static_cast<int64_t>(edges.size());
    targets = at::tensor(edges, at::kLong);
    hidden = at::normal(0.0, 1.0, {rows, 12}, generator);
    hidden[2].zero_();
    weight = at::normal(0.0, 0.5, {c.vocabulary, 12}, generator);
    grad_log_probs = at::normal(0.0, 1.0, {rows}, generator);
    grad_entropy = at::normal(0.0, 1.0, {rows}, generator);
    hidden.set_requires_grad(true);
    weight.set_requires_grad(true);
  }
};

struct HeadOutcome {
  Tensor log_probs, entropy, grad_hidden, grad_weight;  // f64
};

// dz = (onehot - p) g - p (log p + H) h, over the temperature.
HeadOutcome in_double(const HeadProblem& p, double temperature) {
  const at::NoGradGuard no_grad;
  const Tensor hidden = p.hidden.to(at::kDouble), weight = p.weight.to(at::kDouble);
  const Tensor g = p.grad_log_probs.to(at::kDouble).unsqueeze(1),
               h = p.grad_entropy.to(at::kDouble).unsqueeze(1);
  const Tensor z = at::mm(hidden, weight.t()) / temperature;
  const Tensor log_p = z - z.logsumexp(1, true), probabilities = log_p.exp();
  const Tensor entropy = -(probabilities * log_p).sum(1);
  const Tensor onehot = at::zeros_like(z).scatter_(1, p.targets.unsqueeze(1), 1);
  const Tensor dz =
      ((onehot - probabilities) * g - probabilities * (log_p + entropy.unsqueeze(1)) * h) /
      temperature;
  return {(onehot * log_p).sum(1), entropy, at::mm(dz, weight), at::mm(dz.t(), hidden)};
}

HeadOutcome chunked(const HeadProblem& p, const Case& c) {
  const auto got = kernels::token_log_probs(p.hidden, p.weight, p.targets, c.temperature,
                                            Entropy::differentiable, {c.chunk});
  ((got.log_probs * p.grad_log_probs).sum() + (got.entropy * p.grad_entropy).sum()).backward();
  return {got.log_probs.detach(), got.entropy.detach(), p.hidden.grad(), p.weight.grad()};
}

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const char* what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_LT((got.to(at::kDouble) - want).abs().max().item<double>(), tolerance) << what;
}

TEST(HeadInDouble, ValuesAndGradientsForVocabulariesThatAreNoMultiplesOfTheChunk) {
  for (const Case& c : std::initializer_list<Case>{{1, 16, 1},
                                                   {2, 1, 1},
                                                   {17, 16, 0.6},
                                                   {33, 16, 1},
                                                   {100, 33, 2.5},
                                                   {257, 256, 1},
                                                   {700, 96, 0.3},
                                                   {4097, 4096, 1.7},
                                                   {5000, 4096, 1}}) {
    SCOPED_TRACE(base::text("vocabulary ", c.vocabulary, " in chunks of ", c.chunk,
                            " at temperature ", c.temperature));
    const HeadProblem p(c);
    const HeadOutcome got = chunked(p, c), want = in_double(p, c.temperature);
    expect_close(got.log_probs, want.log_probs, 3e-6, "log-probs");
    expect_close(got.entropy, want.entropy, 3e-6, "entropy");
    const double tolerance =
        1e-5 * std::max(1.0, 1 / c.temperature);  // logits and slopes are that much larger
    expect_close(got.grad_hidden, want.grad_hidden, tolerance, "gradient of hidden");
    expect_close(got.grad_weight, want.grad_weight, tolerance, "gradient of weight");
  }
}

TEST(HeadInDouble, AZeroRowIsUniformOverTheVocabulary) {
  const Case c{1003, 128, 0.7};
  const HeadProblem p(c);
  const HeadOutcome got = chunked(p, c);
  EXPECT_NEAR(got.log_probs[2].item<double>(), -std::log(1003.0), 1e-6);
  EXPECT_NEAR(got.entropy[2].item<double>(), std::log(1003.0), 1e-6);
}

// A token that is nearly certain: its gradient 1 - p is small, and in bf16 p itself would round
// to 1.
TEST(HeadInDouble, GradientsOfNearlyCertainTokensInBf16) {
  for (const double logit : {4.0, 6.0, 8.0, 10.0, 12.0}) {
    const Tensor hidden = at::ones({1, 1}, at::kBFloat16);
    Tensor weight = at::zeros({3, 1}, at::kBFloat16);
    weight[1].fill_(logit);
    weight.set_requires_grad(true);
    kernels::token_log_probs(hidden, weight, at::ones({1}, at::kLong), 1, Entropy::skip)
        .log_probs.sum()
        .backward();
    const double rest = 2 * std::exp(-logit) / (1 + 2 * std::exp(-logit));
    EXPECT_NEAR(weight.grad()[1].item<double>(), rest, 0x1p-8 * rest + 2e-7) << "logit " << logit;
    EXPECT_NEAR(weight.grad()[0].item<double>(), -rest / 2, 0x1p-8 * rest) << "logit " << logit;
  }
}

// Each refusal says what is wrong.
TEST(TokenLogProbsRefuses, WhatDoesNotFit) {
  const Tensor hidden = at::zeros({2, 4}), weight = at::zeros({5, 4}),
               targets = at::zeros({2}, at::kLong);
  struct Wrong {
    Tensor hidden, weight, targets;
    double temperature;
    int64_t chunk;
    const char* says;
  };
  const std::vector<Wrong> wrong{
      {at::zeros({2, 3}), weight, targets, 1, 8, "shapes"},
      {hidden, at::zeros({0, 4}), targets, 1, 8, "shapes"},
      {hidden.to(at::kBFloat16), weight, targets, 1, 8, "a bfloat16 hidden has"},
      {hidden.to(at::kDouble), weight.to(at::kDouble), targets, 1, 8, "must be float or bfloat16"},
      {hidden, weight, at::zeros({3}, at::kLong), 1, 8, "int64 [N]"},
      {hidden, weight, targets.to(at::kInt), 1, 8, "int64 [N]"},
      {hidden, weight, targets, 0, 8, "must be positive"},
      {hidden, weight, targets, 1, 0, "must be positive"},
      {hidden, weight, targets - 1, 1, 8, "token id -1 at row 0 is outside the vocabulary of 5"}};
  for (const Wrong& w : wrong) {
    try {
      kernels::token_log_probs(w.hidden, w.weight, w.targets, w.temperature, Entropy::skip,
                               {w.chunk});
      ADD_FAILURE() << "taken: " << w.says;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(w.says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace trireme::test
