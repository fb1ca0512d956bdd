#include "torch/torch.hpp"

#include "elementwise.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/kernels/tensor_elements.hpp"
#include "trireme/model/row_kernels.hpp"

namespace trireme::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Rows per task: a fixed number, so that sums over rows are cut alike for every number of threads.
constexpr int64_t chunk_rows = 64;

bool has_kernels(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
}

// By kernels of our own: the row kernels of the host, or those of the device.
bool fused(const at::Tensor& x, bool by_devices) {
  return has_kernels(x) &&
         (x.is_cpu() || (by_devices && x.is_cuda() && kernels::device_kernels() != nullptr));
}

using kernels::elements;
using kernels::mutable_elements;
using kernels::with_type;

template <class T>
const kernels::DeviceRows<T>& on_device() {
  return kernels::rows_of<T>(*kernels::device_kernels());
}

template <class Body>
void for_row_chunks(int64_t rows, Body&& body) {
  kernels::parallel_for(0, base::ceil_div(rows, chunk_rows), 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t row = chunk * chunk_rows;
      body(chunk, row, std::min(chunk_rows, rows - row));
    }
  });
}

struct RmsNorm : Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, double epsilon, int64_t its_kind) {
    const auto kind = static_cast<NormKind>(its_kind);
    const at::Tensor x = input.contiguous();
    const at::Tensor w = weight.contiguous();
    const int64_t columns = x.size(-1);
    const int64_t rows = x.numel() / columns;
    at::Tensor y = at::empty_like(x);
    at::Tensor inverse_rms = at::empty({rows}, x.options().dtype(at::kFloat));
    with_type(x, [&]<class T>(T*) {
      if (!x.is_cpu()) {
        return on_device<T>().rms_norm(elements<T>(x), elements<T>(w), mutable_elements<T>(y),
                                       inverse_rms.mutable_data_ptr<float>(), rows, columns,
                                       static_cast<float>(epsilon));
      }
      for_row_chunks(rows, [&](int64_t, int64_t row, int64_t n) {
        rms_norm_rows({elements<T>(x) + row * columns, elements<T>(w), n, columns, kind},
                      static_cast<float>(epsilon), mutable_elements<T>(y) + row * columns,
                      inverse_rms.mutable_data_ptr<float>() + row);
      });
    });
    context->save_for_backward({x, w, inverse_rms});
    context->saved_data["kind"] = its_kind;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &inverse_rms = saved[2];
    const auto kind = static_cast<NormKind>(context->saved_data["kind"].toInt());
    const at::Tensor dy = gradients[0].contiguous();
    const int64_t columns = x.size(-1);
    const int64_t rows = x.numel() / columns;
    at::Tensor dx = at::empty_like(x);
    // One partial weight gradient per chunk of rows, then added in order: the same sum for any
    // number of threads.
    at::Tensor partial =
        at::zeros({base::ceil_div(rows, chunk_rows), columns}, x.options().dtype(at::kFloat));
    with_type(x, [&]<class T>(T*) {
      if (!x.is_cpu()) {
        return on_device<T>().rms_norm_backward(
            elements<T>(x), elements<T>(w), elements<T>(dy), inverse_rms.const_data_ptr<float>(),
            mutable_elements<T>(dx), partial.mutable_data_ptr<float>(), rows, columns, chunk_rows);
      }
      for_row_chunks(rows, [&](int64_t chunk, int64_t row, int64_t n) {
        const int64_t at = row * columns;
        rms_norm_backward_rows({elements<T>(x) + at, elements<T>(w), n, columns, kind},
                               inverse_rms.const_data_ptr<float>() + row, elements<T>(dy) + at,
                               mutable_elements<T>(dx) + at,
                               partial.mutable_data_ptr<float>() + chunk * columns);
      });
    });
    return {
        dx, context->needs_input_grad(1) ? partial.sum(0) : at::Tensor(), at::Tensor(),
        at::Tensor()};  // fp32: a bf16 leaf takes it rounded, or as it is if its gradient is fp32
  }
};

