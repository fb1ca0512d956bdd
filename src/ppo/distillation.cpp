#include "torch/torch.hpp"

#include "trireme/ppo/distillation.hpp"

#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/ppo/advantages.hpp"
#include "trireme/ppo/kl.hpp"

namespace trireme::ppo {
namespace {

using at::Tensor;

// Sum of p log(p / q) over the last dimension. p may be 0.
Tensor kl(const Tensor& log_p, const Tensor& log_q) {
  return (log_p.exp() * (log_p - log_q)).sum(-1);
}

// F46 of log-probs [R, n] that are whole distributions.
Tensor jensen_shannon(const Tensor& student, const Tensor& teacher, double beta) {
  if (beta == 0) return kl(teacher, student);
  if (beta == 1) return kl(student, teacher);
  const Tensor mean = at::logaddexp(student + std::log1p(-beta), teacher + std::log(beta));
  return kl(teacher, mean) * beta + kl(student, mean) * (1 - beta);
}

// log(1 - sum exp) of log-probs [R, K]: [R, 1].
Tensor log_tail(const Tensor& log_probs) {
  const Tensor mass = at::logsumexp(log_probs, -1, /*keepdim=*/true);
  constexpr double smallest = std::numeric_limits<float>::epsilon();  // of a mass in fp32
  return at::log(at::clamp_min(-at::expm1(mass), smallest));
}

Tensor compare(Tensor student, Tensor teacher, const config::DistillOptions& options) {
  switch (options.rest) {
    case config::DistillRest::tail:
      return jensen_shannon(at::cat({student, log_tail(student)}, -1),
                            at::cat({teacher, log_tail(teacher)}, -1), options.beta);
    case config::DistillRest::renormalise:
      return jensen_shannon(student - at::logsumexp(student, -1, true),
                            teacher - at::logsumexp(teacher, -1, true), options.beta);
    case config::DistillRest::none: break;
  }
  if (options.log_prob_min) {
    student = at::clamp_min(student, *options.log_prob_min);
    teacher = at::clamp_min(teacher, *options.log_prob_min);
  }
  const Tensor partial = at::clamp_min(kl(teacher, student), 0);
  return options.loss_max ? at::clamp_max(partial, *options.loss_max) : partial;
}

Tensor log_softmax(const Tensor& logits, const config::DistillOptions& options) {
  return at::log_softmax(options.temperature == 1 ? logits : logits / options.temperature, -1);
}

}  // namespace

Tensor distribution_loss(const Tensor& student_logits, const Tensor& teacher_logits,
                         const config::DistillOptions& options) {
  const Tensor student = log_softmax(student_logits, options),
               teacher = log_softmax(teacher_logits, options);
  if (options.top_k == 0) return jensen_shannon(student, teacher, options.beta);
  const Tensor& of = options.by_teacher() ? teacher : student;
  const Tensor ids = std::get<1>(at::topk(of.detach(), std::min(options.top_k, of.size(-1)), -1));
  return compare(student.gather(-1, ids), teacher.gather(-1, ids), options);
}

TopTokens top_tokens(const Tensor& logits, const config::DistillOptions& options) {
  const auto [values, ids] =
      at::topk(log_softmax(logits, options), std::min(options.top_k, logits.size(-1)), -1);
  return {ids, values};
}

Tensor top_tokens_loss(const Tensor& student_logits, const TopTokens& teacher,
                       const config::DistillOptions& options) {
  return compare(log_softmax(student_logits, options).gather(-1, teacher.ids), teacher.log_probs,
                 options);
}

Tensor teacher_advantages(const Tensor& student_log_probs, const Tensor& teacher_log_probs,
                          const Tensor& mask, const Segments& segments,
                          const config::DistillOptions& options) {
  const Tensor ratio = select(teacher_log_probs - student_log_probs, mask);
  if (options.discount == 0) return ratio * options.coef;
  return cumulative_returns(ratio, mask, segments, options.discount, config::AdvantageGaps::decay) *
         options.coef;
}

Tensor clipped_teacher_advantages(const Tensor& log_probs, const Tensor& teacher_log_probs,
                                  const config::DistillOptions& options) {
  const Tensor ratio = teacher_log_probs - log_probs.detach();
  if (!options.loss_max) return ratio * options.coef;
  return at::clamp(ratio, -*options.loss_max, *options.loss_max) * options.coef;
}

Tensor teacher_divergence(const Tensor& log_probs, const Tensor& teacher_log_probs,
                          const config::DistillOptions& options) {
  const bool squared = options.policy == config::DistillPolicy::k2;
  const Tensor all = approximate_kl(log_probs, teacher_log_probs,
                                    squared ? config::KlEstimator::k2 : config::KlEstimator::k3);
  return options.loss_max ? at::clamp(all, -*options.loss_max, *options.loss_max) : all;
}

}  // namespace trireme::ppo
