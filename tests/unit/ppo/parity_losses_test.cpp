// Losses and their gradients against OpenRLHF's (F7, F16-F26, F28, F29).
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include "trireme/ppo/kl.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/preference.hpp"
#include "unit/ppo/parity_table.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;

config::KlEstimator kl_estimator(const GoldenCase& c) {
  const std::string word = c.word("estimator").value_or("k1");
  return word == "k1" ? config::KlEstimator::k1 : word == "k2" ? config::KlEstimator::k2 : config::KlEstimator::k3;
}

config::LossAggregation aggregation(const GoldenCase& c) {
  return c.word("loss_agg") == "seq-mean-token-mean" ? config::LossAggregation::seq_mean_token_mean
                                                     : config::LossAggregation::token_mean;
}

// hyper at the top level (policy) or under "norm/" (losses)
Normalizer normalizer(const GoldenCase& c, const std::string& prefix) {
  return {c.number(prefix + "batch_num_tokens"), c.number(prefix + "global_batch_size"), c.number(prefix + "dp_size").value_or(1)};
}

PolicyLossOptions policy_options(const GoldenCase& c) {
  PolicyLossOptions out;
  out.type = c.word("policy_loss_type") == "gspo" ? config::PolicyLoss::gspo : config::PolicyLoss::ppo;
  out.clip_low = *c.number("eps_low");
  out.clip_high = *c.number("eps_high");
  out.dual_clip = c.number("dual_clip");
  out.aggregation = aggregation(c);
  config::AdvantageOptions deck;
  const auto type = c.word("is_correction");
  const bool custom = c.word("is_correction_gating").has_value() && c.word("is_correction_gating") != "ratio";
  deck.is_correction_enable = custom || (type.has_value() && type != "off");
  if (custom) {
    deck.is_correction_type = config::CorrectionType::custom;
    deck.is_correction_level = c.word("is_correction_level") == "seq" ? config::CorrectionLevel::sequence : config::CorrectionLevel::token;
    deck.is_correction_mode = config::CorrectionMode::mask;
    deck.is_correction_gating = c.word("is_correction_gating") == "tv" ? config::CorrectionGate::tv : config::CorrectionGate::binary_kl;
  } else if (type == "icepop") {
    deck.is_correction_type = config::CorrectionType::icepop;
  } else if (type == "seq-mask-tis") {
    deck.is_correction_type = config::CorrectionType::seq_mask_tis;
  }
  if (const auto threshold = c.numbers("is_threshold"); threshold.size() == 2) deck.is_correction_threshold = {threshold[0], threshold[1]};
  out.correction = config::importance_correction(deck);
  return out;
}

void check_policy(const GoldenCase& c) {
  const Tensor rows = c.input("log_probs");
  const PolicyLossInput in{leaf(rows),
                           flat(c.input("old_log_probs")),
                           flat(c.input("rollout_log_probs")),
                           flat(c.input("advantages")),
                           flat(c.input("action_mask")),
                           segments_of(rows)};
  const PolicyLoss got = policy_loss(in, policy_options(c), normalizer(c, ""));
  got.loss.backward();
  expect_matches(c, "loss", got.loss);
  expect_matches(c, "grad_log_probs", in.log_probs.grad());
  expect_matches(c, "clip_ratio", got.statistics.clip_ratio());
  expect_matches(c, "ppo_kl", got.statistics.ppo_kl());
  if (c.has_output("vllm_kl")) expect_matches(c, "vllm_kl", got.statistics.rollout_kl());
  if (c.has_output("is_filter_ratio")) expect_matches(c, "is_filter_ratio", got.statistics.filter_ratio());
}

