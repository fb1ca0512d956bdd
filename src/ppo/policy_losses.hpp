// The losses of config::policy_loss_table, token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/ppo/losses.hpp"

namespace trireme::ppo {

struct TokenLosses {
  at::Tensor loss;     // f32 [T], differentiable in the log-probs; 0 outside the mask
  at::Tensor clipped;  // bool [T], where a clip holds the objective; undefined: nothing is clipped
};
// log_probs and advantages of `input` are selected by `mask` already.
TokenLosses token_losses(const PolicyLossInput& input, const at::Tensor& mask,
                         const PolicyLossOptions& options);

}  // namespace trireme::ppo