struct SwiGlu : Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_input,
                            const at::Tensor& up_input, int64_t its_kind) {
    const auto kind = static_cast<GateKind>(its_kind);
    const at::Tensor gate = gate_input.contiguous();
    const at::Tensor up = up_input.contiguous();
    at::Tensor y = at::empty_like(gate);
    with_type(gate, [&]<class T>(T*) {
      if (!gate.is_cpu())
        return on_device<T>().swiglu(elements<T>(gate), elements<T>(up), mutable_elements<T>(y), 1,
                                     gate.numel(), gate.numel());
      kernels::parallel_for(0, gate.numel(), 1 << 14, [&](int64_t first, int64_t last) {
        model::swiglu({elements<T>(gate) + first, elements<T>(up) + first, last - first, kind},
                      mutable_elements<T>(y) + first);
      });
    });
    context->save_for_backward({gate, up});
    context->saved_data["kind"] = its_kind;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const auto kind = static_cast<GateKind>(context->saved_data["kind"].toInt());
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dgate = at::empty_like(gate);
    at::Tensor dup = at::empty_like(up);
    with_type(gate, [&]<class T>(T*) {
      if (!gate.is_cpu()) {
        return on_device<T>().swiglu_backward(elements<T>(gate), elements<T>(up), elements<T>(dy),
                                              mutable_elements<T>(dgate), mutable_elements<T>(dup),
                                              gate.numel());
      }
      kernels::parallel_for(0, gate.numel(), 1 << 14, [&](int64_t first, int64_t last) {
        swiglu_backward({elements<T>(gate) + first, elements<T>(up) + first, last - first, kind},
                        elements<T>(dy) + first, mutable_elements<T>(dgate) + first,
                        mutable_elements<T>(dup) + first);
      });
    });
    return {dgate, dup, at::Tensor()};
  }
};

float number(const at::Tensor& x) { return *x.to(at::kFloat).contiguous().const_data_ptr<float>(); }

struct XieluFunction : Function<XieluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& alpha_p, const at::Tensor& alpha_n,
                            const at::Tensor& beta, const at::Tensor& eps) {
    const at::Tensor x = input.contiguous();
    at::Tensor y = at::empty_like(x);
    const Xielu numbers =
        xielu_numbers(number(alpha_p), number(alpha_n), number(beta), number(eps));
    with_type(x, [&]<class T>(T*) {
      kernels::parallel_for(0, x.numel(), 1 << 14, [&](int64_t first, int64_t last) {
        model::xielu(elements<T>(x) + first, mutable_elements<T>(y) + first, last - first, numbers);
      });
    });
    context->save_for_backward({x, alpha_p, alpha_n, beta, eps});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &alpha_p = saved[1], &alpha_n = saved[2];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    const Xielu numbers =
        xielu_numbers(number(alpha_p), number(alpha_n), number(saved[3]), number(saved[4]));
    const int64_t columns = x.size(-1), rows = x.numel() / columns;
    // As of norm weights: the same sum for any number of threads.
    at::Tensor partial =
        at::zeros({base::ceil_div(rows, chunk_rows), 2}, x.options().dtype(at::kFloat));
    with_type(x, [&]<class T>(T*) {
      for_row_chunks(rows, [&](int64_t chunk, int64_t row, int64_t n) {
        const int64_t at = row * columns;
        xielu_backward(elements<T>(x) + at, elements<T>(dy) + at, mutable_elements<T>(dx) + at,
                       partial.mutable_data_ptr<float>() + chunk * 2, n * columns, numbers);
      });
    });
    const at::Tensor sums = partial.sum(0);
    const auto slope = [&](int64_t which, const at::Tensor& raw) {
      return sums.select(0, which).mul(at::sigmoid(raw.to(at::kFloat))).view(raw.sizes());
    };
    return {dx, slope(0, alpha_p), slope(1, alpha_n), at::Tensor(), at::Tensor()};
  }
};

