// Gradients and AdamW steps of the golden models, computed by OpenRLHF's actor and torch (F1, OPT),
// by either exchange.
#include "torch/torch.hpp"

#include "parity/cases.hpp"
#include "parity/golden_rows.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "parity/site.hpp"

namespace trireme::test {
namespace {

// A device has one.
std::vector<comm::ExchangeKind> exchanges() {
  if (site().device) return {comm::ExchangeKind::automatic};
  return {comm::ExchangeKind::windows, comm::ExchangeKind::mpi_ring};
}

}  // namespace

void check_gradients(const GoldenCase& c) {
  for (const auto exchange : exchanges()) {
    auto model = load_golden_model(c, model::HeadKind::language, {.exchange = exchange});
    expect_matches(c, "mean_logprob", forward_backward(model, ActionRows(c), 1));
    for (const auto& name : c.words("parameters")) {
      const size_t p = parameter_index(model.spec(), name);
      expect_matches(c, "grad/" + name, whole_parameter(model, p, model.gradient(p)));
    }
    expect_matches(c, "grad_norm", model.step({}).grad_norm);
  }
}

void check_adamw_steps(const GoldenCase& c) {
  const auto betas = c.numbers("betas");
  const zero::AdamWOptions adam{.lr = c.number("lr").value(),
                                .beta1 = betas[0],
                                .beta2 = betas[1],
                                .eps = c.number("eps").value(),
                                .weight_decay = c.number("weight_decay").value(),
                                .max_norm = c.number("clip").value()};
  for (const auto exchange : exchanges()) {
    auto model = load_golden_model(c, model::HeadKind::language, {.exchange = exchange});
    const ActionRows rows(c);
    std::vector<double> losses, norms;
    for (int step = 0; step < static_cast<int>(c.number("steps").value()); ++step) {
      losses.push_back(forward_backward(model, rows, -1));
      norms.push_back(model.step(adam).grad_norm);
    }
    expect_matches(c, "losses", at::tensor(losses));
    expect_matches(c, "grad_norms", at::tensor(norms));
    expect_matches(c, "final_loss", forward_backward(model, rows, -1));
    for (const auto& name : c.words("parameters")) {
      const size_t p = parameter_index(model.spec(), name);
      expect_matches(c, "param/" + name, whole_parameter(model, p, model.master(p)));
    }
  }
}

}  // namespace trireme::test
