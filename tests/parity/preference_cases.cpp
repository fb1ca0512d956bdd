// Preference and supervised losses against OpenRLHF (F28, SFT), and the balancing of sequences
// (DYN).
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include "parity/cases.hpp"
#include "parity/registry.hpp"
#include "trireme/ppo/balance.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/preference.hpp"

namespace trireme::test {

using at::Tensor;
using namespace ppo;

namespace {

config::DpoOptions dpo_options(const GoldenCase& c) {
  config::DpoOptions options;
  options.loss = choice(c, "loss_type", config::DpoLoss::sigmoid);
  options.beta = *c.number("beta");
  options.label_smoothing = c.number("label_smoothing").value_or(0);
  options.ipo = c.flag("ipo").value_or(false);
  options.simpo_gamma = c.number("gamma").value_or(0);
  options.desirable_weight = c.number("desirable_weight").value_or(1);
  options.undesirable_weight = c.number("undesirable_weight").value_or(1);
  return options;
}

std::vector<float> values_of(const Tensor& x) {
  const Tensor dense = x.detach().contiguous();
  return {dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel()};
}

// What the program finds in its pass before the first gradient.
Pairs order_statistics(const PairInput& in, const config::DpoOptions& options) {
  const auto match = [](const Tensor& values, const Tensor& others) {
    return at::tensor(matched(values_of(values), values_of(others)));
  };
  if (options.form() == config::DpoLoss::aot)
    return {
        match(in.policy.chosen - in.policy.rejected, in.reference.chosen - in.reference.rejected),
        {}};
  const Tensor chosen = in.policy.chosen - in.reference.chosen,
               rejected = in.policy.rejected - in.reference.rejected;
  return {match(chosen, rejected), match(rejected, chosen)};
}

}  // namespace

void check_dpo(const GoldenCase& c) {
  const config::DpoOptions options = dpo_options(c);
  PairInput in;
  in.policy = {leaf(c.input("policy_chosen")), leaf(c.input("policy_rejected"))};
  in.reference = {flat(c.input("ref_chosen")), flat(c.input("ref_rejected"))};
  if (c.has_input("chosen_length"))
    in.lengths = {flat(c.input("chosen_length")).to(at::kFloat),
                  flat(c.input("rejected_length")).to(at::kFloat)};
  const bool sorts = config::traits(options.form()).sorts;
  if (sorts) in.matched = order_statistics(in, options);
  const PairLosses got = pair_losses(in, options);
  const Tensor loss = got.losses.sum() / static_cast<double>(got.losses.numel());
  loss.backward();
  expect_matches(c, "loss", loss);
  if (c.has_output("chosen_rewards")) expect_matches(c, "chosen_rewards", got.rewards.chosen);
  if (c.has_output("rejected_rewards")) expect_matches(c, "rejected_rewards", got.rewards.rejected);
  if (c.has_output("losses")) {
    const Tensor order = options.form() == config::DpoLoss::aot
                             ? in.policy.chosen - in.policy.rejected
                             : in.policy.chosen - in.reference.chosen;
    expect_matches(c, "losses",
                   sorts ? got.losses.index_select(0, order.detach().argsort()) : got.losses);
  }
  expect_matches(c, "grad_policy_chosen", in.policy.chosen.grad());
  if (c.has_output("grad_policy_rejected"))
    expect_matches(c, "grad_policy_rejected", in.policy.rejected.grad());
}

void check_kto(const GoldenCase& c) {
  const config::DpoOptions options = dpo_options(c);
  const LabelledInput in{leaf(c.input("policy_logps")), flat(c.input("ref_logps")),
                         flat(c.input("label")).to(at::kBool)};
  const Tensor distance = c.input("policy_kl_logps") - c.input("ref_kl_logps");
  double kl = 0;
  if (options.form() == config::DpoLoss::kto)
    kl = std::max(0.0, distance.to(at::kDouble).mean().item<double>());
  const LabelledLosses got = labelled_losses(in, kl, options);
  const double total = c.number("total_examples").value_or(static_cast<double>(got.losses.numel()));
  const Tensor loss = got.losses.sum() / total;
  loss.backward();
  expect_matches(c, "loss", loss);
  expect_matches(c, "losses", got.losses);
  expect_matches(c, "kl", kl);
  expect_matches(c, "rewards", got.rewards);
  expect_matches(c, "grad_policy_logps", in.policy.grad());
}

namespace {

// The chosen and the rejected side of losses on means or sums of token log-probs.
struct TokenPairs {
  explicit TokenPairs(const GoldenCase& golden)
      : c(golden),
        chosen(leaf(c.input("chosen_log_probs"))),
        rejected(leaf(c.input("rejected_log_probs"))) {}
  SequenceLogProbs side(const Tensor& log_probs, const char* mask) const {
    return sequence_log_probs(log_probs, flat(c.input(mask)), segments_of(c.input(mask)));
  }
  // Minus the mean over all tokens under a mask.
  Tensor nll(const char* mask) const {
    const Tensor m = flat(c.input(mask));
    return -select(chosen, m).sum() / m.sum();
  }
  void expect_gradients(const Tensor& loss) const {
    loss.backward();
    expect_matches(c, "loss", loss);
    expect_matches(c, "grad_chosen_log_probs", chosen.grad());
    expect_matches(c, "grad_rejected_log_probs", rejected.grad());
  }

