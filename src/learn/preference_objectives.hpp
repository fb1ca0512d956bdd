// The objectives of `trireme dpo` (config::dpo_loss_table), and what they share with the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "trireme/learn/objective.hpp"

namespace trireme::learn {

std::unique_ptr<Objective> make_preference_objective(const config::DpoOptions& options,
                                                     int64_t kept_logits,
                                                     std::unique_ptr<zero::ShardedModel> reference);

// Log-probs of the batch's action tokens. `kept`: bytes of logits that wait for their gradient.
at::Tensor target_log_probs(const at::Tensor& hidden, const kernels::HeadWeight& head_weight,
                            const ActionBatch& batch, int64_t kept);

// Every second element: the chosen (0) or the rejected (1) side of [2 P].
inline at::Tensor side(const at::Tensor& values, int64_t which) {
  return values.view({-1, 2}).select(1, which);
}
inline at::Tensor sum_of(const at::Tensor& values) { return values.sum(at::kDouble); }

}  // namespace trireme::learn
