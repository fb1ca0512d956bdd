#include "torch/torch.hpp"

#include "kernels/head_chunks.hpp"

#include <ATen/TensorOperators.h>

#include <limits>

#include "trireme/kernels/products.hpp"
#include "trireme/kernels/row_invariant.hpp"
#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::kernels {

using at::Tensor;

void cap_logits(const Tensor& logits, double cap) { logits.div_(cap).tanh_().mul_(cap); }

HeadWeight rows_of_head(const HeadWeight& weight, int64_t first, int64_t count) {
  return {weight.weight.narrow(0, first, count),
          weight.low.defined() ? weight.low.narrow(0, first, count) : Tensor{}, weight.cap};
}

Tensor hidden_of_weight(const Tensor& hidden, const HeadWeight& weight) {
  return weight.low.defined() ? hidden.narrow(1, 0, weight.weight.size(1)) : hidden;
}

Tensor hidden_of_adapter(const Tensor& hidden, const HeadWeight& weight) {
  return weight.low.defined() ? hidden.narrow(1, weight.weight.size(1), weight.low.size(1))
                              : Tensor{};
}

ChunkBuffer::ChunkBuffer(const HeadRows& rows)
    : rows_(rows.hidden.size(0)),
      chunk_rows_(std::min(rows.chunks.rows, rows.head.weight.size(0))),
      cap_(rows.head.cap),
      hidden_(pad_rows(hidden_of_weight(rows.hidden, rows.head))) {
  if (rows.head.low.defined()) low_ = pad_rows(hidden_of_adapter(rows.hidden, rows.head));
}

void ChunkBuffer::Rows::take(const Tensor& next, const Tensor& hidden) {
  rows = next;
  if (next.scalar_type() == hidden.scalar_type()) return;
  if (!widened.defined())
    widened = at::empty(next.sizes(), hidden.options());  // the first chunk is the longest
  rows = widened.narrow(0, 0, next.size(0)).copy_(next);
}

void ChunkBuffer::take(const HeadWeight& rows) {
  weight_rows_.take(rows.weight, hidden_);
  if (low_.defined()) low_rows_.take(rows.low, low_);
}

Tensor ChunkBuffer::multiply(const Tensor& out) const {
  multiply_rows(out, hidden_, weight_rows_.rows, std::nullopt);
  if (low_.defined()) {
    const Tensor delta = at::empty_like(out);
    multiply_rows(delta, low_, low_rows_.rows, std::nullopt);
    out.add_(delta);
  }
  if (cap_ > 0) cap_logits(out, cap_);
  return out.narrow(0, 0, rows_);
}

Tensor ChunkBuffer::logits(const HeadWeight& rows) {
  take(rows);
  const int64_t columns = rows.weight.size(0);
  if (!storage_.defined()) storage_ = at::empty({hidden_.size(0) * chunk_rows_}, hidden_.options());
  return multiply(
      storage_.narrow(0, 0, hidden_.size(0) * columns).view({hidden_.size(0), columns}));
}

Tensor ChunkBuffer::kept_logits(const HeadWeight& rows, int64_t bytes) {
  const int64_t more =
      hidden_.size(0) * rows.weight.size(0) * static_cast<int64_t>(hidden_.element_size());
  if (kept_ < 0 || more > bytes - kept_) {
    kept_ = -1;
    return {};
  }
  kept_ += more;
  take(rows);
  return multiply(at::empty({hidden_.size(0), rows.weight.size(0)}, hidden_.options()));
}

RowStatistics forward_device(const HeadRows& rows, bool with_entropy) {
  const Tensor& targets = rows.targets;
  const int64_t n = rows.hidden.size(0);
  const auto f32 = rows.hidden.options().dtype(at::kFloat);
  Tensor max = at::full({n}, -std::numeric_limits<float>::infinity(), f32);
  Tensor sum = at::zeros({n}, f32), weighted = at::zeros({n}, f32),
         target_logits = at::zeros({n}, f32);
  ChunkBuffer buffer(rows);
  for_each_chunk(rows, [&](int64_t first, int64_t count) {
    Tensor z = buffer.logits(rows_of_head(rows.head, first, count))
                   .to(at::kFloat);  // bf16: a copy, else the buffer
    z.mul_(rows.scale);
    const Tensor in_chunk = at::logical_and(targets >= first, targets < first + count);
    const Tensor column = at::clamp(targets - first, 0, count - 1).unsqueeze(1);
    target_logits = at::where(in_chunk, z.gather(1, column).squeeze(1), target_logits);
    const Tensor new_max = at::maximum(max, std::get<0>(at::max(z, 1)));
    const Tensor shift = at::where(sum > 0, max - new_max, at::zeros_like(max));
    const Tensor factor = shift.exp();
    weighted = factor * (weighted + shift * sum);
    sum = factor * sum;
    z.sub_(new_max.unsqueeze(1));
    if (with_entropy) {
      const Tensor e = z.exp();
      sum.add_(e.sum(1));
      weighted.add_(z.mul_(e).sum(1));
    } else {
      sum.add_(z.exp_().sum(1));
    }
    max = new_max;
  });
  const Tensor lse = max + sum.log();
  return {target_logits - lse, lse, with_entropy ? sum.log() - weighted / sum : Tensor{}};
}

void gradient_device(const Tensor& logits, int64_t first, const Tensor& targets, double scale,
                     const RowStatistics& rows, const RowGradients& grads) {
  const int64_t columns = logits.size(1);
  Tensor dz = logits.to(at::kFloat)
                  .mul_(scale)
                  .sub_(rows.log_sum_exp.unsqueeze(1));  // log p, in the end the gradient
  Tensor coefficient = grads.log_probs.unsqueeze(1);
  if (grads.entropy.defined()) {
    coefficient =
        dz.add(rows.entropy.unsqueeze(1)).mul_(grads.entropy.unsqueeze(1)).add_(coefficient);
  }
  dz.exp_().mul_(coefficient).mul_(-scale);
  const Tensor in_chunk = at::logical_and(targets >= first, targets < first + columns);
  const Tensor own = at::where(in_chunk, grads.log_probs * scale, at::zeros_like(grads.log_probs));
  dz.scatter_add_(1, at::clamp(targets - first, 0, columns - 1).unsqueeze(1), own.unsqueeze(1));
  if (!dz.is_same(logits)) logits.copy_(dz);
}

}  // namespace trireme::kernels
