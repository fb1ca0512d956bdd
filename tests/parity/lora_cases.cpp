// Adapters of peft: log-probs with the adapter, without it and merged, gradients, AdamW steps, and
// steps of DPO and of a policy whose reference is the model without its adapter (F60-F63). The
// names of gradients and parameters are the keys of adapter_model.safetensors.
#include "torch/torch.hpp"

#include <algorithm>

#include "parity/cases.hpp"
#include "parity/golden_rows.hpp"
#include "parity/lora_rows.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/learn/update_step.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/preference.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using model::AdapterUse;

std::vector<std::vector<int32_t>> sequences_of(const Samples& samples) {
  std::vector<std::vector<int32_t>> out;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto ids = samples.tokens_of(i);
    out.emplace_back(ids.begin(), ids.end());
  }
  return out;
}

void check_forward_pass(const GoldenCase& c) {
  const Adapted adapted(c);
  const auto merged = model::merged_weights(adapted.spec, adapted.weights);
  auto model = adapted.load();
  auto alone = adapted.load(model::without_adapter(adapted.spec), merged);
  GoldenRows rows(c);
  const bool scores = adapted.spec.head == model::HeadKind::score;
  const auto expect = [&](const std::string& way, zero::ShardedModel& by, AdapterUse use) {
    if (scores) {
      const auto got =
          learn::sequence_scores(by, sequences_of(rows.samples()), {world(), few_tokens}, {}, use)
              .value();
      return expect_matches(c, "rewards_" + way, rows_of_all(at::tensor(got), rows.count()));
    }
    expect_matches(
        c, "log_probs_" + way,
        rows.targets(learn::action_log_probs(by, rows.samples(), {world(), few_tokens}, 1, use)));
  };
  expect("adapter", model, AdapterUse::applied);
  expect("disabled", model, AdapterUse::disabled);
  expect("merged", alone, AdapterUse::applied);
  for (const auto& [field, key] : c.outputs) {
    if (!field.starts_with("merged/")) continue;
    const auto& shape = merged->spec(field.substr(7)).shape;
    Tensor whole = at::empty(shape);
    merged->read(field.substr(7), {0, shape[0], 0, shape[1]}, whole.data_ptr<float>());
    expect_matches(c, field, whole);
  }
}

double reward_gradients(zero::ShardedModel& model, const PairRows& rows) {
  double value = 0;
  model.forward_backward(rows.batch.packed, [&](const Tensor& hidden, const Tensor& weight) {
    const Tensor scores =
        learn::score_head(hidden.index_select(0, learn::last_tokens(rows.batch.packed)), weight);
    const auto [chosen, rejected] = rows.sides(scores);
    const Tensor loss =
        ppo::reward_model_loss(chosen, rejected, {}, config::PreferenceLoss::sigmoid,
                               static_cast<double>(rows.chosen.count()));
    value = loss.item<double>();
    return loss;
  });
  return world().sum(value);
}

// The loss whose gradients a case has.
class CaseLoss {
 public:
  explicit CaseLoss(const GoldenCase& c) {
    if (c.has_input("chosen_sequences")) {
      pairs_.emplace(c);
    } else {
      rows_.emplace(c);
    }
  }
  double gradients(zero::ShardedModel& model) const {
    return pairs_ ? reward_gradients(model, *pairs_) : forward_backward(model, *rows_, -1);
  }

 private:
  std::optional<PairRows> pairs_;
  std::optional<ActionRows> rows_;
};

void check_gradients_of(const GoldenCase& c) {
  auto model = Adapted(c).load();
  expect_matches(c, "loss", CaseLoss(c).gradients(model));
  expect_trained(c, "grad", model, &zero::ShardedModel::gradient);
  expect_matches(c, "grad_norm", model.step({}).grad_norm);
}

void check_steps(const GoldenCase& c) {
  const auto betas = c.numbers("betas");
  const zero::AdamWOptions adam{.lr = c.number("lr").value(),
                                .beta1 = betas[0],
                                .beta2 = betas[1],
                                .eps = c.number("eps").value(),
                                .weight_decay = c.number("weight_decay").value(),
                                .max_norm = c.number("clip").value()};
  auto model = Adapted(c).load();
  const CaseLoss loss(c);
  std::vector<double> losses, norms;
  for (int step = 0; step < static_cast<int>(c.number("steps").value()); ++step) {
    losses.push_back(loss.gradients(model));
    norms.push_back(model.step(adam).grad_norm);
  }
  expect_matches(c, "losses", at::tensor(losses));
  expect_matches(c, "grad_norms", at::tensor(norms));
  expect_matches(c, "final_loss", loss.gradients(model));
  expect_trained(c, "param", model, &zero::ShardedModel::master);
}

