#include "torch/torch.hpp"

#include "trireme/kernels/row_losses.hpp"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "kernels/own_gradient.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A formula makes about ten tensors of a chunk's size.
constexpr int64_t host_chunk_bytes = 16 << 20, device_chunk_bytes = 128 << 20;

struct RowFormula : torch::CustomClassHolder {
  explicit RowFormula(RowLoss f) : loss(std::move(f)) {}
  RowLoss loss;
};

template <class Body>
void for_each_row_chunk(const Tensor& hidden, int64_t vocabulary, const Body& body) {
  const int64_t chunk = rows_of_chunk(vocabulary, hidden.device());
  for (int64_t first = 0; first < hidden.size(0); first += chunk) {
    const int64_t count = std::min(chunk, hidden.size(0) - first);
    body(first, count, hidden.narrow(0, first, count));
  }
}

// With respect to the chunk's logits, times grad [R].
Tensor row_gradient(const Tensor& logits, const RowLoss& loss, int64_t first, const Tensor& grad) {
  const at::AutoGradMode differentiated(true);
  const Tensor leaf = logits.detach().requires_grad_(true);
  return torch::autograd::grad({loss(leaf, first)}, {leaf}, {grad}).front();
}

struct RowLossesFunction : torch::autograd::Function<RowLossesFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                        c10::intrusive_ptr<RowFormula> formula) {
    const trace::Region region{"row losses", trace::no_argument, trace::Category::kernel};
    Tensor out = at::empty({hidden.size(0)}, hidden.options().dtype(at::kFloat));
    for_each_row_chunk(
        hidden, weight.size(0), [&](int64_t first, int64_t count, const Tensor& rows) {
          out.narrow(0, first, count).copy_(formula->loss(row_logits(rows, weight), first));
        });
    context->save_for_backward({hidden, weight});
    context->saved_data["formula"] = c10::IValue::make_capsule(std::move(formula));
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const trace::Region region{"row losses backward", trace::no_argument, trace::Category::kernel};
    const variable_list saved = context->get_saved_variables();
    const Tensor &hidden = saved[0], &weight = saved[1];
    const auto formula =
        c10::static_intrusive_pointer_cast<RowFormula>(context->saved_data["formula"].toCapsule());
    const Tensor grad = grads[0].contiguous();
    const bool want_weight = context->needs_input_grad(1);
    const Tensor own = want_weight ? own_gradient(weight) : Tensor{};
    Tensor weight_sum = own;
    if (want_weight && !own.defined())
      weight_sum = at::zeros(weight.sizes(), weight.options().dtype(at::kFloat));
    const Tensor operand = weight.to(hidden.scalar_type());
    Tensor hidden_grad = at::empty_like(hidden);
    for_each_row_chunk(hidden, weight.size(0),
                       [&](int64_t first, int64_t count, const Tensor& rows) {
                         const Tensor dz = row_gradient(row_logits(rows, operand), formula->loss,
                                                        first, grad.narrow(0, first, count))
                                               .to(hidden.scalar_type());
                         multiply(hidden_grad.narrow(0, first, count), dz, operand);
                         if (want_weight) multiply(weight_sum, dz.t(), rows, Sum::add);
                       });
    const bool by_autograd = want_weight && !own.defined();
    return {hidden_grad, by_autograd ? weight_sum.to(weight.scalar_type()) : Tensor{}, Tensor{}};
  }
};

}  // namespace

int64_t rows_of_chunk(int64_t vocabulary, at::Device device) {
  const int64_t bytes = on_host(device) ? host_chunk_bytes : device_chunk_bytes;
  return std::max<int64_t>(1, bytes / (4 * vocabulary));
}

Tensor row_logits(const Tensor& hidden, const Tensor& weight) {
  const at::NoGradGuard constant;
  const Tensor out = at::empty({hidden.size(0), weight.size(0)}, hidden.options());
  multiply(out, hidden, weight.to(hidden.scalar_type()).t());
  return out.to(at::kFloat);
}

Tensor row_losses(const Tensor& hidden, const Tensor& weight, RowLoss loss) {
  EXPECT(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1));
  return RowLossesFunction::apply(hidden.contiguous(), weight.contiguous(),
                                  c10::make_intrusive<RowFormula>(std::move(loss)));
}

}  // namespace trireme::kernels
