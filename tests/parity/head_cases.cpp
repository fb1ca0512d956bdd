// F1, F2: log-probs and entropy of logits, and their gradients. An identity matrix as head makes
// the hidden state the logits.
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include "parity/cases.hpp"
#include "parity/registry.hpp"
#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::test {

using at::Tensor;

void check_head(const GoldenCase& c) {
  const Tensor logits = c.input("logits");
  const int64_t rows = logits.size(0), length = logits.size(1), vocabulary = logits.size(2);
  Tensor hidden = logits.narrow(1, 0, length - 1).reshape({-1, vocabulary}).clone();
  hidden.set_requires_grad(true);
  Tensor identity = at::zeros({vocabulary, vocabulary});
  for (int64_t i = 0; i < vocabulary; ++i) identity[i][i] = 1.f;
  const Tensor targets = c.input("sequences").narrow(1, 1, length - 1).reshape({-1});
  const auto got = kernels::token_log_probs(hidden, identity, targets, *c.number("temperature"),
                                            kernels::Entropy::differentiable, {16});
  expect_matches(c, "log_probs", got.log_probs);
  expect_matches(c, "entropy", got.entropy);

  const Tensor mask = c.input("action_mask");
  const int64_t actions = mask.size(1);
  const Tensor action_log_probs =
      got.log_probs.view({rows, length - 1}).narrow(1, length - 1 - actions, actions) *
      mask.to(at::kFloat);
  expect_matches(c, "action_log_probs", action_log_probs);

  const auto gradient = [&](const Tensor& loss) {
    hidden.mutable_grad() = Tensor{};
    loss.backward({}, true);
    Tensor all = at::zeros_like(logits);
    all.narrow(1, 0, length - 1).copy_(hidden.grad().view({rows, length - 1, vocabulary}));
    return all;
  };
  expect_matches(c, "grad_logits_of_logprob", gradient((action_log_probs * c.input("w")).sum()));
  expect_matches(c, "grad_logits_of_entropy", gradient((got.entropy * flat(c.input("u"))).sum()));
}

}  // namespace trireme::test
