#include "trireme/plan/pass_bytes.hpp"

#include <algorithm>

namespace trireme::plan {
namespace {

constexpr int64_t float_bytes = 4;
constexpr int64_t bytes_per_token =
    128;  // of columns on a device; set by hand, above what a PPO step was counted to have
constexpr int64_t row_state = 24;  // of a row's log-sum-exp between pieces of the vocabulary

// Widths of a block's values.
struct Widths {
  explicit Widths(const PassWork& work)
      : hidden(work.model.shape.hidden),
        q(work.model.shape.q_dim()),
        kv(work.model.shape.kv_dim()),
        ffn(work.model.shape.ffn),
        heads(work.model.shape.heads),
        kv_heads(work.model.shape.kv_heads) {}
  int64_t hidden, q, kv, ffn, heads, kv_heads;
};

int64_t chunk(const PassWork& work) { return std::min(work.head_rows, vocabulary_chunk); }
bool widens(const PassWork& work) { return work.logit_bytes > work.element_bytes; }
// Of [T, columns] in the compute type.
int64_t values(const PassWork& work, int64_t columns) {
  return work.tokens * work.element_bytes * columns;
}

// Saved by one block's operators (model::operation_table). On the host without numbers: there the
// libraries' own memory is estimated with more.
int64_t saved_by_block(const PassWork& work) {
  const ModelLayout::Kept& kept =
      work.operators == Operators::composed ? work.model.composed : work.model.own;
  const int64_t numbers = work.operators == Operators::host ? 0 : kept.numbers;
  return values(work, kept.values) + work.tokens * float_bytes * numbers;
}

// Whether products on a device add to fp32 slots and sums by themselves, or are rounded in a matrix
// of their own first.
bool adds_in_place(const PassWork& work, int64_t element_bytes) {
  return element_bytes == float_bytes || work.exact_products;
}
int64_t weight_gradient(const PassWork& work, int64_t rows, int64_t columns) {
  return adds_in_place(work, work.element_bytes) ? 0 : rows * columns * work.element_bytes;
}

// LibTorch's flash attention, of [T, heads, head size]: the gradient of q in fp32 and of k and v
// for each query head, a sum for each row. It pads each sequence by 128 rows: as for sequences of
// 128 tokens.
int64_t flash_backward(const PassWork& work) {
  const Widths w(work);
  const int64_t padded = 2 * work.tokens;
  return padded * float_bytes * (w.q + w.heads) +
         (w.heads == w.kv_heads ? 0 : values(work, 2 * w.q));
}

// Memory while a block is differentiated: its saved tensors (the feed-forward part's until that is
// through), its output, the gradient of that, and either the gradients of gate and up beside that
// of their product, or one of these with a weight's; later those of attention.
int64_t device_block_backward(const PassWork& work) {
  const Widths w(work);
  const int64_t feed_forward =
      saved_by_block(work) + values(work, 2 * w.hidden) +
      std::max(values(work, 2 * w.ffn),
               values(work, w.ffn) + weight_gradient(work, w.ffn, w.hidden));
  const int64_t attention = values(work, 4 * w.hidden + 4 * w.q + 4 * w.kv) +
                            work.tokens * float_bytes * (w.heads + 2) + flash_backward(work);
  return std::max(feed_forward, attention);
}

PassBytes on_device(const PassWork& work) {
  const Widths w(work);
  const int64_t block = saved_by_block(work), hidden = values(work, w.hidden);
  PassBytes out;
  out.stage_inputs = (work.model.shape.layers - frozen_blocks(work.model)) * hidden;
  out.kept = work.kept_blocks * block;
  out.columns = work.tokens * bytes_per_token;
  // Nothing is given back before the block ends: both norms' rows, the sums between, what attention
  // and the feed-forward part made.
  const int64_t adapter = values(work, work.model.adapter_columns);
  const int64_t passed = values(work, 3 * w.hidden + 2 * w.q + 2 * w.kv + 3 * w.ffn) + adapter;
  out.forward = work.kept_blocks > 0 ? 2 * hidden + adapter : passed;
  // Of a block that is computed again the adapter's values may be the most.
  const int64_t differentiated =
      std::max(device_block_backward(work), adapter > 0 ? passed + hidden : 0);
  out.backward = work.kept_blocks > 0 ? differentiated - block : differentiated;
  const int64_t wide = work.tokens * w.hidden * float_bytes;
  if (work.head_rows == 1) {  // a score: the rows in fp32, their gradient in both types
    out.head_hidden = 3 * hidden + 2 * wide;
    return out;
  }
  out.head_logits = work.tokens * chunk(work) * work.logit_bytes +
                    (widens(work) ? chunk(work) * w.hidden * work.logit_bytes : 0);
  if (work.logit_bytes == float_bytes) {
    out.head_hidden = hidden + 2 * wide;
  } else if (adds_in_place(work, work.logit_bytes)) {
    out.head_hidden = 3 * hidden + wide;
  } else {
    out.head_weight = chunk(work) * w.hidden * work.element_bytes;
    out.head_hidden = 2 * hidden + wide + std::max<int64_t>(0, hidden - out.head_weight);
  }
  return out;
}

// The gradients of the feed-forward part are the widest that stand at a time: gate, up and their
// product on the host, gate and up in fp32 and in the compute type where operators are composed. Of
// its three weights one gradient stands beside the slot.
int64_t estimated_block_backward(const PassWork& work) {
  const Widths w(work);
  const int64_t saved = saved_by_block(work);
  if (work.operators == Operators::composed)
    return saved + work.tokens * 2 * w.ffn * (work.element_bytes + float_bytes);
  const int64_t weight =
      w.ffn * w.hidden *
      (work.element_bytes == float_bytes ? float_bytes : work.element_bytes + float_bytes);
  return saved + values(work, 3 * w.ffn + 3 * w.hidden) + weight;
}

// Logits of one piece of the vocabulary for all targets, composed ones in fp32 and once more; and
// the hidden states' gradient.
int64_t estimated_head(const PassWork& work) {
  if (work.head_rows == 1) return 0;
  const int64_t logits =
      work.targets * chunk(work) *
      (work.operators == Operators::host ? work.logit_bytes : work.logit_bytes + 2 * float_bytes);
  const int64_t widened =
      widens(work) ? (chunk(work) + work.targets) * work.model.shape.hidden * work.logit_bytes : 0;
  return logits + work.tokens * work.model.shape.hidden * (float_bytes + work.element_bytes) +
         widened;
}

}  // namespace

PassBytes training_pass_bytes(const PassWork& work) {
  if (work.operators == Operators::device) return on_device(work);
  PassBytes out;
  out.stage_inputs = (work.model.shape.layers + 2 - frozen_blocks(work.model)) *
                     values(work, work.model.shape.hidden);
  out.kept = work.kept_blocks * saved_by_block(work);
  out.head_weight = chunk(work) * work.model.shape.hidden * work.element_bytes;
  out.head_logits = estimated_head(work);
  if (work.head_rows > 1 && work.operators == Operators::host) {
    out.head_kept = std::min(work.kept_logits, work.targets * work.head_rows * work.logit_bytes);
  }
  out.backward = estimated_block_backward(work);
  return out;
}

int64_t scoring_pass_bytes(const PassWork& work) {
  const Widths w(work);
  if (work.operators != Operators::device) {
    const int64_t columns =
        work.operators == Operators::composed ? 6 * w.hidden + 4 * w.ffn : 4 * w.hidden + 3 * w.ffn;
    return std::max(values(work, columns + work.model.adapter_columns), estimated_head(work));
  }
  const int64_t block =
      values(work, 4 * w.hidden + 2 * w.q + 2 * w.kv + 3 * w.ffn + work.model.adapter_columns);
  const int64_t rows = work.tokens * w.hidden *
                       (work.head_rows == 1 ? work.element_bytes + float_bytes : work.logit_bytes);
  const int64_t logits =
      work.head_rows == 1 ? 0 : work.tokens * (chunk(work) * work.logit_bytes + row_state);
  const int64_t widened =
      work.head_rows > 1 && widens(work) ? chunk(work) * w.hidden * work.logit_bytes : 0;
  return work.tokens * bytes_per_token + std::max(block, 2 * rows + logits + widened);
}

int64_t rotation_bytes(const config::ModelShape& shape, int64_t longest) {
  constexpr int64_t first = 1024;  // positions
  return float_bytes * shape.head_dim * (longest <= first ? first : 2 * longest);
}

}  // namespace trireme::plan
