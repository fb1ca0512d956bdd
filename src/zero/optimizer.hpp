// The sharded optimizer: gradient norm, AdamW, compute-dtype weights. Private to zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/comm/pinned_buffer.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/zero/sharded_model.hpp"
#include "zero/shards.hpp"

namespace trireme::zero {

// fp32 tensors of ShardMap::elements(); a model without trainable parameters has none of them.
struct OptimizerState {
  at::Tensor master, gradient, moment1, moment2;
  at::Tensor average;  // undefined without enable_average()
  double average_beta = 0;
  std::vector<uint64_t> changed;  // empty unless changes are tracked
  std::vector<comm::PinnedBuffer>
      host;  // what master and moments lie in when they are not on the gradient's device
  int64_t steps = 0;
  BeforeChange before_change = [](size_t) {};  // state on the host only
};

// This rank's part of one AdamW step: its state and gradients, and where its weights of type
// `compute` are. Gradients are multiplied by `clip_factor`.
struct ShardUpdate {
  OptimizerState& state;
  const ShardMap& map;
  comm::ShardExchange& exchange;
  at::ScalarType compute;
  const AdamWOptions& options;
  double clip_factor;
};

// Returns how many of this rank's compute-dtype values changed. Call between the exchange's
// begin_update() and end_update().
int64_t update_shard(const ShardUpdate& update);

// The same by LibTorch's operations on the gradient's device, `piece` values at a time, which
// changes no bit. Master and moments that lie in OptimizerState::host are copied there and back.
// update_shard() calls it for devices.
int64_t update_by_operations(const ShardUpdate& update, int64_t piece);

// Sum of squares of this rank's gradients.
double squared_gradients(const OptimizerState& state);

// Sum of squares of a fp32 vector on any device by LibTorch's operations, added up in double; takes
// memory for plan::norm_chunk values in double, not for all.
double squared_norm_in_chunks(const at::Tensor& values);

// Rounds this rank's fp32 values of a parameter, on the host, into the exchange's storage.
void write_compute(const float* values, int64_t elements, at::ScalarType compute, at::Device device,
                   void* slice);

// e = beta e + (1 - beta) p on the whole shard.
void update_average(OptimizerState& state);

}  // namespace trireme::zero
