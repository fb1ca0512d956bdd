#include "torch/torch.hpp"

#include "fused_operators.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/row_invariant.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/kernels/tensor_elements.hpp"

namespace trireme::generate {
namespace {

using model::Operation;
using model::OperationKind;
using model::Value;

using kernels::elements;
using kernels::mutable_elements;
using kernels::rows_of;
using kernels::with_type;

// sum = x + added, and its norm.
void add_rms_norm(const kernels::DeviceKernels& own, const at::Tensor& x, const at::Tensor& added,
                  const at::Tensor& weight, double epsilon, const at::Tensor& sum,
                  const at::Tensor& normed) {
  with_type(x, [&]<class T>(T*) {
    rows_of<T>(own).add_rms_norm(elements<T>(x), elements<T>(added), elements<T>(weight),
                                 mutable_elements<T>(sum), mutable_elements<T>(normed), x.size(0),
                                 x.size(1), static_cast<float>(epsilon));
  });
}

// gate and up [M, F], rows equally far apart.
void swiglu(const kernels::DeviceKernels& own, const at::Tensor& gate, const at::Tensor& up,
            const at::Tensor& out) {
  with_type(gate, [&]<class T>(T*) {
    rows_of<T>(own).swiglu(elements<T>(gate), elements<T>(up), mutable_elements<T>(out),
                           gate.size(0), gate.size(1), gate.stride(0));
  });
}

// q [M, H hd], k and v [M, K hd]; rotated [M, H, hd], keys and values [S, K, hd].
void keep_rows(const kernels::DeviceKernels& own, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v, const at::Tensor& positions, const at::Tensor& slots,
               const model::Rope& rope, const at::Tensor& rotated, const at::Tensor& keys,
               const at::Tensor& values) {
  with_type(q, [&]<class T>(T*) {
    rows_of<T>(own).keep_rows({elements<T>(q), elements<T>(k), elements<T>(v), q.stride(0),
                               k.stride(0), v.stride(0), positions.const_data_ptr<int64_t>(),
                               slots.const_data_ptr<int64_t>(), rope.cos.const_data_ptr<float>(),
                               rope.sin.const_data_ptr<float>(), mutable_elements<T>(rotated),
                               mutable_elements<T>(keys), mutable_elements<T>(values), q.size(0),
                               rotated.size(1), keys.size(1), rotated.size(2)});
  });
}

}  // namespace

at::Tensor FusedOperators::run() {
  for (const model::Stage& stage : spec_.stages) {
    if (stage.kind == model::StageKind::embedding) {
      std::vector<at::Tensor> parameters;
      for (const size_t p : stage.parameters) parameters.push_back(weights_.tensor(p));
      value(Value::stream) =
          model::run_stage(spec_, stage, parameters, {}, step_.rows, step_.rope, step_.strategy);
      continue;
    }
    if (stage.kind == model::StageKind::head) {
      if (step_.logit_rows.numel() == 0) return {};
      for (at::Tensor* x : {&value(Value::stream), &added_}) {
        if (x->defined()) *x = x->index_select(0, step_.logit_rows);
      }
    }
    for (size_t i = 0; i < stage.operations.size();) i += execute(stage, i);
    if (stage.kind == model::StageKind::block) forget_all_but(Value::stream);
  }
  const at::Tensor& out = value(spec_.stages.back().operations.back().out);
  return spec_.wide_head() ? out.to(at::kFloat) : out;
}

// No value outlives the operations that read it: what a product of several weights gave is their
// memory together.
void FusedOperators::forget_all_but(Value kept) {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (i != static_cast<size_t>(kept)) values_[i] = at::Tensor();
  }
}

// From this operation of the stage on; how many were done.
size_t FusedOperators::execute(const model::Stage& stage, size_t operation) {
  const Operation& o = stage.operations[operation];
  switch (o.kind) {
    case OperationKind::norm: norm(o, weight(stage, o.weight)); return 1;
    case OperationKind::spread: return 1;  // every rank has the whole value
    case OperationKind::linear: return multiply(stage, operation);
    case OperationKind::rotate:  // of q and of k, then attention
      EXPECT(operation + 2 < stage.operations.size() &&
             stage.operations[operation + 1].kind == OperationKind::rotate &&
             stage.operations[operation + 2].kind == OperationKind::attend);
      keep_and_attend(stage.operations[operation + 2].out, stage.layer);
      return 3;
    case OperationKind::gate:
      value(o.out) = gate(value(o.in), value(o.other));
      value(o.other) = at::Tensor();
      return 1;
    case OperationKind::reduce: value(o.out) = step_.strategy.reduce(value(o.in)); return 1;
    case OperationKind::add:
      EXPECT(o.in == Value::stream && o.out == Value::stream && !added_.defined());
      added_ = std::move(value(o.other));
      return 1;
    case OperationKind::add_bias: value(o.out) = value(o.in).add(weight(stage, o.weight)); return 1;
    case OperationKind::look_up:
    case OperationKind::attend: break;
  }
  throw InternalError("an operation where none of its kind is expected");
}