at::Tensor rotate(const at::Tensor& input, const at::Tensor& positions, const at::Tensor& cos,
                  const at::Tensor& sin, float direction, bool interleaved) {
  const at::Tensor x = input.contiguous();
  const int64_t heads = x.size(1), head_dim = x.size(2);
  at::Tensor y = at::empty_like(x);
  const RotaryPairs pairs{2 * cos.size(1), interleaved};
  with_type(x, [&]<class T>(T*) {
    if (!x.is_cpu()) {
      return on_device<T>().rope(elements<T>(x), positions.const_data_ptr<int64_t>(),
                                 cos.const_data_ptr<float>(), sin.const_data_ptr<float>(),
                                 mutable_elements<T>(y), x.size(0), heads, head_dim, direction);
    }
    for_row_chunks(x.size(0), [&](int64_t, int64_t token, int64_t n) {
      const int64_t at = token * heads * head_dim;
      rope_rows(elements<T>(x) + at, mutable_elements<T>(y) + at, {n, heads, head_dim},
                {positions.const_data_ptr<int64_t>() + token, cos.const_data_ptr<float>(),
                 sin.const_data_ptr<float>(), pairs},
                direction);
    });
  });
  return y;
}

struct RotaryEmbedding : Function<RotaryEmbedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& positions, const at::Tensor& cos,
                            const at::Tensor& sin, bool interleaved) {
    context->save_for_backward({positions, cos, sin});
    context->saved_data["interleaved"] = interleaved;
    return rotate(x, positions, cos, sin, 1, interleaved);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const bool interleaved = context->saved_data["interleaved"].toBool();
    return {rotate(gradients[0], saved[0], saved[1], saved[2], -1, interleaved), at::Tensor(),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Adds the rows of dy that belong to one token id in fp32, in token order. `order` lists the
// positions by id.
void sum_embedding_rows(const at::Tensor& dy, const std::vector<int64_t>& order, const int64_t* ids,
                        at::Tensor& dweight) {
  const int64_t columns = dy.size(1);
  const at::Tensor sum = at::empty({columns}, dy.options().dtype(at::kFloat));
  for (size_t i = 0; i < order.size();) {
    const int64_t id = ids[order[i]];
    sum.zero_();
    for (; i < order.size() && ids[order[i]] == id; ++i) sum.add_(dy.select(0, order[i]));
    dweight.select(0, id).copy_(sum);
  }
}

struct EmbeddingRows : Function<EmbeddingRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& ids) {
    context->save_for_backward({ids});
    context->saved_data["rows"] = weight.size(0);
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor ids = context->get_saved_variables()[0].contiguous();
    const at::Tensor& dy = gradients[0];
    const int64_t* id = ids.const_data_ptr<int64_t>();
    std::vector<int64_t> order(static_cast<size_t>(ids.numel()));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::stable_sort(order.begin(), order.end(),
                     [id](int64_t a, int64_t b) { return id[a] < id[b]; });
    at::Tensor dweight = at::zeros({context->saved_data["rows"].toInt(), dy.size(1)}, dy.options());
    sum_embedding_rows(dy, order, id, dweight);
    return {dweight, at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm_composed(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                             NormKind kind) {
  at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  if (kind == NormKind::centred) wide = wide.sub(at::mean(wide, -1, true));
  const at::Tensor normed = wide.mul(at::rsqrt(at::mean(at::square(wide), -1, true).add(epsilon)));
  if (kind == NormKind::rms) return normed.to(x.scalar_type()).mul(weight);
  const at::Tensor its_weight = weight.to(wide.scalar_type());
  return normed.mul(kind == NormKind::rms_offset ? its_weight.add(1) : its_weight)
      .to(x.scalar_type());
}

at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up, GateKind kind) {
  if (kind == GateKind::gelu_tanh) {
    const auto wide = [](const at::Tensor& x) {
      return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
    };
    return at::gelu(wide(gate), "tanh").mul(wide(up)).to(gate.scalar_type());
  }
  if (gate.scalar_type() == at::kFloat || gate.scalar_type() == at::kDouble)
    return at::silu(gate).mul(up);
  return at::silu(gate.to(at::kFloat)).mul(up.to(at::kFloat)).to(gate.scalar_type());
}

at::Tensor xielu_composed(const at::Tensor& x, const at::Tensor& alpha_p, const at::Tensor& alpha_n,
                          const at::Tensor& beta, const at::Tensor& eps) {
  const auto wide = [](const at::Tensor& y) {
    return y.scalar_type() == at::kDouble ? y : y.to(at::kFloat);
  };
  const at::Tensor v = wide(x), straight = v.mul(wide(beta));
  const at::Tensor above = v.mul(v).mul(at::softplus(wide(alpha_p))),
                   below = at::expm1(at::minimum(v, wide(eps)))
                               .sub(v)
                               .mul(at::softplus(wide(alpha_n)).add(wide(beta)));
  return at::where(v.gt(0), above, below).add(straight).to(x.scalar_type());
}

at::Tensor apply_rope_composed(const at::Tensor& x, const at::Tensor& positions, const Rope& rope,
                               bool interleaved) {
  const int64_t half = rope.cos.size(1);
  const at::Tensor cos = at::index_select(rope.cos, 0, positions).unsqueeze(1);
  const at::Tensor sin = at::index_select(rope.sin, 0, positions).unsqueeze(1);
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const int64_t dims = 2 * half, rest = x.size(-1) - dims;
  const at::Tensor turned = wide.narrow(-1, 0, dims);
  const at::Tensor a = interleaved ? turned.slice(-1, 0, dims, 2) : turned.narrow(-1, 0, half),
                   b = interleaved ? turned.slice(-1, 1, dims, 2) : turned.narrow(-1, half, half);
  const at::Tensor low = a.mul(cos).sub(b.mul(sin)), high = b.mul(cos).add(a.mul(sin));
  const at::Tensor out =
      interleaved ? at::stack({low, high}, -1).flatten(-2) : at::cat({low, high}, -1);
  return (rest > 0 ? at::cat({out, wide.narrow(-1, dims, rest)}, -1) : out).to(x.scalar_type());
}

// Kernels of a device have the first kind of each operation only: `first`.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, NormKind kind) {
  if (fused(x, kind == NormKind::rms) && weight.scalar_type() == x.scalar_type())
    return RmsNorm::apply(x, weight, epsilon, static_cast<int64_t>(kind));
  return rms_norm_composed(x, weight, epsilon, kind);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, GateKind kind) {
  return fused(gate, kind == GateKind::silu) ? SwiGlu::apply(gate, up, static_cast<int64_t>(kind))
                                             : swiglu_composed(gate, up, kind);
}

at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& positions, const Rope& rope,
                      bool interleaved) {
  const at::Tensor& rows = rope.of_tokens.defined() ? rope.of_tokens : positions;
  const bool halves = !interleaved && 2 * rope.cos.size(1) == x.size(-1);
  if (!fused(x, halves)) return apply_rope_composed(x, rows, rope, interleaved);
  return RotaryEmbedding::apply(x, rows.contiguous(), rope.cos.contiguous(), rope.sin.contiguous(),
                                interleaved);
}

Xielu xielu_numbers(float alpha_p, float alpha_n, float beta, float eps) {
  const auto softplus = [](float x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  return {softplus(alpha_p), softplus(alpha_n) + beta, beta, eps};
}

at::Tensor xielu(const at::Tensor& x, const at::Tensor& alpha_p, const at::Tensor& alpha_n,
                 const at::Tensor& beta, const at::Tensor& eps) {
  return fused(x, false) ? XieluFunction::apply(x, alpha_p, alpha_n, beta, eps)
                         : xielu_composed(x, alpha_p, alpha_n, beta, eps);
}

at::Tensor embedding_rows(const at::Tensor& weight, const at::Tensor& ids) {
  return weight.is_cpu() && has_kernels(weight) ? EmbeddingRows::apply(weight, ids)
                                                : at::embedding(weight, ids);
}

}  // namespace trireme::model
