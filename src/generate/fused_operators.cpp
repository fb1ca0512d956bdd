#include "torch/torch.hpp"

#include "fused_operators.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/row_invariant.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/kernels/tensor_elements.hpp"

namespace trireme::generate {
namespace {

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

// Projections of a step's rows, and where they are in their sequences and in the cache.
struct ProjectedRows {
  const at::Tensor& q;                  // [M, H hd]
  const at::Tensor &k, &v;              // [M, K hd]
  const at::Tensor &positions, &slots;  // [M]
};

// Writes q rotated [M, H, hd], and k rotated and v into the cache.
void keep_rows(const kernels::DeviceKernels& own, const ProjectedRows& rows,
               const model::Rope& rope, const at::Tensor& rotated, const CacheLayer& cache) {
  with_type(rows.q, [&]<class T>(T*) {
    rows_of<T>(own).keep_rows(
        {elements<T>(rows.q), elements<T>(rows.k), elements<T>(rows.v), rows.q.stride(0),
         rows.k.stride(0), rows.v.stride(0), rows.positions.const_data_ptr<int64_t>(),
         rows.slots.const_data_ptr<int64_t>(), rope.cos.const_data_ptr<float>(),
         rope.sin.const_data_ptr<float>(), mutable_elements<T>(rotated),
         mutable_elements<T>(cache.keys), mutable_elements<T>(cache.values), rows.q.size(0),
         rotated.size(1), cache.keys.size(1), rotated.size(2)});
  });
}

}  // namespace

at::Tensor FusedOperators::run() {
  for (const model::Stage& stage : spec_.stages) {
    if (stage.kind == model::StageKind::head) {
      if (step_.logit_rows.numel() == 0) return {};
      for (at::Tensor* x : {&value(model::residual), &added_}) {
        if (x->defined()) *x = x->index_select(0, step_.logit_rows);
      }
    }
    run(stage);
    if (stage.kind == model::StageKind::head) continue;
    // No value outlives the operations that read it: outputs of a product of several weights are
    // their memory together.
    for (size_t i = 0; i < values_.size(); ++i) {
      if (i != model::residual.id) values_[i] = at::Tensor();
    }
  }
  const model::Stage& head = spec_.stages.back();
  complete(head.result());
  at::Tensor out = value(head.result());
  if (head.low) {
    complete(*head.low);
    out = at::cat({out, value(*head.low)}, 1);
  }
  return spec_.wide_head() ? out.to(at::kFloat) : out;
}

void FusedOperators::run(const model::Stage& stage) {
  stage_ = &stage;
  parameters_.clear();
  for (const size_t p : stage.parameters) parameters_.push_back(weights_.tensor(p));
  for (size_t i = 0; i < stage.operations.size();)
    i += std::visit([&](const auto& o) { return run(o, i); }, stage.operations[i]);
}

// Does what waits for the operation that reads the value.
void FusedOperators::complete(Value which) {
  if (which == model::residual && added_.defined())
    value(which) = value(which).add(std::exchange(added_, at::Tensor()));
  if (const auto rotation = std::exchange(rotations_[which.id], std::nullopt)) run_alone(*rotation);
}

size_t FusedOperators::run_alone(const model::Operation& operation) {
  for (const Value read : reads_of(operation)) complete(read);
  const model::StagePass pass{spec_, *stage_, parameters_, step_.rows, step_.ropes, step_.strategy};
  value(result_of(operation)) = execute(operation, pass, values_);
  return 1;
}

template <class Op>
size_t FusedOperators::run(const Op& o, size_t) {
  return run_alone(o);
}

size_t FusedOperators::run(const model::Norm& o, size_t) {
  if (o.kind != model::NormKind::rms || o.head_dim > 0 || o.in != model::residual ||
      !added_.defined())
    return run_alone(o);
  const at::Tensor &x = value(o.in), sum = at::empty_like(x), normed = at::empty_like(x);
  add_rms_norm(*kernels::device_kernels(), x, added_.contiguous(), weight(o.weight), o.eps, sum,
               normed);
  value(model::residual) = sum;
  value(o.out) = normed;
  added_ = at::Tensor();
  return 1;
}

size_t FusedOperators::run(const model::Linear& o, size_t place) {
  complete(o.in);
  const size_t count = model::joint_linears(*stage_, place);
  if (count > 1 && multiply_jointly(place, count)) return count;
  if (multiply_into_window(o, place)) return 1;
  const std::optional<at::Tensor> bias = o.bias ? std::optional(weight(*o.bias)) : std::nullopt;
  value(o.out) = kernels::linear(value(o.in), weight(o.weight), bias);
  return 1;
}

// False: no sum over ranks follows, or the window is not free.
bool FusedOperators::multiply_into_window(const model::Linear& o, size_t place) {
  const auto& all = stage_->operations;
  const auto* sum = place + 1 < all.size() ? std::get_if<model::Reduce>(&all[place + 1]) : nullptr;
  if (sum == nullptr || sum->value != o.out || o.bias || o.in == o.out) return false;
  const at::Tensor &x = value(o.in), matrix = weight(o.weight);
  value(o.out) = at::Tensor();  // an older sum
  const at::Tensor out = step_.window.take(x.size(0), matrix.size(0), x.options());
  if (!out.defined()) return false;
  kernels::multiply_rows(out, x, matrix, std::nullopt);
  value(o.out) = out;
  return true;
}

// False: their weights, or biases, are not stored one after another, or not all of them have a
// bias.
bool FusedOperators::multiply_jointly(size_t place, size_t count) {
  struct Part {
    size_t weight;
    std::optional<size_t> bias;
    Value out;
  };
  std::vector<Part> parts;
  const auto& first = std::get<model::Linear>(stage_->operations[place]);
  for (size_t i = place; i < place + count; ++i) {
    const auto& o = std::get<model::Linear>(stage_->operations[i]);
    if (o.bias.has_value() != first.bias.has_value()) return false;
    parts.push_back({spec_.index_of(*stage_, o.weight), std::nullopt, o.out});
    if (o.bias) parts.back().bias = spec_.index_of(*stage_, *o.bias);
  }
  std::ranges::sort(parts, {}, &Part::weight);
  const at::Tensor weight = weights_.joint_tensor(parts.front().weight, count);
  const at::Tensor bias =
      first.bias ? weights_.joint_tensor(*parts.front().bias, count) : at::Tensor();
  if (!weight.defined() || bias.defined() != first.bias.has_value()) return false;
  const at::Tensor all =
      kernels::linear(value(first.in), weight, bias.defined() ? std::optional(bias) : std::nullopt);
  int64_t row = 0;
  for (const Part& part : parts) {
    const int64_t width = weights_.block(part.weight).rows;
    value(part.out) = all.narrow(1, row, width);
    row += width;
  }
  return true;
}

size_t FusedOperators::run(const model::Rotate& o, size_t) {
  complete(o.value);
  rotations_[o.value.id] = o;
  return 1;
}

// Rotation, the cache and attention by kernels where both queries and keys are rotated.
size_t FusedOperators::run(const model::Attend& o, size_t) {
  auto &of_q = rotations_[o.q.id], &of_k = rotations_[o.k.id];
  // The kernel turns the halves of whole heads.
  const bool together = of_q && of_k && of_q->table == of_k->table && !of_q->interleaved &&
                        2 * step_.ropes[of_q->table].cos.size(1) == o.head_dim &&
                        !step_.ropes[of_q->table].of_tokens.defined();
  if (!together) {
    run_alone(o);
  } else {
    const at::Tensor &q = value(o.q), &k = value(o.k), &v = value(o.v);
    const at::Tensor rotated =
        at::empty({q.size(0), q.size(1) / o.head_dim, o.head_dim}, q.options());
    const at::Tensor cache = step_.cache.select(1, stage_->layer);
    keep_rows(*kernels::device_kernels(), {q, k, v, step_.rows.positions, step_.slots},
              step_.ropes[of_q->table], rotated, {cache.select(0, 0), cache.select(0, 1)});
    of_q = of_k = std::nullopt;
    const int64_t width = q.size(1);
    value(o.q) = value(o.k) = value(o.v) = at::Tensor();
    value(o.out) = step_.attend(rotated, o.scores, stage_->layer).reshape({rotated.size(0), width});
  }
  value(o.q) = value(o.k) = value(o.v) = at::Tensor();
  return 1;
}

size_t FusedOperators::run(const model::Gate& o, size_t) {
  if (o.kind != model::GateKind::silu) return run_alone(o);
  complete(o.in);
  complete(o.other);
  const at::Tensor &gate = value(o.in), &up = value(o.other);
  const at::Tensor out = at::empty({gate.size(0), gate.size(1)}, gate.options());
  const bool alike = gate.stride(0) == up.stride(0);
  swiglu(*kernels::device_kernels(), alike ? gate : gate.contiguous(), alike ? up : up.contiguous(),
         out);
  value(o.out) = out;
  value(o.other) = at::Tensor();
  return 1;
}

size_t FusedOperators::run(const model::Add& o, size_t) {
  if (o.in != model::residual || o.out != model::residual || added_.defined()) return run_alone(o);
  complete(o.other);
  added_ = std::exchange(value(o.other), at::Tensor());
  return 1;
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
  keep_rows(own, {q, k, v, positions, slot}, rope, rotated, {keys, values});
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
