#include "torch/torch.hpp"

#include "trireme/kernels/token_log_probs.hpp"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/head_chunks.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/log_sum_exp.hpp"
#include "trireme/kernels/own_gradient.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/trace/region.hpp"

// Legend: N rows, D hidden, V vocabulary, C rows of one vocabulary chunk.
namespace trireme::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

float as_float(float x) { return x; }
float as_float(uint16_t bits) {
  return static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()));
}
float rounded(float x, float) { return x; }
uint16_t rounded(float x, uint16_t) { return c10::BFloat16(x).x; }

HeadChunk chunk_of(const Tensor& logits, int64_t first, const Tensor& targets, double scale) {
  HeadChunk chunk;
  chunk.logits = logits.mutable_data_ptr();
  chunk.bf16 = logits.scalar_type() == at::kBFloat16;
  chunk.rows = logits.size(0);
  chunk.columns = logits.size(1);
  chunk.first = first;
  chunk.targets = targets.const_data_ptr<int64_t>();
  chunk.scale = static_cast<float>(scale);
  return chunk;
}

// One chunk of the forward pass on the CPU.
template <class T>
void scan_chunk(const HeadChunk& chunk, bool with_entropy, std::vector<LogSumExp>& rows,
                float* target_logits) {
  const int64_t columns = chunk.columns, first = chunk.first;
  const float scale = chunk.scale;
  const T* z = static_cast<const T*>(chunk.logits);
  parallel_for(0, chunk.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      LogSumExp& row = rows[static_cast<size_t>(i)];
      const T* row_logits = z + i * columns;
      with_entropy ? update_with_entropy(row, row_logits, columns, scale)
                   : update(row, row_logits, columns, scale);
      const int64_t target = chunk.targets[i] - first;
      if (target >= 0 && target < columns) target_logits[i] = as_float(row_logits[target]) * scale;
    }
  });
}

// `kept`: gets the logits of the first chunks, as many as fit.
RowStatistics forward_cpu(const HeadRows& of, bool with_entropy, std::vector<Tensor>& kept) {
  const int64_t n = of.hidden.size(0);
  const auto f32 = of.hidden.options().dtype(at::kFloat);
  RowStatistics out{at::zeros({n}, f32), at::empty({n}, f32),
                    with_entropy ? at::empty({n}, f32) : Tensor{}};
  std::vector<LogSumExp> rows(static_cast<size_t>(n));
  float* log_probs = out.log_probs.mutable_data_ptr<float>();
  ChunkBuffer buffer(of);
  for_each_chunk(of, [&](int64_t first, int64_t count) {
    const HeadWeight of_chunk = rows_of_head(of.head, first, count);
    Tensor logits = buffer.kept_logits(of_chunk, of.chunks.kept_bytes);
    if (logits.defined()) {
      kept.push_back(logits);
    } else {
      logits = buffer.logits(of_chunk);
    }
    const HeadChunk chunk = chunk_of(logits, first, of.targets, of.scale);
    (chunk.bf16 ? scan_chunk<uint16_t> : scan_chunk<float>)(chunk, with_entropy, rows, log_probs);
  });
  for (int64_t i = 0; i < n; ++i) {
    const LogSumExp& row = rows[static_cast<size_t>(i)];
    const float lse = row.log_sum_exp();
    out.log_sum_exp.mutable_data_ptr<float>()[i] = lse;
    log_probs[i] -= lse;
    if (with_entropy) out.entropy.mutable_data_ptr<float>()[i] = row.entropy();
  }
  return out;
}

// Turns a chunk of logits into the gradient with respect to them, in place.
template <class T>
void gradient_chunk(const HeadChunk& chunk, const RowStatistics& rows, const RowGradients& grads) {
  const int64_t columns = chunk.columns, first = chunk.first;
  const float scale = chunk.scale;
  T* z = static_cast<T*>(chunk.logits);
  const float* lse = rows.log_sum_exp.const_data_ptr<float>();
  const float* grad = grads.log_probs.const_data_ptr<float>();
  const float* entropy = grads.entropy.defined() ? rows.entropy.const_data_ptr<float>() : nullptr;
  const float* grad_entropy =
      grads.entropy.defined() ? grads.entropy.const_data_ptr<float>() : nullptr;
  parallel_for(0, chunk.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = z + i * columns;
      SoftmaxGradient g{scale, lse[i], 0, grad[i], 0};
      if (entropy != nullptr) {
        g.entropy = entropy[i];
        g.grad_entropy = grad_entropy[i];
      }
      const int64_t target = chunk.targets[i] - first;
      const bool here = target >= 0 && target < columns;
      // The target's own gradient nearly cancels where its probability is near 1: in fp32, rounded
      // once.
      float own = here ? as_float(row[target]) : 0;
      softmax_gradient(g, row, columns);
      if (!here) continue;
      softmax_gradient(g, &own, 1);
      row[target] = rounded(own + scale * grad[i], T{});
    }
  });
}

