#include "torch/torch.hpp"

#include "trireme/kernels/own_gradient.hpp"

#include "trireme/base/error.hpp"

namespace trireme::kernels {
namespace {

using at::Tensor;

// A slot that no gradient has come to has one dimension more than its leaf.
bool unwritten(const Tensor& leaf) {
  const Tensor& gradient = leaf.grad();
  return gradient.defined() && gradient.dim() == leaf.dim() + 1;
}

}  // namespace

void overwrite_gradient(const Tensor& leaf, const Tensor& slot) {
  EXPECT(leaf.is_leaf() && leaf.requires_grad() && slot.scalar_type() == at::kFloat &&
         slot.sizes() == leaf.sizes());
  leaf.mutable_grad() = slot.unsqueeze(0);
  // The leaf owns the function, which must not own the leaf.
  leaf.register_hook([leaf = leaf.unsafeGetTensorImpl()](const Tensor& by_autograd) {
    if (!by_autograd.defined()) return;
    zero_unwritten_gradient(Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(leaf)));
  });
}

void zero_unwritten_gradient(const Tensor& leaf) {
  if (!unwritten(leaf)) return;
  const at::NoGradGuard no_gradients;
  leaf.mutable_grad() = leaf.grad().squeeze(0).zero_();
}

OwnGradient own_gradient(const Tensor& weight) {
  if (!weight.is_leaf() || !weight.requires_grad()) return {};
  const bool first = unwritten(weight);
  if (first) weight.mutable_grad() = weight.grad().squeeze(0);
  const Tensor& gradient = weight.grad();
  const bool fits = gradient.defined() && gradient.scalar_type() == at::kFloat &&
                    gradient.sizes() == weight.sizes();
  return fits ? OwnGradient{gradient, first ? Sum::overwrite : Sum::add} : OwnGradient{};
}

}  // namespace trireme::kernels
