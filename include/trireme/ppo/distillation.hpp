// A student against a frozen teacher. Formulas F45 to F47 of tests/gold/parity2/README.md: Tinker,
// NeMo-RL and verl (on the tokens that the student drew), TRL and verl (distributions); which of
// them where they differ, docs/user/algorithms.md. Legend: R rows, V vocabulary, K compared tokens,
// T packed columns.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/config/options.hpp"
#include "trireme/ppo/packed.hpp"

namespace trireme::ppo {

// F46, F47: the divergence of each row, f32 [R], differentiable in the student's logits f32 [R, V].
// teacher_logits f32 [R, V]: log_softmax of them is the teacher's. With options.top_k the K most
// likely tokens of options.support are compared.
at::Tensor distribution_loss(const at::Tensor& student_logits, const at::Tensor& teacher_logits,
                             const config::DistillOptions& options);

// A teacher's K most likely tokens, all that is left of its logits where options.by_teacher().
struct TopTokens {
  at::Tensor ids;        // i64 [R, K]
  at::Tensor log_probs;  // f32 [R, K], of the whole distribution at options.temperature
};
TopTokens top_tokens(const at::Tensor& logits, const config::DistillOptions& options);
// F47 with those: f32 [R], differentiable in student_logits [R, V].
at::Tensor top_tokens_loss(const at::Tensor& student_logits, const TopTokens& teacher,
                           const config::DistillOptions& options);

// F45: the teacher's addition to the advantages: coef times the sum over this and all later columns
// of the sequence of its log-prob minus the student's. Columns with mask 0 count as steps of the
// discount. f32 [T], no gradient.
at::Tensor teacher_advantages(const at::Tensor& student_log_probs,
                              const at::Tensor& teacher_log_probs, const at::Tensor& mask,
                              const Segments& segments, const config::DistillOptions& options);
// F45 as verl has it: coef times the same of a column alone and of current log-probs, clipped to
// options.loss_max.
at::Tensor clipped_teacher_advantages(const at::Tensor& log_probs,
                                      const at::Tensor& teacher_log_probs,
                                      const config::DistillOptions& options);
// F45: k2 or k3 (F7) of a column, at most options.loss_max; differentiable in log_probs.
at::Tensor teacher_divergence(const at::Tensor& log_probs, const at::Tensor& teacher_log_probs,
                              const config::DistillOptions& options);

}  // namespace trireme::ppo
