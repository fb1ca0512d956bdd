// Legend: T packed tokens, D hidden, H heads, K KV heads, hd head size, F ffn, V vocabulary.
//
// Where bf16 rounds, with weights and activations in bf16: after every linear, after the normalised
// value and again after its product with the norm's weight (as Hugging Face does), once after the
// rotary embedding (Hugging Face rounds cos, sin and both products too), once after SwiGLU (Hugging
// Face rounds silu too), once after attention, and after each residual sum; the head rounds each
// logit once (kernels/token_log_probs.hpp). Norm, rotary embedding, SwiGLU, softmax and everything
// behind the logits are fp32 inside, and all products add in fp32.
#include "torch/torch.hpp"

#include "trireme/model/forward.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "elementwise.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/decode_rows.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/kernels/to_device.hpp"
#include "trireme/model/row_kernels.hpp"

namespace trireme::model {
namespace {

double factor_of(const Scale& o, bool bf16) {
  if (!o.rounded) return o.factor;
  const auto factor = static_cast<float>(o.factor);
  return static_cast<double>(bf16 ? static_cast<float>(c10::BFloat16(factor)) : factor);
}

float scale_at(const ScaleByPosition& o, int64_t position) {
  const auto steps = static_cast<float>(position / o.period);
  return 1 + static_cast<float>(o.beta) * std::log(1 + steps);
}

constexpr uint32_t dropout_stream = 0x6c6f7261;  // keeps it apart from the other draws

// Elements of x to 0, and the others divided by what is left. `place`: of the operation in the
// model.
at::Tensor drop(const at::Tensor& x, double share, const DropoutDraws& draws, uint32_t place) {
  constexpr int64_t together = 4, grain = int64_t{1} << 12;  // numbers of a draw, draws of a task
  const int64_t elements = x.numel();
  at::Tensor dropped = at::empty(x.sizes(), at::TensorOptions().dtype(at::kBool));
  bool* const to = dropped.mutable_data_ptr<bool>();
  const base::PhiloxKey key{static_cast<uint32_t>(draws.seed ^ (draws.seed >> 32)),
                            static_cast<uint32_t>(draws.step)};
  const auto batch =
      (static_cast<uint32_t>(draws.micro_batch) << 16) ^ static_cast<uint32_t>(draws.rank);
  kernels::parallel_for(0, base::ceil_div(elements, together), grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const auto bits = base::philox({static_cast<uint32_t>(i), place, batch, dropout_stream}, key);
      for (int64_t j = 0; j < std::min(together, elements - i * together); ++j)
        to[i * together + j] = base::unit_float(bits[static_cast<size_t>(j)]) < share;
    }
  });
  return at::masked_fill(x, kernels::to_device(dropped, x.device()), 0).mul(1 / (1 - share));
}

// As tensors: each operation's result from the values.
struct Execution {
  const StagePass& pass;
  const Values& values;

  const at::Tensor& operator[](Value value) const { return values[value.id]; }
  at::Tensor heads(Value value, int64_t head_dim) const {
    const at::Tensor& x = values[value.id];
    return x.view({x.size(0), x.size(1) / head_dim, head_dim});
  }

