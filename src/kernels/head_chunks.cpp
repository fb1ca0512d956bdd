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

ChunkBuffer::ChunkBuffer(const Tensor& hidden, int64_t chunk_rows, double cap)
    : rows_(hidden.size(0)), chunk_rows_(chunk_rows), cap_(cap), hidden_(pad_rows(hidden)) {}

void ChunkBuffer::take(const Tensor& weight_rows) {
  weight_rows_ = weight_rows;
  if (weight_rows.scalar_type() == hidden_.scalar_type()) return;
  if (!widened_.defined())
    widened_ = at::empty(weight_rows.sizes(), hidden_.options());  // the first chunk is the longest
  weight_rows_ = widened_.narrow(0, 0, weight_rows.size(0)).copy_(weight_rows);
}

Tensor ChunkBuffer::multiply(const Tensor& out) const {
  multiply_rows(out, hidden_, weight_rows_, std::nullopt);
  if (cap_ > 0) cap_logits(out, cap_);
  return out.narrow(0, 0, rows_);
}

Tensor ChunkBuffer::logits(const Tensor& weight_rows) {
  take(weight_rows);
  const int64_t columns = weight_rows.size(0);
  if (!storage_.defined()) storage_ = at::empty({hidden_.size(0) * chunk_rows_}, hidden_.options());
  return multiply(
      storage_.narrow(0, 0, hidden_.size(0) * columns).view({hidden_.size(0), columns}));
}

Tensor ChunkBuffer::kept_logits(const Tensor& weight_rows, int64_t bytes) {
  const int64_t more =
      hidden_.size(0) * weight_rows.size(0) * static_cast<int64_t>(hidden_.element_size());
  if (kept_ < 0 || more > bytes - kept_) {
    kept_ = -1;
    return {};
  }
  kept_ += more;
  take(weight_rows);
  return multiply(at::empty({hidden_.size(0), weight_rows.size(0)}, hidden_.options()));
}

RowStatistics forward_device(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                             double scale, bool with_entropy, int64_t chunk_rows, double cap) {
  const int64_t n = hidden.size(0);
  const auto f32 = hidden.options().dtype(at::kFloat);
  Tensor max = at::full({n}, -std::numeric_limits<float>::infinity(), f32);
  Tensor sum = at::zeros({n}, f32), weighted = at::zeros({n}, f32),
         target_logits = at::zeros({n}, f32);
  ChunkBuffer buffer(hidden, std::min(chunk_rows, weight.size(0)), cap);
  for_each_chunk(weight.size(0), chunk_rows, [&](int64_t first, int64_t count) {
    Tensor z = buffer.logits(weight.narrow(0, first, count))
                   .to(at::kFloat);  // bf16: a copy, else the buffer
    z.mul_(scale);
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
