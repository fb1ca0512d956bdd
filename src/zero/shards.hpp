// One rank's part of a model in fp32, and the geometry that the exchange needs. Private to
// zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/shard_layout.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::zero {

// Slots of all stages for N ranks: parameters one after another, padded to N * rows_per_rank rows
// and to 64 bytes.
std::vector<comm::SlotGeometry> slot_geometry(const model::ModelSpec& spec, int ranks);

// Whether weight decay applies to a parameter: not to biases and norm weights (OpenRLHF,
// utils/deepspeed/ deepspeed_utils.py, get_optimizer_grouped_parameters).
bool decays(const std::string& name);

// Consecutive elements of a shard.
struct ShardRange {
  int64_t first = 0, elements = 0;
};

// Where this rank's rows of each trainable parameter lie in a flat fp32 tensor. Each has its padded
// length there, since the exchange adds whole slices; padding stays zero. Frozen parameters have no
// place.
class ShardMap {
 public:
  ShardMap(const model::ModelSpec& spec, int ranks, int rank);
  const base::ShardLayout& layout() const { return layout_; }
  base::Block own(size_t parameter) const { return layout_.block(parameter, rank_); }
  // Of a trainable parameter; a multiple of 64: a word of the change bitmap.
  int64_t offset(size_t parameter) const {
    EXPECT(offset_[parameter] >= 0);
    return offset_[parameter];
  }
  bool trainable(size_t parameter) const { return offset_[parameter] >= 0; }
  // Trainable parameters of which this rank has rows, in order.
  const std::vector<size_t>& trained() const { return trained_; }
  int64_t elements() const { return elements_; }
  // Most trainable elements of a stage.
  int64_t largest_stage(const model::ModelSpec& spec) const;
  // By stage: what has all of its gradients once the backward pass has left the stage, the
  // parameters that no earlier stage has. With padding, as that ranks with the same shards agree.
  std::vector<std::vector<ShardRange>> completed_by(const model::ModelSpec& spec) const;
  size_t parameters() const { return offset_.size(); }
  at::Tensor allocate(at::Device device) const;  // f32 [elements()], zero
  // Start of a parameter in such a tensor; nullptr when the tensor is undefined, the parameter is
  // frozen or this rank has none of its rows.
  float* data(const at::Tensor& flat, size_t parameter) const;

 private:
  base::ShardLayout layout_;
  int rank_;
  std::vector<int64_t> offset_;  // -1: frozen
  std::vector<size_t> trained_;
  int64_t elements_ = 0;
};

}  // namespace trireme::zero