  const GoldenCase& c;
  Tensor chosen, rejected;
};

}  // namespace

void check_orpo(const GoldenCase& c) {
  config::DpoOptions options = dpo_options(c);
  options.loss = config::DpoLoss::orpo;
  const TokenPairs pairs(c);
  PairInput in;
  in.policy = {pairs.side(pairs.chosen, "chosen_mask").means,
               pairs.side(pairs.rejected, "rejected_mask").means};
  const Tensor losses = pair_losses(in, options).losses;
  const Tensor nll =
      pairs.nll(c.word("nll_on") == "sequence" ? "chosen_token_mask" : "chosen_mask");
  expect_matches(c, "nll", nll);
  // -beta logsigmoid(odds) = beta log(1 + exp(-odds))
  const Tensor scaled = (losses.detach() / options.beta).to(at::kDouble);
  expect_matches(c, "log_odds", -(scaled.expm1().log()));
  pairs.expect_gradients(nll + losses.mean());
}

void check_simpo(const GoldenCase& c) {
  config::DpoOptions options = dpo_options(c);
  const bool means = c.word("loss_type") == "simpo";
  options.loss = means ? config::DpoLoss::simpo : config::DpoLoss::cpo;
  const TokenPairs pairs(c);
  const auto chosen = pairs.side(pairs.chosen, "chosen_mask"),
             rejected = pairs.side(pairs.rejected, "rejected_mask");
  PairInput in;
  in.policy = {means ? chosen.means : chosen.sums, means ? rejected.means : rejected.sums};
  const Tensor losses = pair_losses(in, options).losses;
  const Tensor nll = pairs.nll("chosen_mask");
  expect_matches(c, "losses", losses);
  expect_matches(c, "nll", nll);
  pairs.expect_gradients(losses.mean() + nll * *c.number("nll_coef"));
}

void check_reward_model_loss(const GoldenCase& c) {
  const Tensor chosen = leaf(c.input("chosen_reward")), rejected = leaf(c.input("reject_reward"));
  const Tensor margin = c.has_input("margin") ? flat(c.input("margin")) : Tensor{};
  const bool logexp = c.function.find("LogExp") != std::string::npos;
  const Tensor loss =
      reward_model_loss(chosen, rejected, margin,
                        logexp ? config::PreferenceLoss::logexp : config::PreferenceLoss::sigmoid,
                        static_cast<double>(chosen.numel()));
  loss.backward();
  expect_matches(c, "loss", loss);
  expect_matches(c, "grad_chosen", chosen.grad());
  expect_matches(c, "grad_rejected", rejected.grad());
}

void check_sequence_log_probs(const GoldenCase& c) {
  const Tensor rows = c.input("per_token_logps");  // column t belongs to token t + 1
  const Tensor attended = c.input("attention_mask").narrow(1, 1, rows.size(1));
  const Tensor position = at::arange(1, rows.size(1) + 1, at::kLong).unsqueeze(0);
  const Tensor mask =
      at::logical_and(attended.to(at::kBool), position >= c.input("prompt_lens").reshape({-1, 1}));
  const SequenceLogProbs got = sequence_log_probs(flat(rows), flat(mask), segments_of(rows));
  expect_matches(c, "sums", got.sums);
  expect_matches(c, "means", got.means);
}

void check_sft_loss(const GoldenCase& c) {
  const Tensor rows = c.input("log_probs");
  const Tensor log_probs = leaf(rows);
  const Tensor loss =
      sft_loss(log_probs, choice(c, "loss_agg", config::LossAggregation::token_mean),
               {flat(c.input("loss_mask")), segments_of(rows)});
  loss.backward();
  expect_matches(c, "loss", loss);
  expect_matches(c, "grad_log_probs", log_probs.grad());
}

namespace {

std::vector<int64_t> lengths_of(const GoldenCase& c) {
  const Tensor lengths = c.input("lengths").contiguous();
  return {lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel()};
}

// Bin and place of each item.
std::pair<Tensor, Tensor> places(const Bins& bins, size_t count) {
  std::vector<int64_t> bin(count, -1), place(count, -1);
  for (size_t b = 0; b < bins.size(); ++b) {
    for (size_t p = 0; p < bins[b].size(); ++p) {
      bin[static_cast<size_t>(bins[b][p])] = static_cast<int64_t>(b);
      place[static_cast<size_t>(bins[b][p])] = static_cast<int64_t>(p);
    }
  }
  return {at::tensor(bin), at::tensor(place)};
}

}  // namespace

void check_partition(const GoldenCase& c) {
  const auto lengths = lengths_of(c);
  const BinSize size = *c.flag("equal_size") ? BinSize::equal : BinSize::any;
  const auto [part, position] =
      places(balanced_bins(lengths, static_cast<int64_t>(*c.number("k")), size), lengths.size());
  expect_matches(c, "part", part);
  expect_matches(c, "position", position);
  expect_matches(
      c, "min_micro_batches",
      static_cast<double>(first_fit_bins(lengths, static_cast<int64_t>(*c.number("max_tokens")))));
}

void check_balance(const GoldenCase& c) {
  const auto lengths = lengths_of(c);
  const auto [rank, position] =
      places(interleaved_bins(lengths, static_cast<int64_t>(*c.number("dp_size"))), lengths.size());
  expect_matches(c, "rank", rank);
  expect_matches(c, "position", position);
}

}  // namespace trireme::test
