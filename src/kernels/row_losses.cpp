#include "torch/torch.hpp"

#include "trireme/kernels/row_losses.hpp"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/head_chunks.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/own_gradient.hpp"
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

// The gradient of one of the head's weights over chunks of rows: in the weight's own, or in fp32.
class WeightSum {
 public:
  WeightSum(const Tensor& weight, bool wanted) {
    if (!wanted) return;
    type_ = weight.scalar_type();
    own_ = own_gradient(weight);
    sum_ = own_.slot.defined() ? own_.slot
                               : at::zeros(weight.sizes(), weight.options().dtype(at::kFloat));
  }
  void add(const Tensor& dz, const Tensor& hidden) {
    if (sum_.defined()) multiply(sum_, dz.t(), hidden, std::exchange(own_.sum, Sum::add));
  }
  // Undefined where it is not wanted, or there already.
  Tensor by_autograd() const {
    return sum_.defined() && !own_.slot.defined() ? sum_.to(type_) : Tensor{};
  }

 private:
  at::ScalarType type_ = at::kFloat;
  OwnGradient own_;
  Tensor sum_;
};

// In the type of hidden.
HeadWeight operand_of(const HeadWeight& head, at::ScalarType type) {
  return {head.weight.to(type), head.low.defined() ? head.low.to(type) : Tensor{}};
}

struct RowLossesFunction : torch::autograd::Function<RowLossesFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                        const std::optional<Tensor>& of_adapter,
                        c10::intrusive_ptr<RowFormula> formula) {
    const trace::Region region{"row losses", trace::no_argument, trace::Category::kernel};
    const HeadWeight head{weight, of_adapter.value_or(Tensor{})};
    Tensor out = at::empty({hidden.size(0)}, hidden.options().dtype(at::kFloat));
    for_each_row_chunk(
        hidden, weight.size(0), [&](int64_t first, int64_t count, const Tensor& rows) {
          out.narrow(0, first, count).copy_(formula->loss(row_logits(rows, head), first));
        });
    context->save_for_backward({hidden, weight, head.low});
    context->saved_data["formula"] = c10::IValue::make_capsule(std::move(formula));
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const trace::Region region{"row losses backward", trace::no_argument, trace::Category::kernel};
    const variable_list saved = context->get_saved_variables();
    const Tensor& hidden = saved[0];
    const HeadWeight head{saved[1], saved[2]};
    const auto formula =
        c10::static_intrusive_pointer_cast<RowFormula>(context->saved_data["formula"].toCapsule());
    const Tensor grad = grads[0].contiguous();
    const bool some = hidden.size(0) > 0;
    WeightSum weight(head.weight, some && context->needs_input_grad(1));
    WeightSum low(head.low, some && head.low.defined() && context->needs_input_grad(2));
    const HeadWeight operand = operand_of(head, hidden.scalar_type());
    Tensor hidden_grad = at::empty_like(hidden);
    const auto add_chunk = [&](int64_t first, int64_t count, const Tensor& rows) {
      const Tensor dz = row_gradient(row_logits(rows, operand), formula->loss, first,
                                     grad.narrow(0, first, count))
                            .to(hidden.scalar_type());
      const Tensor to = hidden_grad.narrow(0, first, count);
      multiply(hidden_of_weight(to, head), dz, operand.weight);
      weight.add(dz, hidden_of_weight(rows, head));
      if (!head.low.defined()) return;
      multiply(hidden_of_adapter(to, head), dz, operand.low);
      low.add(dz, hidden_of_adapter(rows, head));
    };
    for_each_row_chunk(hidden, head.weight.size(0), add_chunk);
    context->saved_data.clear();  // what the formula holds is not needed until the graph ends
    return {hidden_grad, weight.by_autograd(), low.by_autograd(), Tensor{}};
  }
};

}  // namespace

int64_t rows_of_chunk(int64_t vocabulary, at::Device device) {
  const int64_t bytes = on_host(device) ? host_chunk_bytes : device_chunk_bytes;
  return std::max<int64_t>(1, bytes / (4 * vocabulary));
}

Tensor row_logits(const Tensor& hidden, const HeadWeight& head) {
  const at::NoGradGuard constant;
  const HeadWeight operand = operand_of(head, hidden.scalar_type());
  const Tensor out = at::empty({hidden.size(0), head.weight.size(0)}, hidden.options());
  multiply(out, hidden_of_weight(hidden, head), operand.weight.t());
  if (head.low.defined()) {
    const Tensor delta = at::empty_like(out);
    multiply(delta, hidden_of_adapter(hidden, head), operand.low.t());
    out.add_(delta);
  }
  return out.to(at::kFloat);
}

Tensor row_losses(const Tensor& hidden, const HeadWeight& head, RowLoss loss) {
  const int64_t more = head.low.defined() ? head.low.size(1) : 0;
  EXPECT(hidden.dim() == 2 && head.weight.dim() == 2 &&
         hidden.size(1) == head.weight.size(1) + more);
  const auto low = head.low.defined() ? std::optional(head.low.contiguous()) : std::nullopt;
  return RowLossesFunction::apply(hidden.contiguous(), head.weight.contiguous(), low,
                                  c10::make_intrusive<RowFormula>(std::move(loss)));
}

}  // namespace trireme::kernels