void check_preference_step(const GoldenCase& c) {
  auto model = Adapted(c).load();
  const PairRows rows(c);
  const auto [policy, reference, loss] = preference_gradients(c, model, rows);
  const int64_t count = rows.chosen.count();
  expect_matches(c, "loss", loss);
  expect_matches(c, "policy_chosen", rows_of_all(rows.sides(policy).chosen, count));
  expect_matches(c, "policy_rejected", rows_of_all(rows.sides(policy).rejected, count));
  expect_matches(c, "ref_chosen", rows_of_all(rows.sides(reference).chosen, count));
  expect_matches(c, "ref_rejected", rows_of_all(rows.sides(reference).rejected, count));
  expect_trained(c, "grad", model, &zero::ShardedModel::gradient);
  expect_matches(c, "grad_norm", model.step({}).grad_norm);
}

config::Options step_options(const GoldenCase& c) {
  config::Options options;
  options.actor.eps_clip_low_high = {*c.number("eps_low"), *c.number("eps_high")};
  options.actor.loss_agg_mode = choice(c, "loss_agg", config::LossAggregation::token_mean);
  options.algo.kl.use_loss = true;
  options.algo.kl.init_coef = *c.number("kl_coef");
  options.algo.kl.estimator = choice(c, "kl_estimator", config::KlEstimator::k1);
  options.actor.max_norm = 0;
  return options;
}

// The program's optimizer step, with learning rate 0: the first moment has the gradient.
void check_policy_step(const GoldenCase& c) {
  auto model = Adapted(c).load();
  GoldenRows rows(c);
  rows.set_action_mask(c.input("action_mask"));
  const config::Options options = step_options(c);
  const auto log_probs = [&](AdapterUse use) {
    return learn::action_log_probs(model, rows.samples(), {world(), few_tokens}, 1, use);
  };
  const Tensor reference = log_probs(AdapterUse::disabled);
  expect_matches(c, "ref_log_probs", rows.targets(reference));
  expect_matches(c, "log_probs", rows.targets(log_probs(AdapterUse::applied)));

  Samples samples = rows.samples();
  learn::UpdateStep step;
  step.sum = sum_over_ranks;
  auto& experience = step.micro_batches.emplace_back(ppo::Experience::from(std::move(samples)));
  experience.old_log_probs = rows.pack(c.input("old_log_probs"));
  experience.advantages = rows.pack(c.input("advantages"));
  experience.ref_log_probs = reference;
  step.normalizer =
      ppo::step_normalizer(ppo::counted_sequences(experience.samples), options, step.sum);
  step.kl_coefficient = options.algo.kl.init_coef;
  learn::UpdateReport report;
  learn::actor_step(model, step, options, 0, at::kCPU, report);
  const double policy = world().sum(report.policy_loss), kl = world().sum(report.kl_loss);
  expect_matches(c, "policy_loss", policy);
  expect_matches(c, "kl_loss", kl);
  expect_matches(c, "loss", policy + options.algo.kl.init_coef * kl);
  expect_matches(c, "grad_norm", report.grad_norm);
  expect_trained(c, "grad", model, &zero::ShardedModel::moment1,
                 1 / (1 - options.actor.adam.betas[0]));
}

}  // namespace

void check_lora(const GoldenCase& c) {
  const std::string kind = c.name.substr(c.name.rfind('.') + 1);
  if (kind == "forward") return check_forward_pass(c);
  if (kind == "grad") return check_gradients_of(c);
  if (kind == "adamw5") return check_steps(c);
  if (kind == "dpo") return check_preference_step(c);
  if (kind == "policy") return check_policy_step(c);
  if (kind.ends_with("50")) return check_trainer_steps(c);
  FAIL() << "there is no check for cases like " << c.name;
}

}  // namespace trireme::test