void FusedOperators::norm(const Operation& operation, const at::Tensor& weight) {
  const at::Tensor& x = value(operation.in);
  if (operation.in != Value::stream) {  // of heads
    value(operation.out) = model::rms_norm(heads(x), weight, spec_.shape.norm_eps).view(x.sizes());
  } else if (!added_.defined()) {
    value(operation.out) = model::rms_norm(x, weight, spec_.shape.norm_eps);
  } else {
    const at::Tensor sum = at::empty_like(x), normed = at::empty_like(x);
    add_rms_norm(*kernels::device_kernels(), x, added_.contiguous(), weight, spec_.shape.norm_eps,
                 sum, normed);
    value(Value::stream) = sum;
    value(operation.out) = normed;
    added_ = at::Tensor();
  }
}

size_t FusedOperators::multiply(const model::Stage& stage, size_t operation) {
  const size_t count = model::joint_linears(stage, operation);
  if (count > 1 && multiply_jointly(stage, operation, count)) return count;
  const Operation& o = stage.operations[operation];
  const std::optional<at::Tensor> bias =
      o.bias < 0 ? std::nullopt : std::optional(weight(stage, o.bias));
  value(o.out) = kernels::linear(value(o.in), weight(stage, o.weight), bias);
  return 1;
}

// False: their weights, or biases, do not lie one behind the other, or not all of them have a bias.
bool FusedOperators::multiply_jointly(const model::Stage& stage, size_t operation, size_t count) {
  std::vector<Operation> operations(
      stage.operations.begin() + static_cast<std::ptrdiff_t>(operation),
      stage.operations.begin() + static_cast<std::ptrdiff_t>(operation + count));
  std::sort(operations.begin(), operations.end(),
            [](const Operation& a, const Operation& b) { return a.weight < b.weight; });
  const bool biased = operations.front().bias >= 0;
  if (std::ranges::any_of(operations,
                          [biased](const Operation& o) { return (o.bias >= 0) != biased; }))
    return false;
  const auto joint = [&](int Operation::*member) {
    return operations.front().*member < 0
               ? at::Tensor()
               : weights_.joint_tensor(
                     stage.parameters[static_cast<size_t>(operations.front().*member)], count);
  };
  const at::Tensor weight = joint(&Operation::weight), bias = joint(&Operation::bias);
  if (!weight.defined() || bias.defined() != biased) return false;
  const at::Tensor all = kernels::linear(value(operations.front().in), weight,
                                         bias.defined() ? std::optional(bias) : std::nullopt);
  int64_t first = 0;
  for (const Operation& o : operations) {
    const int64_t width = weights_.block(stage.parameters[static_cast<size_t>(o.weight)]).rows;
    value(o.out) = all.narrow(1, first, width);
    first += width;
  }
  return true;
}

void FusedOperators::keep_and_attend(Value out, int layer) {
  const at::Tensor &q = value(Value::q), &k = value(Value::k), &v = value(Value::v);
  const at::Tensor rotated =
      at::empty({q.size(0), q.size(1) / spec_.shape.head_dim, spec_.shape.head_dim}, q.options());
  const at::Tensor cache = step_.cache.select(1, layer);
  keep_rows(*kernels::device_kernels(), q, k, v, step_.rows.positions, step_.slots, step_.rope,
            rotated, cache.select(0, 0), cache.select(0, 1));
  const int64_t width = q.size(1);
  value(Value::q) = value(Value::k) = value(Value::v) = at::Tensor();
  value(out) = step_.attend(rotated, layer).reshape({rotated.size(0), width});
}