// By the program's own kernels for devices.
RowStatistics forward_by_kernels(const HeadKernels& kernels, const HeadRows& of,
                                 bool with_entropy) {
  const int64_t n = of.hidden.size(0);
  const auto f32 = of.hidden.options().dtype(at::kFloat);
  RowStatistics out{at::empty({n}, f32), at::empty({n}, f32),
                    with_entropy ? at::empty({n}, f32) : Tensor{}};
  static_assert(sizeof(HeadRow) % sizeof(double) == 0);
  const Tensor seen =
      at::empty({n, sizeof(HeadRow) / sizeof(double)}, of.hidden.options().dtype(at::kDouble));
  ChunkBuffer buffer(of);
  for_each_chunk(of, [&](int64_t first, int64_t count) {
    HeadScan scan;
    scan.chunk =
        chunk_of(buffer.logits(rows_of_head(of.head, first, count)), first, of.targets, of.scale);
    scan.seen = static_cast<HeadRow*>(seen.mutable_data_ptr());
    scan.with_entropy = with_entropy;
    scan.last = first + count == of.head.weight.size(0);
    scan.log_probs = out.log_probs.mutable_data_ptr<float>();
    scan.log_sum_exp = out.log_sum_exp.mutable_data_ptr<float>();
    if (with_entropy) scan.entropy = out.entropy.mutable_data_ptr<float>();
    kernels.scan(scan);
  });
  return out;
}

// Turns a chunk of logits into the gradient with respect to them, in place.
void gradient_by_kernels(const HeadKernels& head, const HeadChunk& chunk, const RowStatistics& rows,
                         const RowGradients& grads) {
  HeadGradient gradient;
  gradient.chunk = chunk;
  gradient.log_sum_exp = rows.log_sum_exp.const_data_ptr<float>();
  gradient.grad_log_probs = grads.log_probs.const_data_ptr<float>();
  if (grads.entropy.defined()) {
    gradient.entropy = rows.entropy.const_data_ptr<float>();
    gradient.grad_entropy = grads.entropy.const_data_ptr<float>();
  }
  head.gradient(gradient);
}

// Who computes: the host's kernels, the device's, or LibTorch's operators on a device.
void gradient_of_chunk(const Tensor& logits, int64_t first, const HeadRows& of,
                       const RowStatistics& rows, const RowGradients& grads) {
  const bool host = on_host(logits.device());
  const DeviceKernels* device = host ? nullptr : device_kernels();
  if (!host && device == nullptr)
    return gradient_device(logits, first, of.targets, of.scale, rows, grads);
  const HeadChunk chunk = chunk_of(logits, first, of.targets, of.scale);
  if (!host) return gradient_by_kernels(device->head, chunk, rows, grads);
  (chunk.bf16 ? gradient_chunk<uint16_t> : gradient_chunk<float>)(chunk, rows, grads);
}

struct HeadGradients {
  Tensor hidden;  // [N, D], or [N, D + r], type of hidden; undefined when not needed
  Tensor weight;  // [V, D], type of weight; undefined when not needed, or added to the weight's own
                  // gradient
  Tensor low;     // [V, r], likewise
};

// The gradient of one of the head's weights, by rows: in the weight's own, or in a tensor of its
// own.
class WeightGradient {
 public:
  WeightGradient(const Tensor& weight, bool wanted) : wanted_(wanted) {
    if (!wanted) return;
    own_ = own_gradient(weight);
    if (!own_.slot.defined()) fresh_ = at::empty(weight.sizes(), weight.options());
  }
  void add(const Tensor& dz, const Tensor& hidden, int64_t first) const {
    if (!wanted_) return;
    const bool own = own_.slot.defined();
    multiply((own ? own_.slot : fresh_).narrow(0, first, dz.size(1)), dz.t(), hidden,
             own ? own_.sum : Sum::overwrite);
  }
  const Tensor& fresh() const { return fresh_; }