TEST(Parity, PolicyLoss) {
  const auto cases = Golden::instance().starting_with("policy.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) check_policy(*c);
}

TEST(Parity, KlEstimate) {
  const auto cases = Golden::instance().starting_with("kl.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor log_probs = leaf(c->input("log_probs"));
    const Tensor base = flat(c->input("log_probs_base"));
    const Tensor old = *c->flag("use_log_probs_old") ? flat(c->input("log_probs_old")) : Tensor{};
    const Tensor kl = *c->flag("unbiased_gradient") ? approximate_kl_unbiased(log_probs, base, old, kl_estimator(*c))
                                                   : approximate_kl(log_probs, base, kl_estimator(*c));
    (kl * flat(c->input("w"))).sum().backward();
    expect_matches(*c, "kl", kl);
    expect_matches(*c, "grad_log_probs", log_probs.grad());
  }
}

TEST(Parity, KlLoss) {
  const auto cases = Golden::instance().starting_with("kl_loss.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor rows = c->input("log_probs");
    const Tensor log_probs = leaf(rows);
    config::KlOptions options;
    options.estimator = kl_estimator(*c);
    options.unbiased_gradient = *c->flag("unbiased_gradient");
    const Tensor loss = kl_loss(log_probs, flat(c->input("log_probs_base")), flat(c->input("log_probs_old")),
                                flat(c->input("action_mask")), segments_of(rows), options, normalizer(*c, "norm/"));
    loss.backward();
    expect_matches(*c, "loss", loss);
    expect_matches(*c, "grad_log_probs", log_probs.grad());
  }
}

TEST(Parity, Entropy) {
  const auto cases = Golden::instance().starting_with("entropy_loss.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor rows = c->input("entropy");
    const Tensor entropy = leaf(rows);
    const Tensor loss = entropy_term(entropy, flat(c->input("action_mask")), segments_of(rows), normalizer(*c, "norm/"));
    loss.backward();
    expect_matches(*c, "loss", loss);
    expect_matches(*c, "grad_entropy", entropy.grad());
  }
}

TEST(Parity, ValueLoss) {
  const auto cases = Golden::instance().starting_with("value_loss.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor rows = c->input("values");
    const Tensor values = leaf(rows);
    const Tensor loss = value_loss(values, flat(c->input("old_values")), flat(c->input("returns")), flat(c->input("action_mask")),
                                   segments_of(rows), c->number("value_clip"), aggregation(*c), normalizer(*c, "norm/"));
    loss.backward();
    expect_matches(*c, "loss", loss);
    expect_matches(*c, "grad_values", values.grad());
  }
}

// The loss of one micro-batch of a data-parallel case and its gradient with respect to `input`.
std::pair<Tensor, Tensor> data_parallel_loss(const GoldenCase& c, const std::string& key, const Normalizer& norm) {
  const auto column = [&](const char* name) { return flat(c.input(key + name)); };
  const Tensor rows = c.input(key + "action_mask");
  const Segments segments = segments_of(rows);
  Tensor input, loss;
  if (c.word("kind") == "value") {
    input = leaf(c.input(key + "values"));
    loss = value_loss(input, column("old_values"), column("returns"), flat(rows), segments, c.number("value_clip"), aggregation(c), norm);
  } else {
    input = leaf(c.input(key + "log_probs"));
    PolicyLossOptions options;
    options.type = c.word("kind") == "gspo" ? config::PolicyLoss::gspo : config::PolicyLoss::ppo;
    options.clip_low = *c.number("eps_low");
    options.clip_high = *c.number("eps_high");
    options.aggregation = aggregation(c);
    loss = policy_loss({input, column("old_log_probs"), Tensor{}, column("advantages"), flat(rows), segments}, options, norm).loss;
  }
  loss.backward();
  return {loss.detach(), input.grad()};
}

// One golden case: losses as the package returns them, then the gradients that the optimizer sees, which are those of a plain
// sum over micro-batches and ranks with the totals of the whole step: what this program computes.
void check_data_parallel(const GoldenCase& c) {
  const auto ranks = static_cast<int64_t>(*c.number("dp_size"));
  const auto gas = static_cast<int64_t>(*c.number("gas"));
  const auto micro_batches = static_cast<int64_t>(*c.number("micro_batches_per_rank"));
  const Tensor tokens = c.output("batch_num_tokens").to(at::kDouble), sequences = c.output("global_batch_size").to(at::kDouble);
  std::vector<double> step_loss(static_cast<size_t>((micro_batches + gas - 1) / gas), 0.0);
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<float> losses;
    for (int64_t m = 0; m < micro_batches; ++m) {
      const std::string key = "r" + std::to_string(r) + ".m" + std::to_string(m) + ".";
      const double step_tokens = tokens[m].item<double>(), step_sequences = sequences[m].item<double>();
      const auto averaged = data_parallel_loss(c, key, {step_tokens, step_sequences, static_cast<double>(ranks)});
      losses.push_back(averaged.first.item<float>());
      const auto summed = data_parallel_loss(c, key, {step_tokens * static_cast<double>(gas), step_sequences * static_cast<double>(gas), 1.0});
      expect_matches(c, key + "grad", summed.second);
      step_loss[static_cast<size_t>(m / gas)] += summed.first.item<double>();
    }
    expect_matches(c, "r" + std::to_string(r) + ".losses", at::tensor(losses));
  }
  expect_matches(c, "step_loss", at::tensor(step_loss, at::kDouble));
}

