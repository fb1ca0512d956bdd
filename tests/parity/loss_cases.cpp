// Losses and their gradients against OpenRLHF's (F7, F16-F25, F29).
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include "parity/cases.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "support/policy_statistics.hpp"
#include "trireme/ppo/entropy_filter.hpp"
#include "trireme/ppo/kl.hpp"
#include "trireme/ppo/losses.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;

config::KlEstimator kl_estimator(const GoldenCase& c) {
  return choice(c, "estimator", config::KlEstimator::k1);
}

config::LossAggregation aggregation(const GoldenCase& c) {
  return choice(c, "loss_agg", config::LossAggregation::token_mean);
}

// hyper at the top level (policy) or under "norm/" (losses)
Normalizer normalizer(const GoldenCase& c, const std::string& prefix) {
  return {c.number(prefix + "batch_num_tokens"), c.number(prefix + "global_batch_size"),
          c.number(prefix + "dp_size").value_or(1), c.number("loss_scale_factor").value_or(1)};
}

// A gate other than the ratio is the deck's type `custom`, which takes level and mode from their
// own keys; the others are presets.
config::ImportanceCorrection correction(const GoldenCase& c) {
  config::AdvantageOptions deck;
  const auto type = c.word("is_correction");
  const auto gate = choice(c, "is_correction_gating", config::CorrectionGate::ratio);
  const bool custom = gate != config::CorrectionGate::ratio;
  deck.is_correction_enable = custom || (type.has_value() && type != "off");
  if (custom) {
    deck.is_correction_type = config::CorrectionType::custom;
    deck.is_correction_level = choice(c, "is_correction_level", config::CorrectionLevel::token);
    deck.is_correction_mode = choice(c, "is_correction_mode", config::CorrectionMode::mask);
    deck.is_correction_gating = gate;
  } else if (deck.is_correction_enable) {
    deck.is_correction_type = choice(c, "is_correction", config::CorrectionType::tis);
  }
  if (const auto threshold = c.numbers("is_threshold"); threshold.size() == 2)
    deck.is_correction_threshold = {threshold[0], threshold[1]};
  return config::importance_correction(deck);
}

PolicyLossOptions policy_options(const GoldenCase& c) {
  PolicyLossOptions out;
  out.type = choice(c, "policy_loss_type", config::PolicyLoss::ppo);
  out.clip_low = c.number("eps_low").value_or(out.clip_low);
  out.clip_high = c.number("eps_high").value_or(out.clip_high);
  out.dual_clip = c.number("dual_clip");
  out.delta = c.number("delta");
  out.ratio_min = c.number("ratio_min");
  out.ratio_max = c.number("ratio_max").value_or(out.ratio_max);
  out.tau_positive = c.number("tau_pos").value_or(out.tau_positive);
  out.tau_negative = c.number("tau_neg").value_or(out.tau_negative);
  out.log_ratio_max = c.number("log_ratio_max");
  out.off_policy_threshold = c.number("off_policy_threshold");
  out.aggregation = config::traits(out.type).by_sequence
                        ? config::LossAggregation::seq_mean_token_mean
                        : aggregation(c);
  out.correction = correction(c);
  return out;
}

}  // namespace

namespace {

// One advantage a sequence [B] as columns [B, A].
Tensor advantage_columns(const GoldenCase& c, const Tensor& rows) {
  const Tensor advantages = c.input("advantages");
  return flat(advantages.dim() == 1 ? advantages.unsqueeze(1).expand_as(rows) : advantages);
}

// F37, with the entropies dealt out to the ranks.
Tensor check_entropy_filter(const GoldenCase& c, const Tensor& mask) {
  const Tensor entropies = flat(c.input("entropy"));
  std::vector<float> mine;
  for (const int64_t t : dealt(mask.numel())) {
    if (mask[t].item<int64_t>() != 0) mine.push_back(entropies[t].item<float>());
  }
  const double threshold =
      top_entropy_threshold(mine, *c.number("top_entropy_quantile"), sum_over_ranks);
  const Tensor keep = entropies.to(at::kDouble) >= threshold;
  expect_matches(c, "entropy_threshold", threshold);
  expect_matches(c, "entropy_mask", at::logical_and(keep, mask.to(at::kBool)));
  return keep;
}

}  // namespace