 private:
  bool wanted_;
  OwnGradient own_;
  Tensor fresh_;
};

// The inputs that need a gradient.
struct Wanted {
  bool hidden, weight, low;
};

HeadGradients backward_chunks(const HeadRows& of, const RowStatistics& rows,
                              const RowGradients& grads, Wanted wanted, std::vector<Tensor> kept) {
  const Tensor& hidden = of.hidden;
  const HeadWeight& head = of.head;
  const double cap = head.cap;
  const Tensor of_weight = hidden_of_weight(hidden, head),
               of_adapter = hidden_of_adapter(hidden, head);
  const Tensor hidden_sum =
      wanted.hidden ? at::zeros(hidden.sizes(), hidden.options().dtype(at::kFloat)) : Tensor{};
  const WeightGradient weight(head.weight, wanted.weight), low(head.low, wanted.low);
  ChunkBuffer buffer(of);
  for_each_chunk(of, [&](int64_t first, int64_t count) {
    const HeadWeight of_chunk = rows_of_head(head, first, count);
    const auto chunk = static_cast<size_t>(first / of.chunks.rows);
    const bool again = chunk >= kept.size();
    if (again) {
      trace::count("logits_computed_again", hidden.size(0) * count);
    } else {
      buffer.take(of_chunk);
    }
    const Tensor dz = again ? buffer.logits(of_chunk) : std::exchange(kept[chunk], {});
    // Of a cap, by the capped logits, whose place the gradient takes.
    const Tensor slope = cap > 0 ? at::rsub(at::square(dz.to(at::kFloat).div(cap)), 1) : Tensor{};
    gradient_of_chunk(dz, first, of, rows, grads);
    if (slope.defined()) dz.mul_(slope);
    weight.add(dz, of_weight, first);
    low.add(dz, of_adapter, first);
    if (!wanted.hidden) return;
    multiply(hidden_of_weight(hidden_sum, head), dz, buffer.weight_rows(), Sum::add);
    if (of_adapter.defined())
      multiply(hidden_of_adapter(hidden_sum, head), dz, buffer.low_rows(), Sum::add);
  });
  return {wanted.hidden ? hidden_sum.to(hidden.scalar_type()) : Tensor{}, weight.fresh(),
          low.fresh()};
}

RowStatistics forward_chunks(const HeadRows& rows, bool with_entropy, std::vector<Tensor>& kept) {
  trace::Region region{"log_probs", trace::no_argument, trace::Category::kernel};
  if (on_host(rows.hidden.device())) return forward_cpu(rows, with_entropy, kept);
  const DeviceKernels* device = device_kernels();
  return device ? forward_by_kernels(device->head, rows, with_entropy)
                : forward_device(rows, with_entropy);
}

// HeadRows without the tensors of the graph.
struct HeadForm {
  Tensor targets;
  double scale, cap;
  HeadChunks chunks;
};

