// A model's operations on the rows of a step, on a device and without gradients: what
// model::run_stage() computes, with several operations by one product or kernel where these exist.
// Values are rounded where it rounds them; products of several weights at once may add in another
// order. Legend: M rows of the step, S slots of the cache, H query heads, K KV heads, hd head size,
// D hidden, L layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <string>

#include "local_shape.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/model/forward.hpp"

namespace trireme::generate {

// Of one step. It refers to its arguments.
class FusedOperators {
 public:
  struct Step {
    const model::PackedBatch& rows;  // M
    const at::Tensor& slots;         // [M] of the cache, where keys and values of the rows go
    const at::Tensor& logit_rows;
    const model::Rope& rope;
    const at::Tensor& cache;    // [2, L, S, K, hd]: keys, values
    model::Strategy& strategy;  // sums over ranks, rows of the vocabulary
    std::function<at::Tensor(const at::Tensor& q, int layer)>
        attend;  // rotated q [M, H, hd], to what the cache has; [M, H, hd]
  };
  FusedOperators(const model::ModelSpec& spec, const GeneratorWeights& weights, const Step& step)
      : spec_(spec), weights_(weights), step_(step) {}

  // What the head's weight is multiplied with, [logit rows, D]; undefined where no row is wanted.
  at::Tensor run();

 private:
  size_t execute(const model::Stage& stage, size_t operation);
  void norm(const model::Operation& operation, const at::Tensor& weight);
  size_t multiply(const model::Stage& stage, size_t operation);
  bool multiply_jointly(const model::Stage& stage, size_t operation, size_t count);
  void forget_all_but(model::Value kept);
  void keep_and_attend(model::Value out, int layer);
  at::Tensor gate(const at::Tensor& gate, const at::Tensor& up) const;
  at::Tensor weight(const model::Stage& stage, int position) const {
    return weights_.tensor(stage.parameters[static_cast<size_t>(position)]);
  }
  at::Tensor& value(model::Value which) { return values_[static_cast<size_t>(which)]; }
  at::Tensor heads(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1) / spec_.shape.head_dim, spec_.shape.head_dim});
  }

  const model::ModelSpec& spec_;
  const GeneratorWeights& weights_;
  const Step& step_;
  std::array<at::Tensor, model::value_count>
      values_;        // [M, width]; of q, k, v, gate and up rows may lie apart
  at::Tensor added_;  // what the stream has not been given yet: the norm that reads it adds it
};

// What is wrong with the device's kernels for layers of this shape, by LibTorch's operators; empty:
// nothing. Waits for the device.
std::string fused_operators_problem(at::Device device, const kernels::DeviceKernels& own,
                                    const LocalShape& shape);

}  // namespace trireme::generate
