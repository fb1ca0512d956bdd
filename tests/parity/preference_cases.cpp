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

void check_dpo(const GoldenCase& c) {
  const DpoInput in{leaf(c.input("policy_chosen")), leaf(c.input("policy_rejected")),
                    flat(c.input("ref_chosen")), flat(c.input("ref_rejected"))};
  config::DpoOptions options;
  options.beta = *c.number("beta");
  options.label_smoothing = *c.number("label_smoothing");
  options.ipo = *c.flag("ipo");
  const DpoLoss got = dpo_loss(in, options, static_cast<double>(in.policy_chosen.numel()));
  got.loss.backward();
  expect_matches(c, "loss", got.loss);
  expect_matches(c, "chosen_rewards", got.chosen_rewards);
  expect_matches(c, "rejected_rewards", got.rejected_rewards);
  expect_matches(c, "grad_policy_chosen", in.policy_chosen.grad());
  if (c.has_output("grad_policy_rejected"))
    expect_matches(c, "grad_policy_rejected", in.policy_rejected.grad());
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
  const Tensor loss = sft_loss(log_probs, flat(c.input("loss_mask")), segments_of(rows),
                               choice(c, "loss_agg", config::LossAggregation::token_mean), {});
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