at::Tensor FusedOperators::gate(const at::Tensor& gate, const at::Tensor& up) const {
  const at::Tensor out = at::empty({gate.size(0), gate.size(1)}, gate.options());
  const bool alike = gate.stride(0) == up.stride(0);
  swiglu(*kernels::device_kernels(), alike ? gate : gate.contiguous(), alike ? up : up.contiguous(),
         out);
  return out;
}

std::string fused_operators_problem(at::Device device, const kernels::DeviceKernels& own,
                                    const LocalShape& shape) {
  constexpr int64_t rows = 5, slots = 9;
  constexpr double epsilon = 1e-5;
  const at::ScalarType type = kernels::scalar_type(shape.type);
  const auto made_up = [&](int64_t its_rows, int64_t its_columns, double frequency) {
    const at::Tensor steps =
        at::arange(its_rows * its_columns, at::TensorOptions().dtype(at::kFloat)).mul(frequency);
    return steps.sin().mul(2).view({its_rows, its_columns}).to(type).to(device);
  };
  const auto whole = [&](std::vector<int64_t> values) {
    return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device);
  };
  const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
  std::vector<at::Tensor> errors;
  const auto compare = [&](const at::Tensor& got, const at::Tensor& want) {
    errors.push_back(got.to(at::kDouble).sub(want.to(at::kDouble)).abs().max());
  };

  const at::Tensor x = made_up(rows, shape.hidden, 0.37), added = made_up(rows, shape.hidden, 0.11),
                   weight = made_up(1, shape.hidden, 0.73).view({shape.hidden});
  const at::Tensor sum = at::full_like(x, NAN), normed = at::full_like(x, NAN);
  add_rms_norm(own, x, added, weight, epsilon, sum, normed);
  compare(sum, x.add(added));
  compare(normed, model::rms_norm(x.add(added), weight, epsilon));

  const at::Tensor both = made_up(rows, 2 * shape.ffn, 0.19), gate = both.narrow(1, 0, shape.ffn),
                   up = both.narrow(1, shape.ffn, shape.ffn);
  const at::Tensor product = at::full({rows, shape.ffn}, NAN, x.options());
  swiglu(own, gate, up, product);
  compare(product, at::silu(wide(gate)).mul(wide(up)));

  const at::Tensor qkv = made_up(rows, shape.q_dim() + 2 * shape.kv_dim(), 0.23);
  const at::Tensor q = qkv.narrow(1, 0, shape.q_dim()),
                   k = qkv.narrow(1, shape.q_dim(), shape.kv_dim()),
                   v = qkv.narrow(1, shape.q_dim() + shape.kv_dim(), shape.kv_dim());
  const at::Tensor positions = whole({3, 0, 4, 4, 1}), slot = whole({8, 1, 0, 5, 2});
  const at::Tensor angles = wide(made_up(rows, shape.head_dim / 2, 0.29));
  const model::Rope rope{angles.cos(), angles.sin()};
  const at::Tensor rotated = at::full({rows, shape.heads, shape.head_dim}, NAN, q.options());
  const at::Tensor keys = at::full({slots, shape.kv_heads, shape.head_dim}, NAN, q.options());
  const at::Tensor values = at::full_like(keys, NAN);
  keep_rows(own, q, k, v, positions, slot, rope, rotated, keys, values);
  const at::Tensor cos = rope.cos.index_select(0, positions).unsqueeze(1),
                   sin = rope.sin.index_select(0, positions).unsqueeze(1);
  const auto rotate = [&](const at::Tensor& y, int64_t its_heads) {
    const at::Tensor halves = wide(y).view({rows, its_heads, 2, shape.head_dim / 2}),
                     a = halves.select(2, 0), b = halves.select(2, 1);
    return at::cat({a.mul(cos).sub(b.mul(sin)), b.mul(cos).add(a.mul(sin))}, -1);
  };
  compare(rotated, rotate(q, shape.heads));
  compare(keys.index_select(0, slot), rotate(k, shape.kv_heads));
  compare(values.index_select(0, slot),
          v.contiguous().view({rows, shape.kv_heads, shape.head_dim}));

  const at::Tensor largest = at::stack(errors).max().to(at::kCPU);
  const double error = *largest.const_data_ptr<double>();
  if (!(error <= (type == at::kFloat ? 1e-4 : 6e-2)))
    return base::text("fused operators in ", c10::toString(type), " differ from LibTorch's by ",
                      error);
  return {};
}

}  // namespace trireme::generate