// Returns {log_probs} or {log_probs, entropy}.
struct TokenLogProbsFunction : torch::autograd::Function<TokenLogProbsFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                               const std::optional<Tensor>& of_adapter, const HeadForm& form,
                               Entropy entropy) {
    const bool with_entropy = entropy != Entropy::skip;
    const bool entropy_gradient = entropy == Entropy::differentiable;
    std::vector<Tensor> kept;
    const Tensor low = of_adapter.value_or(Tensor{});
    const RowStatistics rows =
        forward_chunks({hidden, {weight, low, form.cap}, form.targets, form.scale, form.chunks},
                       with_entropy, kept);
    context->saved_data["kept"] = std::move(kept);
    context->saved_data["scale"] = form.scale;
    context->saved_data["chunk_rows"] = form.chunks.rows;
    context->saved_data["cap"] = form.cap;
    context->saved_data["entropy_gradient"] = entropy_gradient;
    variable_list outputs{rows.log_probs};
    variable_list saved{hidden, weight, low, form.targets, rows.log_sum_exp};
    if (with_entropy) outputs.push_back(rows.entropy);
    if (entropy_gradient) saved.push_back(rows.entropy);
    if (with_entropy && !entropy_gradient) context->mark_non_differentiable({rows.entropy});
    context->save_for_backward(std::move(saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    trace::Region region{"log_probs backward", trace::no_argument, trace::Category::kernel};
    const variable_list saved = context->get_saved_variables();
    const bool with_entropy =
        context->saved_data["entropy_gradient"].toBool() && grads[1].defined();
    RowStatistics rows{{}, saved[4], with_entropy ? saved[5] : Tensor{}};
    RowGradients flow{grads[0].defined() ? grads[0].contiguous() : at::zeros_like(saved[4]),
                      with_entropy ? grads[1].contiguous() : Tensor{}};
    // Gradients take the place of the kept logits: another pass over the same graph has none.
    std::vector<Tensor> kept = context->saved_data["kept"].toTensorVector();
    context->saved_data["kept"] = std::vector<Tensor>{};
    const bool with_low = saved[2].defined();
    const HeadRows of{saved[0],
                      {saved[1], saved[2], context->saved_data["cap"].toDouble()},
                      saved[3],
                      context->saved_data["scale"].toDouble(),
                      {context->saved_data["chunk_rows"].toInt()}};
    const HeadGradients out =
        backward_chunks(of, rows, flow,
                        {context->needs_input_grad(0), context->needs_input_grad(1),
                         with_low && context->needs_input_grad(2)},
                        std::move(kept));
    return {out.hidden, out.weight, out.low, {}, {}};
  }
};

void check(const Tensor& hidden, const HeadWeight& head, const Tensor& targets, double temperature,
           int64_t chunk_rows) {
  const Tensor &weight = head.weight, &low = head.low;
  const int64_t more = low.defined() ? low.size(1) : 0;
  VALIDATE(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) + more &&
               weight.size(0) > 0 && (more == 0 || low.size(0) == weight.size(0)),
           ExitCode::internal, "token_log_probs: hidden and weight have shapes that do not fit");
  const auto known = [](const Tensor& t) {
    return t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16;
  };
  VALIDATE(known(hidden) && known(weight) &&
               (hidden.scalar_type() == weight.scalar_type() || hidden.scalar_type() == at::kFloat),
           ExitCode::internal,
           "token_log_probs: hidden and weight must be float or bfloat16, and a bfloat16 hidden "
           "has a bfloat16 weight");
  VALIDATE(
      targets.dim() == 1 && targets.size(0) == hidden.size(0) && targets.scalar_type() == at::kLong,
      ExitCode::internal, "token_log_probs: targets must be int64 [N]");
  VALIDATE(temperature > 0 && chunk_rows > 0, ExitCode::internal,
           "token_log_probs: temperature and chunk must be positive");
  if (!targets.is_cpu()) return;
  for (int64_t i = 0; i < targets.size(0); ++i) {
    const int64_t target = targets.const_data_ptr<int64_t>()[i];
    VALIDATE(target >= 0 && target < weight.size(0), ExitCode::bad_data, "token id ", target,
             " at row ", i, " is outside the vocabulary of ", weight.size(0),
             " tokens: the tokenizer does not belong to this model");
  }
}

}  // namespace

TokenLogProbs token_log_probs(const Tensor& hidden, const HeadWeight& head, const Tensor& targets,
                              double temperature, Entropy entropy, const HeadChunks& chunks) {
  const Tensor dense_targets = targets.contiguous();
  check(hidden, head, dense_targets, temperature, chunks.rows);
  const auto low = head.low.defined() ? std::optional(head.low.contiguous()) : std::nullopt;
  const bool differentiated =
      at::GradMode::is_enabled() &&
      (hidden.requires_grad() || head.weight.requires_grad() || (low && low->requires_grad()));
  const variable_list out =
      TokenLogProbsFunction::apply(hidden.contiguous(), head.weight.contiguous(), low,
                                   HeadForm{dense_targets,
                                            1.0 / temperature,
                                            head.cap,
                                            {chunks.rows, differentiated ? chunks.kept_bytes : 0}},
                                   entropy);
  return {out[0], entropy != Entropy::skip ? out[1] : Tensor{}};
}

}  // namespace trireme::kernels
