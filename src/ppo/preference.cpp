#include "torch/torch.hpp"

#include "trireme/ppo/preference.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "trireme/base/error.hpp"

namespace trireme::ppo {
namespace {

using at::Tensor;

struct PairContext {
  const PairInput& in;
  const config::DpoOptions& options;

  Tensor chosen() const { return in.policy.chosen - in.reference.chosen; }
  Tensor rejected() const { return in.policy.rejected - in.reference.rejected; }
  Tensor margin() const {
    return (in.policy.chosen - in.policy.rejected) - (in.reference.chosen - in.reference.rejected);
  }
  // Of response tokens; a side without any has margin 0.
  Tensor normalized_margin() const {
    return chosen() / at::clamp_min(in.lengths.chosen, 1.0) -
           rejected() / at::clamp_min(in.lengths.rejected, 1.0);
  }
  // -(1 - e) logsigmoid(u) - e logsigmoid(-u)
  Tensor smoothed(const Tensor& u) const {
    const double smoothing = options.label_smoothing;
    return at::log_sigmoid(u) * (smoothing - 1) - at::log_sigmoid(-u) * smoothing;
  }
};

Tensor sigmoid(const PairContext& c) { return c.smoothed(c.margin() * c.options.beta); }
Tensor ipo(const PairContext& c) { return (c.margin() - 1 / (2 * c.options.beta)).square(); }
Tensor hinge(const PairContext& c) { return at::relu(1.0 - c.margin() * c.options.beta); }
Tensor robust(const PairContext& c) {
  const Tensor u = c.margin() * c.options.beta;
  const double smoothing = c.options.label_smoothing;
  return (at::log_sigmoid(u) * (smoothing - 1) + at::log_sigmoid(-u) * smoothing) /
         (1 - 2 * smoothing);
}
Tensor ipo_norm(const PairContext& c) {
  return (c.normalized_margin() - 1 / (2 * c.options.beta)).square();
}
Tensor sigmoid_norm(const PairContext& c) {
  return -at::log_sigmoid(c.normalized_margin() * c.options.beta);
}
Tensor aot(const PairContext& c) {
  const Tensor p = (c.in.policy.chosen - c.in.policy.rejected) - c.in.matched.chosen;
  return c.smoothed(p * c.options.beta);
}
// A chosen answer and its match have one loss together; each side has the gradient of its own, so
// the match's value is taken away again.
Tensor aot_unpaired(const PairContext& c) {
  const double beta = c.options.beta;
  const Tensor of_chosen = c.smoothed((c.chosen() - c.in.matched.chosen) * beta);
  const Tensor of_rejected = c.smoothed((c.in.matched.rejected - c.rejected()) * beta);
  return of_chosen + (of_rejected - of_rejected.detach());
}
Tensor apo_zero(const PairContext& c) {
  return (1.0 - at::sigmoid(c.chosen() * c.options.beta)) +
         at::sigmoid(c.rejected() * c.options.beta);
}
Tensor apo_down(const PairContext& c) {
  return at::sigmoid(c.chosen() * c.options.beta) +
         (1.0 - at::sigmoid(c.margin() * c.options.beta));
}
// log(1 - e^x) of a mean log-prob; a probability of 1 has no odds.
Tensor log_of_rest(const Tensor& x) {
  return (-at::expm1(at::clamp(x, std::nullopt, -1e-7))).log();
}
Tensor orpo(const PairContext& c) {
  const Tensor odds = (c.in.policy.chosen - c.in.policy.rejected) -
                      (log_of_rest(c.in.policy.chosen) - log_of_rest(c.in.policy.rejected));
  return at::log_sigmoid(odds) * -c.options.beta;
}
Tensor simpo(const PairContext& c) {
  return c.smoothed((c.in.policy.chosen - c.in.policy.rejected) * c.options.beta -
                    c.options.simpo_gamma);
}
Tensor cpo(const PairContext& c) {
  return c.smoothed((c.in.policy.chosen - c.in.policy.rejected) * c.options.beta);
}

// In the order of config::dpo_loss_table; labelled answers have no pair.
using PairLoss = Tensor (*)(const PairContext&);
constexpr std::array<PairLoss, config::dpo_loss_table.size()> pair_loss{
    sigmoid,  ipo,      hinge,   robust,  ipo_norm, sigmoid_norm, aot, aot_unpaired,
    apo_zero, apo_down, nullptr, nullptr, orpo,     simpo,        cpo};
static_assert(pair_loss.back() != nullptr, "a loss on pairs without a function");

}  // namespace

SequenceLogProbs sequence_log_probs(const Tensor& log_probs, const Tensor& mask,
                                    const Segments& segments) {
  const Tensor sums = segments.sums(select(log_probs, mask));
  const Tensor counts = segments.sums(mask.to(at::kBool).to(at::kFloat));
  return {sums, sums / at::clamp_min(counts, 1.0)};
}

PairLosses pair_losses(const PairInput& in, const config::DpoOptions& options) {
  const PairLoss loss = pair_loss[static_cast<size_t>(options.form())];
  VALIDATE(loss != nullptr, ExitCode::internal,
           "algo.dpo.loss = ", config::to_string(options.form()), " is not a loss on pairs");
  const auto reward = [&](const Tensor& policy, const Tensor& reference) {
    return (reference.defined() ? policy - reference : policy).detach() * options.beta;
  };
  return {loss({in, options}),
          {reward(in.policy.chosen, in.reference.chosen),
           reward(in.policy.rejected, in.reference.rejected)}};
}

std::vector<float> matched(std::span<const float> values, std::span<const float> others) {
  std::vector<float> sorted(others.begin(), others.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<float> out(values.size());
  for (size_t place = 0; place < order.size(); ++place) out[order[place]] = sorted[place];
  return out;
}

LabelledLosses labelled_losses(const LabelledInput& in, double kl,
                               const config::DpoOptions& options) {
  const double z = options.form() == config::DpoLoss::kto ? kl : 0;
  const Tensor q = in.policy - in.reference;
  const Tensor distance = (q - z) * options.beta;
  const Tensor wanted = (1.0 - at::sigmoid(distance)) * options.desirable_weight;
  const Tensor unwanted = (1.0 - at::sigmoid(-distance)) * options.undesirable_weight;
  return {at::where(in.wanted, wanted, unwanted), q.detach() * options.beta};
}

Tensor reward_model_loss(const Tensor& chosen, const Tensor& rejected, const Tensor& margin,
                         config::PreferenceLoss loss, double total_pairs) {
  // log(1 + exp(r - c)) is -logsigmoid(c - r), which does not overflow.
  Tensor distance = chosen - rejected;
  if (loss == config::PreferenceLoss::sigmoid && margin.defined()) distance = distance - margin;
  return at::log_sigmoid(distance).sum() * (-1 / total_pairs);
}

}  // namespace trireme::ppo
