#include "trireme/plan/model_bytes.hpp"

#include <algorithm>
#include <bit>

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
  for (const size_t p : stage) {
    if (model.is_lent(p)) continue;
    sum = checked_add(
        sum, round_up(checked_mul<int64_t>(slice(model.tensors[p], ranks), ranks), slot_align));
  }
  return sum;
}

using Stages = std::vector<std::vector<size_t>>;

// Those of each stage that have gradients.
Stages trainable_stages(const ModelLayout& model) {
  Stages out = model.stages;
  for (auto& stage : out) std::erase_if(stage, [&](size_t p) { return !model.trainable[p]; });
  return out;
}

// Memory that holds two neighbouring stages at a time.
int64_t two_stages(const ModelLayout& model, const Stages& stages, int ranks) {
  int64_t most = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const int64_t next = s + 1 < stages.size() ? slot_elements(model, stages[s + 1], ranks) : 0;
    most = std::max(most, checked_add(round_up(slot_elements(model, stages[s], ranks), slot_align),
                                      round_up(next, slot_align)));
  }
  return most;
}

// Every parameter once, `copies` slices of it.
int64_t storage(const ModelLayout& model, int ranks, int64_t copies) {
  int64_t sum = 0;
  for (size_t p = 0; p < model.tensors.size(); ++p) {
    if (!model.is_lent(p))
      sum = checked_add(sum,
                        round_up(checked_mul(copies, slice(model.tensors[p], ranks)), slot_align));
  }
  return sum;
}

}  // namespace

int64_t elements(const ModelLayout& model) {
  int64_t sum = 0;
  for (const auto& tensor : model.tensors) sum = checked_add(sum, tensor.elements());
  return sum;
}

int64_t trainable_elements(const ModelLayout& model) {
  int64_t sum = 0;
  for (size_t p = 0; p < model.tensors.size(); ++p)
    sum = checked_add(sum, model.trainable[p] ? model.tensors[p].elements() : 0);
  return sum;
}

size_t first_trainable_stage(const ModelLayout& model) {
  const auto trained = [&](const std::vector<size_t>& stage) {
    return std::ranges::any_of(stage, [&](size_t p) { return model.trainable[p]; });
  };
  return static_cast<size_t>(std::ranges::find_if(model.stages, trained) - model.stages.begin());
}

BackwardShares backward_shares(const ModelLayout& model) {
  double all = 0, inputs = 0, weights = 0;
  const size_t first = first_trainable_stage(model);
  for (size_t s = 1; s < model.stages.size(); ++s) {  // a look-up is no product
    for (const size_t p : model.stages[s]) {
      const auto elements = static_cast<double>(model.tensors[p].elements());
      all += elements;
      if (s >= first) inputs += elements;
      if (model.trainable[p]) weights += elements;
    }
  }
  return {inputs / all, weights / all};
}

int64_t frozen_blocks(const ModelLayout& model) {
  const auto first = static_cast<int64_t>(first_trainable_stage(model));
  return std::clamp<int64_t>(first - 1, 0, model.shape.layers);
}

ModelLayout frozen(ModelLayout model) {
  model.trainable.assign(model.tensors.size(), false);
  return model;
}

int64_t largest_stage_slice(const ModelLayout& model, int ranks) {
  int64_t most = 0;
  for (const auto& stage : trainable_stages(model)) {
    int64_t sum = 0;
    for (const size_t p : stage) sum += slice(model.tensors[p], ranks);
    most = std::max(most, sum);
  }
  return most;
}

int64_t shard_elements(const ModelLayout& model, int ranks) {
  int64_t sum = 0;
  for (size_t p = 0; p < model.tensors.size(); ++p) {
    if (model.trainable[p])
      sum = checked_add(sum, round_up(slice(model.tensors[p], ranks), shard_align));
  }
  return sum;
}

int64_t gradient_sum_bytes(const ModelLayout& model, int ranks) {
  int64_t sum = 0;
  for (const auto& stage : trainable_stages(model))
    sum = checked_add(sum, slot_elements(model, stage, ranks));
  return checked_mul(fp32, sum);
}

int64_t device_step_bytes(const ModelLayout& model, int ranks, int64_t element_bytes,
                          bool offload) {
  constexpr int64_t fp64 = 8;
  const int64_t elements = shard_elements(model, ranks),
                norm = fp64 * std::min(norm_chunk, elements);
  if (!offload) return norm;
  int64_t largest = 0;
  for (size_t p = 0; p < model.tensors.size(); ++p) {
    if (model.trainable[p]) largest = std::max(largest, slice(model.tensors[p], ranks));
  }
  const int64_t piece = std::min(offload_piece, elements), compared = std::min(piece, largest),
                rounded = element_bytes == fp32 ? 0 : element_bytes;
  constexpr int64_t found_unequal = 1 + 8;  // LibTorch converts what it counts
  return std::max(norm, 2 * 3 * fp32 * piece + (rounded + found_unequal) * compared);
}

ShardedModelBytes sharded_model_bytes(const ModelLayout& model, int64_t element_bytes, bool average,
                                      const Sharding& sharding) {
  const auto [exchange, ranks, ranks_of_node, reduced_bytes] = sharding;
  ShardedModelBytes out;
  if (exchange == Exchange::windows) {
    out.weights_own =
        base::ceil_div<int64_t>(storage(model, ranks, ranks) * element_bytes, ranks_of_node);
  } else {
    out.weights_own = storage(model, ranks, 1) * element_bytes;
    out.weights_ring = two_stages(model, model.stages, ranks) * element_bytes;
  }
  out.gradient_slots = two_stages(model, trainable_stages(model), ranks) * fp32;
  const int64_t reduced = largest_stage_slice(model, ranks) * (ranks == 1 ? fp32 : reduced_bytes);
  if (exchange == Exchange::host_ring) out.receive = (ranks - 1) * reduced;
  if (exchange == Exchange::windows && ranks_of_node < ranks) out.receive = 3 * reduced;
  if (exchange == Exchange::device_ring) out.receive = reduced;
  const int64_t shard = shard_elements(model, ranks) * fp32;
  out.master = out.gradients = shard;
  out.moments = 2 * shard;
  out.average = average ? shard : 0;
  return out;
}

int64_t MirrorBytes::slab(int64_t bytes) {
  constexpr int64_t least = int64_t{64} << 20;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, least))));
}

void MirrorBytes::add(int64_t bytes) {
  bytes = round_up(bytes, alignment);
  if (bytes > left_) {
    left_ = slab(bytes);
    total_ = checked_add(total_, left_);
  }
  left_ -= bytes;
}

void MirrorBytes::add(const ModelLayout& model, int ranks, int arrays) {
  for (size_t p = 0; p < model.tensors.size(); ++p) {
    for (int array = 0; model.trainable[p] && array < arrays; ++array)
      add(slice(model.tensors[p], ranks) * fp32);
  }
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
    sum = checked_add(sum, checked_mul(round_up(block.rows, panel),
                                       base::ceil_div(block.columns, group) * (group + fp32)));
  }
  return sum;
}

int64_t kv_bytes_per_token(const config::ModelShape& shape, int tensor_parallel,
                           int64_t element_bytes) {
  const int64_t kv_heads = base::ceil_div<int64_t>(shape.kv_heads, tensor_parallel);
  return 2 * shape.layers * kv_heads * shape.head_dim * element_bytes;
}

}  // namespace trireme::plan