  // The weight's rows, or columns, by number.
  at::Tensor looked_up(const LookUp& o, const at::Tensor& ids) const {
    const at::Tensor& weight = pass.parameter(o.weight);
    return o.columns ? weight.index_select(1, ids).t().contiguous() : embedding_rows(weight, ids);
  }
  at::Tensor operator()(const LookUp& o) const {
    const at::Tensor& ids = pass.part.ids;
    const int64_t vocabulary = pass.spec.shape.vocab;
    const auto [first, rows] = pass.strategy.vocabulary_rows(vocabulary);
    EXPECT(pass.parameter(o.weight).size(o.columns ? 1 : 0) == rows);
    if (rows == vocabulary) return looked_up(o, ids);
    // Another rank has the other rows: zeros here, so that the sum over the ranks is the whole
    // look-up.
    const at::Tensor outside =
        at::logical_not(at::logical_and(ids.ge(first), ids.lt(first + rows)));
    const at::Tensor local = at::masked_fill(ids.sub(first), outside, 0);
    return at::masked_fill(looked_up(o, local), outside.unsqueeze(1), 0);
  }
  at::Tensor operator()(const Norm& o) const {
    const at::Tensor& weight = pass.parameter(o.weight);
    if (o.head_dim == 0) return rms_norm((*this)[o.in], weight, o.eps, o.kind);
    // Of heads, which tensor-parallel ranks share: each has the whole weight and a part of its
    // gradient.
    return rms_norm(heads(o.in, o.head_dim), pass.strategy.spread(weight), o.eps, o.kind)
        .view((*this)[o.in].sizes());
  }
  at::Tensor operator()(const Spread& o) const { return pass.strategy.spread((*this)[o.value]); }
  at::Tensor operator()(const Linear& o) const {
    const std::optional<at::Tensor> bias =
        o.bias ? std::optional(pass.parameter(*o.bias)) : std::nullopt;
    const size_t which = pass.spec.index_of(pass.stage, o.weight);
    return pass.strategy.linear((*this)[o.in], pass.parameter(o.weight), bias,
                                pass.spec.parameters[which]);
  }
  at::Tensor operator()(const Rotate& o) const {
    return apply_rope(heads(o.value, o.head_dim), pass.part.positions, pass.ropes[o.table],
                      o.interleaved)
        .view((*this)[o.value].sizes());
  }
  at::Tensor operator()(const Attend& o) const {
    const at::Tensor out =
        pass.strategy.attend(heads(o.q, o.head_dim), heads(o.k, o.head_dim), heads(o.v, o.head_dim),
                             o.scores, pass.part, pass.stage.layer);
    return out.reshape({out.size(0), out.size(1) * out.size(2)});
  }
  at::Tensor operator()(const Gate& o) const {
    return swiglu((*this)[o.in], (*this)[o.other], o.kind);
  }
  // Of columns, which tensor-parallel ranks share.
  at::Tensor operator()(const Activate& o) const {
    const auto number = [&](size_t i) {
      return pass.strategy.spread(pass.parameter(o.weights[i]));
    };
    return xielu((*this)[o.in], number(0), number(1), number(2), number(3));
  }
  at::Tensor operator()(const Reduce& o) const { return pass.strategy.reduce((*this)[o.value]); }
  at::Tensor operator()(const Add& o) const { return (*this)[o.in].add((*this)[o.other]); }
  at::Tensor operator()(const AddBias& o) const {
    return (*this)[o.value].add(pass.parameter(o.weight));
  }
  at::Tensor operator()(const Scale& o) const {
    const at::Tensor& x = (*this)[o.value];
    return x.mul(factor_of(o, x.scalar_type() == at::kBFloat16));
  }
  at::Tensor operator()(const ScaleByPosition& o) const {
    const at::Tensor& x = (*this)[o.value];
    const at::Tensor positions = pass.part.positions.to(at::kCPU).contiguous();
    const int64_t* position = positions.const_data_ptr<int64_t>();
    const at::Tensor factors = at::empty({positions.numel()}, at::kFloat);
    float* const factor = factors.mutable_data_ptr<float>();
    for (int64_t i = 0; i < positions.numel(); ++i) factor[i] = scale_at(o, position[i]);
    return x.mul(factors.to(x.device()).to(x.scalar_type()).unsqueeze(1));
  }
  at::Tensor operator()(const Select& o) const {
    const auto& ends = pass.part.cu_seqlens;
    EXPECT(pass.part.adapters.size() + 1 <= ends.size());
    const at::Tensor others = at::ones({ends.back(), 1}, at::TensorOptions().dtype(at::kBool));
    for (size_t i = 0; i < pass.part.adapters.size(); ++i) {
      if (pass.part.adapters[i] == o.adapter)
        others.narrow(0, ends[i], ends[i + 1] - ends[i]).fill_(false);
    }
    const at::Tensor& x = (*this)[o.value];
    return at::masked_fill(x, kernels::to_device(others, x.device()), 0);
  }
  at::Tensor operator()(const Drop& o) const {
    const at::Tensor& x = (*this)[o.in];
    if (pass.dropout == nullptr) return x;
    const uint32_t place = (static_cast<uint32_t>(pass.stage.layer + 1) << 8) | o.out.id;
    return drop(x, o.share, *pass.dropout, place);
  }
};

