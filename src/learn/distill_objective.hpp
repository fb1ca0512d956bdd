// sft with a teacher (algo.distill): the divergence of two distributions at each trained token.
#pragma once

#include <memory>

#include "trireme/learn/objective.hpp"

namespace trireme::learn {

// `kept_logits`: bytes, of the language-model loss (train.logits_memory).
std::unique_ptr<Objective> make_distill_objective(const config::DistillOptions& options,
                                                  int64_t kept_logits,
                                                  std::unique_ptr<zero::ShardedModel> teacher);

}  // namespace trireme::learn