TEST(Parity, DataParallelNormalisation) {
  auto cases = Golden::instance().starting_with("dp2.");
  for (const GoldenCase* c : Golden::instance().starting_with("dp3.")) cases.push_back(c);
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) check_data_parallel(*c);
}

TEST(Parity, Dpo) {
  const auto cases = Golden::instance().starting_with("dpo.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const DpoInput in{leaf(c->input("policy_chosen")), leaf(c->input("policy_rejected")), flat(c->input("ref_chosen")),
                      flat(c->input("ref_rejected"))};
    config::DpoOptions options;
    options.beta = *c->number("beta");
    options.label_smoothing = *c->number("label_smoothing");
    options.ipo = *c->flag("ipo");
    const DpoLoss got = dpo_loss(in, options, static_cast<double>(in.policy_chosen.numel()));
    got.loss.backward();
    expect_matches(*c, "loss", got.loss);
    expect_matches(*c, "chosen_rewards", got.chosen_rewards);
    expect_matches(*c, "rejected_rewards", got.rejected_rewards);
    expect_matches(*c, "grad_policy_chosen", in.policy_chosen.grad());
    if (c->has_output("grad_policy_rejected")) expect_matches(*c, "grad_policy_rejected", in.policy_rejected.grad());
  }
}

TEST(Parity, RewardModelLoss) {
  const auto cases = Golden::instance().starting_with("rm.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor chosen = leaf(c->input("chosen_reward")), rejected = leaf(c->input("reject_reward"));
    const Tensor margin = c->has_input("margin") ? flat(c->input("margin")) : Tensor{};
    const bool logexp = c->name.find("logexp") != std::string::npos;
    const Tensor loss = reward_model_loss(chosen, rejected, margin, logexp ? config::PreferenceLoss::logexp : config::PreferenceLoss::sigmoid,
                                          static_cast<double>(chosen.numel()));
    loss.backward();
    expect_matches(*c, "loss", loss);
    expect_matches(*c, "grad_chosen", chosen.grad());
    expect_matches(*c, "grad_rejected", rejected.grad());
  }
}

TEST(Parity, SequenceLogProbs) {
  const auto cases = Golden::instance().starting_with("dpo_logps.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor rows = c->input("per_token_logps");  // column t belongs to token t + 1
    const Tensor attended = c->input("attention_mask").narrow(1, 1, rows.size(1));
    const Tensor position = at::arange(1, rows.size(1) + 1, at::kLong).unsqueeze(0);
    const Tensor mask = at::logical_and(attended.to(at::kBool), position >= c->input("prompt_lens").reshape({-1, 1}));
    const SequenceLogProbs got = sequence_log_probs(flat(rows), flat(mask), segments_of(rows));
    expect_matches(*c, "sums", got.sums);
    expect_matches(*c, "means", got.means);
  }
}

TEST(Parity, SftLoss) {
  const auto cases = Golden::instance().starting_with("sft.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor rows = c->input("log_probs");
    const Tensor log_probs = leaf(rows);
    const Tensor loss = sft_loss(log_probs, flat(c->input("loss_mask")), segments_of(rows), aggregation(*c), {});
    loss.backward();
    expect_matches(*c, "loss", loss);
    expect_matches(*c, "grad_log_probs", log_probs.grad());
  }
}

TEST(Parity, KlController) {
  const auto cases = Golden::instance().starting_with("kl_controller.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    std::vector<double> values{*c->number("init_kl_coef")};
    const Tensor current = c->input("current").to(at::kDouble);
    for (int64_t i = 0; i < current.numel(); ++i) {
      values.push_back(adapt_kl_coefficient(values.back(), current[i].item<double>(), *c->number("target"), *c->number("n_steps"),
                                            *c->number("horizon")));
    }
    expect_matches(*c, "value", at::tensor(values, at::kDouble));
  }
}

TEST(Parity, MovingAverage) {
  const auto cases = Golden::instance().starting_with("ema.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor params = c->input("params");
    Tensor average = c->input("ema_start").reshape({-1}).clone();
    std::vector<Tensor> states;
    const auto every = *c->flag("dynamic_batch") ? int64_t{1} : static_cast<int64_t>(*c->number("gradient_accumulation"));
    for (int64_t k = 0; k < params.size(0); ++k) {
      if ((k + 1) % every == 0) moving_average(average, params[k].reshape({-1}), *c->number("beta"));
      states.push_back(average.clone());
    }
    expect_matches(*c, "ema", at::stack(states));
  }
}

}  // namespace
}  // namespace trireme::test
