// Where backward passes add a weight's gradient by themselves.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

// The fp32 gradient that a leaf has already: a stage's slot. Undefined for all other weights, whose
// gradient goes to autograd.
inline at::Tensor own_gradient(const at::Tensor& weight) {
  if (!weight.is_leaf() || !weight.requires_grad()) return {};
  const at::Tensor& gradient = weight.grad();
  const bool fits = gradient.defined() && gradient.scalar_type() == at::kFloat &&
                    gradient.sizes() == weight.sizes();
  return fits ? gradient : at::Tensor{};
}

}  // namespace trireme::kernels
