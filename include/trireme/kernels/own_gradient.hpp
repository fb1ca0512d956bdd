// Gradients of leaves in memory that the caller gives: a stage's slot. kernels::linear() and the
// head's operators write a weight's gradient there by themselves; all others come by autograd,
// which adds. The first one of a backward pass overwrites what lies there, so that the memory need
// not be zero: a product that adds reads it, and zeros have to be written before.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/kernels/products.hpp"

namespace trireme::kernels {

// The gradients of a leaf go into `slot`, fp32 and of its shape, whose values do not count. Where
// they do count, leaf.mutable_grad() = slot. Before each backward pass, once for a leaf.
void overwrite_gradient(const at::Tensor& leaf, const at::Tensor& slot);

// After the pass, or before something else adds to leaf.grad(): zeros where no gradient has come.
void zero_unwritten_gradient(const at::Tensor& leaf);

// For backward passes that write a weight's gradient by themselves: where, and whether they add.
// The caller writes all of it. Undefined for weights whose gradient goes to autograd.
struct OwnGradient {
  at::Tensor slot;
  Sum sum = Sum::add;
};
OwnGradient own_gradient(const at::Tensor& weight);

}  // namespace trireme::kernels
