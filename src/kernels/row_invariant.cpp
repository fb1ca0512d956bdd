#include "torch/torch.hpp"

#include "trireme/kernels/row_invariant.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "trireme/kernels/own_gradient.hpp"
#include "trireme/kernels/products.hpp"

namespace trireme::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Whether a gradient for `weight` may be fp32 although the weight is bf16: what no bf16 number held
// needs no rounding to one.
bool takes_float_gradient(const Tensor& weight) {
  return weight.requires_grad() && weight.is_leaf() && weight.grad_dtype() == at::kFloat;
}

// Products with fewer outputs take other paths of the library, which depend on the rows.
constexpr int64_t least_outputs = 16;

// The weight with zero rows where it has too few.
Tensor pad_outputs(const Tensor& weight) {
  const int64_t missing = weight.is_cpu() ? least_outputs - weight.size(0) : 0;
  if (missing <= 0) return weight;
  return at::cat({weight, at::zeros({missing, weight.size(1)}, weight.options())}, 0);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    const Tensor padded = pad_rows(x), rows = bias ? weight : pad_outputs(weight);
    const Tensor all = at::empty({padded.size(0), rows.size(0)}, x.options());
    multiply_rows(all, padded, rows, bias);
    const Tensor out =
        rows.size(0) == weight.size(0) ? all : all.narrow(1, 0, weight.size(0)).contiguous();
    context->save_for_backward({x, weight});
    context->saved_data["float_weight_gradient"] = takes_float_gradient(weight);
    context->saved_data["with_bias"] = bias.has_value();
    context->saved_data["float_bias_gradient"] = bias && takes_float_gradient(*bias);
    return out.size(0) == x.size(0) ? out : out.narrow(0, 0, x.size(0)).clone();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const Tensor dy = gradients[0].contiguous();
    const auto type_of = [&](const char* name) {
      return context->saved_data[name].toBool() ? at::kFloat : x.scalar_type();
    };
    Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) {
      dx = at::empty(x.sizes(), x.options());
      multiply(dx, dy, weight);
    }
    if (context->needs_input_grad(1)) {
      if (const OwnGradient own = own_gradient(weight); own.slot.defined()) {
        multiply(own.slot, dy.t(), x, own.sum);
      } else {
        dweight =
            at::empty(weight.sizes(), weight.options().dtype(type_of("float_weight_gradient")));
        multiply(dweight, dy.t(), x);
      }
    }
    if (context->saved_data["with_bias"].toBool() && context->needs_input_grad(2))
      dbias = at::sum(dy, {0}, false, at::kFloat).to(type_of("float_bias_gradient"));
    return {dx, dweight, dbias};
  }
};

}  // namespace

// 32 is also enough for shapes so small that oneDNN would leave them to other code (M K N up to
// 4096).
int64_t invariant_rows() { return std::max<int64_t>(block_rows, 8 * at::get_num_threads()); }

Tensor pad_rows(const Tensor& x) {
  const int64_t missing = x.is_cpu() ? invariant_rows() - x.size(0) : 0;
  if (missing <= 0) return x;
  return at::cat({x, at::zeros({missing, x.size(1)}, x.options())}, 0);
}

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  if (x.size(0) == 0) return at::linear(x, weight, bias);
  return Linear::apply(x, weight, bias);
}

}  // namespace trireme::kernels
