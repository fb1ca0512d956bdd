#include "trireme/plan/model_bytes.hpp"

#include <algorithm>

#include "trireme/base/checked.hpp"

namespace trireme::plan {
namespace {

using base::checked_add;
using base::checked_mul;
using base::round_up;

constexpr int64_t fp32 = 4;
constexpr int64_t slot_align = 32;   // elements: comm and zero begin every parameter at a multiple
constexpr int64_t shard_align = 64;  // elements: one word of the change bitmap
constexpr int64_t slice_align = 64;  // bytes: of the generator's tensors

int64_t slice(const base::TensorSpec& tensor, int ranks) {
  return checked_mul(base::ShardLayout::rows_per_rank(tensor, ranks), tensor.columns());
}

int64_t slot_elements(const ModelLayout& model, const std::vector<size_t>& stage, int ranks) {
  int64_t sum = 0;
  for (const size_t p : stage) sum = checked_add(sum, round_up(checked_mul<int64_t>(slice(model.tensors[p], ranks), ranks), slot_align));
  return sum;
}

// Memory that holds two neighbouring stages at a time.
int64_t two_stages(const ModelLayout& model, int ranks) {
  int64_t most = 0;
  for (size_t s = 0; s < model.stages.size(); ++s) {
    const int64_t next = s + 1 < model.stages.size() ? slot_elements(model, model.stages[s + 1], ranks) : 0;
    most = std::max(most, checked_add(round_up(slot_elements(model, model.stages[s], ranks), slot_align), round_up(next, slot_align)));
  }
  return most;
}

// Every parameter once, `copies` slices of it.
int64_t storage(const ModelLayout& model, int ranks, int64_t copies) {
  int64_t sum = 0;
  for (const auto& tensor : model.tensors) sum = checked_add(sum, round_up(checked_mul(copies, slice(tensor, ranks)), slot_align));
  return sum;
}

int64_t largest_stage_slice(const ModelLayout& model, int ranks) {
  int64_t most = 0;
  for (const auto& stage : model.stages) {
    int64_t sum = 0;
    for (const size_t p : stage) sum += slice(model.tensors[p], ranks);
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

int64_t elements(const ModelLayout& model) {
  int64_t sum = 0;
  for (const auto& tensor : model.tensors) sum = checked_add(sum, tensor.elements());
  return sum;
}

int64_t shard_elements(const ModelLayout& model, int ranks) {
  int64_t sum = 0;
  for (const auto& tensor : model.tensors) sum = checked_add(sum, round_up(slice(tensor, ranks), shard_align));
  return sum;
}

ShardedModelBytes sharded_model_bytes(const ModelLayout& model, int ranks, int64_t element_bytes, Training training, bool average,
                                      Exchange exchange, int ranks_of_node) {
  ShardedModelBytes out;
  if (exchange == Exchange::window || exchange == Exchange::node_windows) {
    const int sharing = exchange == Exchange::window ? ranks : ranks_of_node;
    out.weights_own = base::ceil_div<int64_t>(storage(model, ranks, ranks) * element_bytes, sharing);
  } else {
    out.weights_own = storage(model, ranks, 1) * element_bytes;
    out.weights_ring = two_stages(model, ranks) * element_bytes;
  }
  if (training == Training::frozen) return out;
  out.gradient_slots = two_stages(model, ranks) * fp32;
  if (exchange == Exchange::host_ring) out.receive = (ranks - 1) * largest_stage_slice(model, ranks) * fp32;
  if (exchange == Exchange::node_windows) out.receive = 3 * largest_stage_slice(model, ranks) * fp32;
  if (exchange == Exchange::device_ring) out.receive = largest_stage_slice(model, ranks) * fp32;
  const int64_t shard = shard_elements(model, ranks) * fp32;
  out.master = out.gradients = shard;
  out.moments = 2 * shard;
  out.average = average ? shard : 0;
  return out;
}

int64_t generator_weight_bytes(const base::ShardLayout& slices, int rank, int64_t element_bytes) {
  int64_t sum = 0;
  for (size_t p = 0; p < slices.tensors().size(); ++p) {
    sum = checked_add(sum, round_up(slices.block(p, rank).elements() * element_bytes, slice_align));
  }
  return sum;
}

int64_t generator_int8_bytes(const base::ShardLayout& slices, int rank, bool tied) {
  constexpr int64_t panel = 16, group = 64;
  int64_t sum = 0;
  for (size_t p = 0; p < slices.tensors().size(); ++p) {
    const bool embedding = p == 0;
    if (slices.tensors()[p].shape.size() != 2 || (embedding && !tied)) continue;
    const base::Block block = slices.block(p, rank);
    sum = checked_add(sum, checked_mul(round_up(block.rows, panel), base::ceil_div(block.columns, group) * (group + fp32)));
  }
  return sum;
}

int64_t kv_bytes_per_token(const config::ModelShape& shape, int tensor_parallel, int64_t element_bytes) {
  const int64_t kv_heads = base::ceil_div<int64_t>(shape.kv_heads, tensor_parallel);
  return 2 * shape.layers * kv_heads * shape.head_dim * element_bytes;
}

int64_t stage_input_bytes(const config::ModelShape& shape, int64_t tokens, int64_t element_bytes) {
  return (shape.layers + 2) * tokens * shape.hidden * element_bytes;
}

// In the compute type the inputs of all products, rotated q and k, v, the attention's output, gate, up and their product. Composed operators
// also keep q and k before the rotation and, in fp32, the norms' input and normed rows, twice, and SwiGLU's gate, up and silu(gate).
int64_t kept_block_bytes(const config::ModelShape& shape, int64_t tokens, Operators operators, int64_t element_bytes) {
  const int64_t q = shape.q_dim(), kv = shape.kv_dim();
  if (operators == Operators::fused) return tokens * element_bytes * (3 * shape.hidden + 2 * q + 2 * kv + 3 * shape.ffn);
  const int64_t narrow = 4 * shape.hidden + 3 * q + 3 * kv + 3 * shape.ffn;
  const int64_t wide = 4 * shape.hidden + 3 * shape.ffn;
  return tokens * (element_bytes * narrow + fp32 * wide);
}

// The gradients of the feed-forward part are the widest that stand at a time: gate, up and their product on the host, gate and up in fp32 and
// in the compute type on a device. Of its three weights one gradient stands beside the slot.
int64_t block_backward_bytes(const config::ModelShape& shape, int64_t tokens, Operators operators, int64_t element_bytes) {
  const int64_t kept = kept_block_bytes(shape, tokens, operators, element_bytes);
  if (operators == Operators::composed) return kept + tokens * 2 * shape.ffn * (element_bytes + fp32);
  const int64_t weight = shape.ffn * shape.hidden * (element_bytes == fp32 ? fp32 : element_bytes + fp32);
  return kept + tokens * element_bytes * (3 * shape.ffn + 3 * shape.hidden) + weight;
}

int64_t block_forward_bytes(const config::ModelShape& shape, int64_t tokens, Operators operators, int64_t element_bytes) {
  if (operators == Operators::composed) return tokens * (6 * shape.hidden + 4 * shape.ffn) * element_bytes;
  return tokens * (4 * shape.hidden + 3 * shape.ffn) * element_bytes;
}

int64_t head_backward_bytes(const config::ModelShape& shape, int64_t rows, int64_t element_bytes) {
  return std::min(rows, vocabulary_chunk) * shape.hidden * element_bytes;
}

int64_t head_chunk_bytes(const config::ModelShape& shape, int64_t tokens, Operators operators, int64_t element_bytes, int64_t logit_bytes) {
  const int64_t rows = std::min(shape.vocab, vocabulary_chunk);
  const int64_t logits = tokens * rows * (operators == Operators::fused ? logit_bytes : logit_bytes + fp32);
  const int64_t widened = logit_bytes > element_bytes ? (rows + tokens) * shape.hidden * logit_bytes : 0;
  return logits + tokens * shape.hidden * (fp32 + element_bytes) + widened;
}

}  // namespace trireme::plan
