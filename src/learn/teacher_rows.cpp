#include "torch/torch.hpp"

#include "trireme/learn/teacher_rows.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <utility>

#include "trireme/kernels/row_losses.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

using at::Tensor;

// A model's own cap of its logits; 0: none.
Tensor capped(const Tensor& logits, double cap) {
  return cap == 0 ? logits : at::tanh(logits / cap) * cap;
}

}  // namespace

TeacherRows::TeacherRows(const config::DistillOptions& options, zero::ShardedModel& teacher,
                         model::AdapterUse adapter)
    : options_(options), teacher_(teacher), adapter_(adapter) {}

void TeacherRows::prepare(const ActionBatch& batch) {
  const trace::Region region{"teacher", batch.packed.tokens()};
  trace::count("teacher_positions", batch.packed.tokens());
  kept_ = {};
  teacher_.forward(
      batch.packed,
      [&](const Tensor& hidden, const kernels::HeadWeight& head) {
        kept_ = keep(hidden.index_select(0, batch.rows), head);
      },
      adapter_);
}

TeacherRows::Kept TeacherRows::keep(const Tensor& hidden, const kernels::HeadWeight& head) const {
  const int64_t rows = hidden.size(0), vocabulary = head.weight.size(0);
  const int64_t chunk = kernels::rows_of_chunk(vocabulary, hidden.device());
  Kept out;
  if (options_.by_teacher()) {
    const int64_t k = std::min(options_.top_k, vocabulary);
    out.top = {at::empty({rows, k}, hidden.options().dtype(at::kLong)),
               at::empty({rows, k}, hidden.options().dtype(at::kFloat))};
  } else {
    out.logits = at::empty({rows, vocabulary}, hidden.options());
  }
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    const Tensor logits =
        capped(kernels::row_logits(hidden.narrow(0, first, count), head), head.cap);
    if (!options_.by_teacher()) {
      out.logits.narrow(0, first, count).copy_(logits);
      continue;
    }
    const ppo::TopTokens top = ppo::top_tokens(logits, options_);
    out.top.ids.narrow(0, first, count).copy_(top.ids);
    out.top.log_probs.narrow(0, first, count).copy_(top.log_probs);
  }
  return out;
}

Tensor TeacherRows::divergence(const Tensor& hidden, const kernels::HeadWeight& head) {
  const auto compare = [options = options_, kept = std::exchange(kept_, {}), cap = head.cap](
                           const Tensor& of_student, int64_t first) {
    const Tensor logits = capped(of_student, cap);
    const int64_t count = logits.size(0);
    if (options.by_teacher()) {
      return ppo::top_tokens_loss(
          logits,
          {kept.top.ids.narrow(0, first, count), kept.top.log_probs.narrow(0, first, count)},
          options);
    }
    return ppo::distribution_loss(logits, kept.logits.narrow(0, first, count).to(at::kFloat),
                                  options);
  };
  return kernels::row_losses(hidden, head, compare);
}

}  // namespace trireme::learn