// On elements of a row of a step.
template <class T>
struct RowExecution {
  using Element = std::conditional_t<std::is_same_v<T, float>, float, c10::BFloat16>;
  const RowSlice& s;
  const T* in = reinterpret_cast<const T*>(s.in);
  T* out = reinterpret_cast<T*>(s.out);

  void operator()(const Norm& o) const {
    const int64_t length = o.head_dim > 0 ? o.head_dim : s.elements;
    rms_norm_rows({in, reinterpret_cast<const T*>(s.weight), s.elements / length, length, o.kind},
                  static_cast<float>(o.eps), out, nullptr);
  }
  void operator()(const Rotate& o) const {
    const Rope& rope = (*s.ropes)[o.table];
    const int64_t row = rope.of_tokens.defined() ? s.row : s.position;
    rope_rows(in, out, {1, s.elements / o.head_dim, o.head_dim},
              {&row,
               rope.cos.const_data_ptr<float>(),
               rope.sin.const_data_ptr<float>(),
               {2 * rope.cos.size(1), o.interleaved}},
              1.f);
  }
  void operator()(const Gate& o) const {
    swiglu({in, reinterpret_cast<const T*>(s.other), s.elements, o.kind}, out);
  }
  void operator()(const Activate&) const {
    const auto number = [&](size_t i) {
      return static_cast<float>(*reinterpret_cast<const Element*>(s.numbers[i]));
    };
    xielu(in, out, s.elements, xielu_numbers(number(0), number(1), number(2), number(3)));
  }
  void operator()(const Add&) const { add(s.other); }
  void operator()(const AddBias&) const { add(s.weight); }
  void operator()(const Scale& o) const {
    scale(static_cast<float>(factor_of(o, !std::is_same_v<T, float>)));
  }
  void operator()(const ScaleByPosition& o) const {
    scale(static_cast<float>(static_cast<Element>(scale_at(o, s.position))));
  }
  void operator()(const Select& o) const {
    if (s.adapter != o.adapter) return void(std::fill_n(out, s.elements, T{}));
    if (out != in) std::memcpy(out, in, static_cast<size_t>(s.elements) * sizeof(T));
  }
  void scale(float factor) const {
    const auto* from = reinterpret_cast<const Element*>(in);
    auto* to = reinterpret_cast<Element*>(out);
    for (int64_t i = 0; i < s.elements; ++i)
      to[i] = static_cast<Element>(static_cast<float>(from[i]) * factor);
  }
  void add(const std::byte* what) const {
    if (out != in) std::memcpy(out, in, static_cast<size_t>(s.elements) * sizeof(T));
    kernels::add_row(s.type, out, what, s.elements);
  }
  template <class Op>
  void operator()(const Op&) const {
    throw InternalError("an operation that is not done row by row");
  }
};

}  // namespace

const at::Tensor& StagePass::parameter(Role role) const {
  return parameters[spec.position_of(stage, role)];
}

at::Tensor execute(const Operation& operation, const StagePass& pass, const Values& values) {
  return std::visit(Execution{pass, values}, operation);
}

void execute_row(const Operation& operation, const RowSlice& slice) {
  if (slice.type == base::ElementType::f32) {
    std::visit(RowExecution<float>{slice}, operation);
  } else {
    std::visit(RowExecution<uint16_t>{slice}, operation);
  }
}

at::Tensor run_stage(const StagePass& pass, const at::Tensor& x, AdapterUse adapter) {
  const Stage& stage = pass.stage;
  EXPECT(pass.parameters.size() == stage.parameters.size() && !stage.operations.empty());
  const bool applied = adapter == AdapterUse::applied;
  Values values(pass.spec.values);
  values[residual.id] = x;
  for (const Operation& operation : applied ? stage.operations : stage.base_operations()) {
    values[result_of(operation).id] = execute(operation, pass, values);
    if (const auto* sum = std::get_if<Add>(&operation); sum && sum->last)
      values[sum->other.id].reset();
  }
  at::Tensor out = values[stage.result().id];
  if (applied && stage.low) out = at::cat({out, values[stage.low->id]}, 1);
  return stage.kind == StageKind::head && pass.spec.wide_head() ? out.to(at::kFloat) : out;
}

}  // namespace trireme::model
