// This rank's gradients of a step's micro-batches before its last
// (ShardedModelOptions::reduce_once), of all stages. Private to zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/comm/shard_exchange.hpp"

namespace trireme::zero {

// fp32 memory of a stage's gradients, whole parameters of N slices, by parameter index within the
// stage.
struct GradientPlace {
  std::vector<float*> parameters;
  bool has_sums = false;  // of earlier micro-batches, to add to; else its values do not count
};

class GradientSums {
 public:
  GradientSums() = default;  // none: each micro-batch's gradients go to their owners
  GradientSums(std::vector<comm::SlotGeometry> stages, at::Device device);

  GradientPlace of(int stage);
  // Copies a stage's sums, if it has any, into the exchange's storage, which the last micro-batch
  // adds to; it has none then.
  GradientPlace move_to(int stage, std::vector<float*> slot);
  void forget();

  bool wanted() const { return flat_.defined(); }
  bool empty() const;  // of a wanted one: no stage has sums
  int64_t bytes() const;

 private:
  at::Tensor parameter(int stage, size_t index) const;

  std::vector<comm::SlotGeometry> stages_;
  std::vector<int64_t> begin_;  // of a stage, elements
  std::vector<bool> has_;       // by stage
  at::Tensor flat_;
};

}  // namespace trireme::zero