void check_policy(const GoldenCase& c) {
  const Tensor rows = c.input("log_probs");
  const Tensor rollout =
      c.has_input("rollout_log_probs") ? flat(c.input("rollout_log_probs")) : Tensor{};
  PolicyLossInput in{leaf(rows),
                     flat(c.input("old_log_probs")),
                     rollout,
                     advantage_columns(c, rows),
                     flat(c.input("action_mask")),
                     segments_of(rows)};
  if (c.number("top_entropy_quantile")) in.keep = check_entropy_filter(c, in.mask);
  const PolicyLossOptions options = policy_options(c);
  const PolicyLoss got = policy_loss(in, options, normalizer(c, ""));
  got.loss.backward();
  expect_matches(c, "loss", got.loss);
  expect_matches(c, "grad_log_probs", in.log_probs.grad());
  if (c.has_output("clip_ratio")) expect_matches(c, "clip_ratio", statistics_of(got).clip_ratio());
  if (c.has_output("ppo_kl")) expect_matches(c, "ppo_kl", statistics_of(got).ppo_kl());
  if (c.has_output("vllm_kl")) expect_matches(c, "vllm_kl", statistics_of(got).rollout_kl());
  if (c.has_output("is_filter_ratio"))
    expect_matches(c, "is_filter_ratio", statistics_of(got).filter_ratio());
  if (c.has_output("token_loss")) expect_matches(c, "token_loss", select(got.tokens, in.mask));
  // The first column of a sequence has what all of its columns have.
  const auto of_sequences = [&](const Tensor& columns) {
    const Tensor counts = in.segments.sums(in.mask.to(at::kFloat));
    return in.segments.sums(select(columns, in.mask)) / at::clamp_min(counts, 1.0);
  };
  if (c.has_output("sequence_loss"))
    expect_matches(c, "sequence_loss", of_sequences(got.tokens.detach()));
  if (c.has_output("sequence_ratio")) {  // what an advantage of 1 on either side makes a loss of
    const Tensor sides = at::where(in.advantages > 0.0, at::ones({}), at::full({}, -1.0));
    in.advantages = sides;
    const Tensor losses = policy_loss(in, options, normalizer(c, "")).tokens.detach();
    expect_matches(c, "sequence_ratio", of_sequences(-losses * sides));
  }
  if (c.has_output("sequence_kept")) {
    const Tensor kept = on_policy(in, *options.off_policy_threshold);
    expect_matches(c, "sequence_kept", of_sequences(at::logical_not(kept).to(at::kFloat)) == 0.0);
  }
}

void check_kl(const GoldenCase& c) {
  const Tensor log_probs = leaf(c.input("log_probs"));
  const Tensor base = flat(c.input("log_probs_base"));
  const Tensor old = *c.flag("use_log_probs_old") ? flat(c.input("log_probs_old")) : Tensor{};
  const Tensor kl = *c.flag("unbiased_gradient")
                        ? approximate_kl_unbiased(log_probs, base, old, kl_estimator(c))
                        : approximate_kl(log_probs, base, kl_estimator(c));
  (kl * flat(c.input("w"))).sum().backward();
  expect_matches(c, "kl", kl);
  expect_matches(c, "grad_log_probs", log_probs.grad());
}

void check_kl_loss(const GoldenCase& c) {
  const Tensor rows = c.input("log_probs");
  const Tensor log_probs = leaf(rows);
  config::KlOptions options;
  options.estimator = kl_estimator(c);
  options.unbiased_gradient = *c.flag("unbiased_gradient");
  const Tensor loss =
      kl_loss(log_probs, flat(c.input("log_probs_base")), flat(c.input("log_probs_old")), options,
              {flat(c.input("action_mask")), segments_of(rows), normalizer(c, "norm/")});
  loss.backward();
  expect_matches(c, "loss", loss);
  expect_matches(c, "grad_log_probs", log_probs.grad());
}

void check_entropy_loss(const GoldenCase& c) {
  const Tensor rows = c.input("entropy");
  const Tensor entropy = leaf(rows);
  const Tensor loss = entropy_term(
      entropy, {flat(c.input("action_mask")), segments_of(rows), normalizer(c, "norm/")});
  loss.backward();
  expect_matches(c, "loss", loss);
  expect_matches(c, "grad_entropy", entropy.grad());
}

void check_value_loss(const GoldenCase& c) {
  const Tensor rows = c.input("values");
  const Tensor values = leaf(rows);
  const Tensor loss =
      value_loss(values, flat(c.input("old_values")), flat(c.input("returns")),

                 c.number("value_clip"), aggregation(c),
                 {flat(c.input("action_mask")), segments_of(rows), normalizer(c, "norm/")});
  loss.backward();
  expect_matches(c, "loss", loss);
  expect_matches(c, "grad_values", values.grad());
}

