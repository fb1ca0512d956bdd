// A frozen teacher at the trained tokens of a micro-batch, and the student's divergence from it
// there (algo.distill; F46 and F47 of ppo/distillation.hpp). Of sft, and of ppo on the answers that
// the student wrote. Legend: A action tokens, D hidden, V vocabulary, K compared tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/config/options.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/ppo/distillation.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

class TeacherRows {
 public:
  // `teacher` outlives this; it may be the trained model, with its adapter disabled.
  TeacherRows(const config::DistillOptions& options, zero::ShardedModel& teacher,
              model::AdapterUse adapter = model::AdapterUse::applied);

  // The teacher's pass over a micro-batch, which may be empty. Its weights are here only within the
  // pass: the logits of the rows are kept, or their most likely tokens. Collective over the ranks
  // of the teacher.
  void prepare(const ActionBatch& batch);
  // Of the micro-batch that was prepared last, once: f32 [A], differentiable in hidden [A, D] and
  // the head's weight. What prepare()
  // kept is freed with the graph. Local.
  at::Tensor divergence(const at::Tensor& hidden, const kernels::HeadWeight& head);

 private:
  struct Kept {
    at::Tensor logits;   // [A, V], in the compute type
    ppo::TopTokens top;  // or [A, K]
  };
  Kept keep(const at::Tensor& hidden, const kernels::HeadWeight& head) const;

  config::DistillOptions options_;
  zero::ShardedModel& teacher_;
  model::AdapterUse adapter_;
  Kept kept_;
};

}  // namespace trireme::learn
