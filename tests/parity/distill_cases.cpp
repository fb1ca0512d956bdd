// A student against a teacher (F45-F47): Tinker, NeMo-RL, verl and TRL.
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include "parity/cases.hpp"
#include "parity/registry.hpp"
#include "trireme/ppo/distillation.hpp"
#include "trireme/ppo/losses.hpp"

namespace trireme::test {

using at::Tensor;
using namespace ppo;

namespace {

config::LossAggregation distill_aggregation(const GoldenCase& c) {
  return choice(c, "loss_agg", config::LossAggregation::token_mean);
}

// The policy loss of columns with these advantages; Tinker's ratio has no clip.
void expect_policy_loss(const GoldenCase& c, const Tensor& log_probs, const Tensor& advantages) {
  const Tensor rows = c.input("action_mask");
  PolicyLossOptions how;
  how.aggregation = distill_aggregation(c);
  how.clip_low = c.number("eps_low").value_or(1);
  how.clip_high = c.number("eps_high").value_or(1e30);
  how.dual_clip = c.number("dual_clip");
  PolicyLossInput input{
      log_probs, flat(c.input("student_log_probs")), {}, advantages, flat(rows), segments_of(rows)};
  input.rollout_log_probs = input.old_log_probs;
  const auto got = policy_loss(input, how, {});
  got.loss.backward();
  expect_matches(c, "loss", got.loss.detach());
  expect_matches(c, "grad_log_probs", log_probs.grad().view_as(rows));
}

void check_direct(const GoldenCase& c, const config::DistillOptions& options) {
  const Tensor rows = c.input("action_mask"), log_probs = leaf(c.input("log_probs"));
  const Tensor tokens = teacher_divergence(log_probs, flat(c.input("teacher_log_probs")), options);
  const Tensor loss = aggregate(tokens, distill_aggregation(c), {flat(rows), segments_of(rows)});
  loss.backward();
  expect_matches(c, "token_loss", select(tokens.detach(), flat(rows)).view_as(rows));
  expect_matches(c, "loss", loss.detach());
  expect_matches(c, "grad_log_probs", log_probs.grad().view_as(rows));
}

}  // namespace

void check_on_policy_distillation(const GoldenCase& c) {
  config::DistillOptions options;
  options.coef = c.number("kl_penalty_coef").value_or(1);
  options.discount = c.number("kl_discount_factor").value_or(0);
  options.loss_max = c.number("loss_max_clamp");
  if (c.name.starts_with("opd.direct")) {
    options.policy = choice(c, "estimator", config::KlEstimator::k1) == config::KlEstimator::k2
                         ? config::DistillPolicy::k2
                         : config::DistillPolicy::k3;
    return check_direct(c, options);
  }
  const Tensor rows = c.input("action_mask"), log_probs = leaf(c.input("log_probs")),
               student = flat(c.input("student_log_probs")),
               teacher = flat(c.input("teacher_log_probs"));
  Tensor advantages;
  if (c.name.starts_with("opd.tinker")) {
    advantages =
        teacher_advantages(student, teacher, flat(rows).to(at::kByte), segments_of(rows), options);
    if (c.has_input("advantages")) advantages = advantages + flat(c.input("advantages"));
    const Tensor mask = flat(rows).to(at::kFloat);
    expect_matches(c, "reverse_kl", (select(student - teacher, flat(rows))).sum() / mask.sum());
  } else {
    advantages = select(clipped_teacher_advantages(log_probs, teacher, options), flat(rows));
  }
  expect_matches(c, "distill_advantages", advantages.detach().view_as(rows));
  expect_policy_loss(c, log_probs, advantages);
}

void check_distillation(const GoldenCase& c) {
  config::DistillOptions options;
  options.beta = *c.number("beta");
  options.temperature = *c.number("temperature");
  options.rest = choice(c, "rest", config::DistillRest::tail);
  options.support = choice(c, "support_of", config::DistillSupport::teacher);
  options.top_k = static_cast<int64_t>(c.number("topk").value_or(0));
  options.log_prob_min = c.number("log_prob_min_clamp");
  options.loss_max = c.number("loss_max_clamp");
  const Tensor rows = c.input("action_mask"), logits = c.input("student_logits");
  const int64_t vocabulary = logits.size(-1);
  const Tensor student = logits.reshape({-1, vocabulary}).detach().clone().requires_grad_(true);
  const Tensor tokens =
      options.top_k == 0
          ? distribution_loss(student, c.input("teacher_logits").reshape({-1, vocabulary}), options)
          : top_tokens_loss(student,
                            {c.input("topk_ids").reshape({-1, options.top_k}),
                             c.input("teacher_topk_log_probs").reshape({-1, options.top_k})},
                            options);
  const Tensor loss = aggregate(tokens, distill_aggregation(c), {flat(rows), segments_of(rows)});
  loss.backward();
  expect_matches(c, "token_loss", select(tokens.detach(), flat(rows)).view_as(rows));
  expect_matches(c, "loss", loss.detach());
  expect_matches(c, "grad_student_logits", student.grad().view_as(logits));
}

}  // namespace trireme::test