namespace {

// The loss of one micro-batch of a data-parallel case and its gradient with respect to `input`.
std::pair<Tensor, Tensor> data_parallel_loss(const GoldenCase& c, const std::string& key,
                                             const Normalizer& norm) {
  const auto column = [&](const char* name) { return flat(c.input(key + name)); };
  const Tensor rows = c.input(key + "action_mask");
  const Segments segments = segments_of(rows);
  Tensor input, loss;
  if (c.word("kind") == "value") {
    input = leaf(c.input(key + "values"));
    loss = value_loss(input, column("old_values"), column("returns"), c.number("value_clip"),
                      aggregation(c), {flat(rows), segments, norm});
  } else {
    input = leaf(c.input(key + "log_probs"));
    PolicyLossOptions options;
    options.type = choice(c, "kind", config::PolicyLoss::ppo);
    options.clip_low = *c.number("eps_low");
    options.clip_high = *c.number("eps_high");
    options.aggregation = aggregation(c);
    loss = policy_loss({input, column("old_log_probs"), Tensor{}, column("advantages"), flat(rows),
                        segments},
                       options, norm)
               .loss;
  }
  loss.backward();
  return {loss.detach(), input.grad()};
}

// Micro-batches of an optimizer step that the package averages over; the last step may have fewer.
struct Accumulation {
  int64_t size = 1;
  int64_t micro_batches = 0;
  int64_t steps() const { return (micro_batches + size - 1) / size; }
};

std::string key_of(int64_t golden_rank, int64_t micro_batch) {
  return "r" + std::to_string(golden_rank) + ".m" + std::to_string(micro_batch) + ".";
}

// Action tokens and sequences of each optimizer step over all micro-batches and ranks. Collective.
std::vector<Normalizer> totals_of_steps(const GoldenCase& c, int64_t golden_ranks,
                                        const Accumulation& accumulation) {
  std::vector<Normalizer> totals;
  for (int64_t step = 0; step < accumulation.steps(); ++step) {
    std::vector<CountedSequence> sequences;
    const int64_t end = std::min((step + 1) * accumulation.size, accumulation.micro_batches);
    for (const int64_t r : dealt(golden_ranks)) {
      for (int64_t m = step * accumulation.size; m < end; ++m) {
        const Tensor mask = c.input(key_of(r, m) + "action_mask");
        for (int64_t row = 0; row < mask.size(0); ++row)
          sequences.push_back({mask[row].sum().item<int64_t>()});
      }
    }
    totals.push_back(step_normalizer(sequences, {}, sum_over_ranks));
  }
  return totals;
}

}  // namespace

// Losses as the package returns them (averages over ranks and micro-batches of what each returns),
// then the gradients that its optimizer sees: those of a plain sum over micro-batches and ranks
// with the totals of the whole step, which is what this program computes. The ranks of the case are
// dealt out to ours.
void check_data_parallel(const GoldenCase& c) {
  const auto golden_ranks = static_cast<int64_t>(*c.number("dp_size"));
  const Accumulation accumulation{static_cast<int64_t>(*c.number("gas")),
                                  static_cast<int64_t>(*c.number("micro_batches_per_rank"))};
  const auto totals = totals_of_steps(c, golden_ranks, accumulation);
  const auto gas = static_cast<double>(accumulation.size);
  Tensor step_loss = at::zeros({accumulation.steps()}, at::kDouble),
         step_tokens = at::zeros({accumulation.micro_batches}, at::kDouble);
  Tensor step_sequences = at::zeros_like(step_tokens);
  for (int64_t r = 0; r < golden_ranks; ++r) {
    Tensor losses = at::zeros({accumulation.micro_batches}, at::kDouble);
    for (int64_t m = 0; m < accumulation.micro_batches; ++m) {
      const int64_t step = m / accumulation.size;
      const Normalizer& total = totals[static_cast<size_t>(step)];
      step_tokens[m] = *total.action_tokens / gas;
      step_sequences[m] = *total.sequences / gas;
      Tensor gradient = at::zeros_like(c.output(key_of(r, m) + "grad"));
      if (is_mine(r)) {
        const Normalizer average{*total.action_tokens / gas, *total.sequences / gas,
                                 static_cast<double>(golden_ranks)};
        losses[m] = data_parallel_loss(c, key_of(r, m), average).first.item<double>();
        const auto [loss, of_sum] = data_parallel_loss(c, key_of(r, m), total);
        gradient = of_sum;
        step_loss[step] += loss.item<double>();
      }
      expect_matches(c, key_of(r, m) + "grad", summed(gradient));
    }
    expect_matches(c, "r" + std::to_string(r) + ".losses", summed(losses));
  }
  expect_matches(c, "batch_num_tokens", step_tokens);
  expect_matches(c, "global_batch_size", step_sequences);
  expect_matches(c, "step_loss", summed(step_loss));
}

}  // namespace trireme::test
