// A model's operations on the rows of a step, on a device and without gradients:
// as model::run_stage(), with several operations by one product or kernel where these exist.
// Values are rounded where it rounds them; products of several weights at once may add in another
// order. Legend: M rows of the step, S slots of the cache, H query heads, K KV heads, hd head size,
// D hidden, L layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "local_shape.hpp"
#include "product_window.hpp"
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
    const model::Ropes& ropes;
    const at::Tensor& cache;    // [2, L, S, K, hd]: keys, values
    model::Strategy& strategy;  // sums over ranks, rows of the vocabulary
    std::function<at::Tensor(const at::Tensor& q, const model::Scores& scores, int layer)>
        attend;                   // rotated q [M, H, hd], over the cached keys; [M, H, hd]
    const ProductWindow& window;  // for products that are summed over ranks
  };
  FusedOperators(const model::ModelSpec& spec, const GeneratorWeights& weights, const Step& step)
      : spec_(spec),
        weights_(weights),
        step_(step),
        values_(spec.values),
        rotations_(spec.values) {}

  // The input of the head's product, [logit rows, D]; undefined where no row is wanted.
  at::Tensor run();

 private:
  void run(const model::Stage& stage);
  // Each: the operation at `place` of the stage, and how many from there on were done.
  size_t run(const model::Norm& o, size_t place);
  size_t run(const model::Linear& o, size_t place);
  size_t run(const model::Rotate& o, size_t place);
  size_t run(const model::Attend& o, size_t place);
  size_t run(const model::Gate& o, size_t place);
  size_t run(const model::Add& o, size_t place);
  template <class Op>
  size_t run(const Op& o, size_t place);  // by model::execute()
  size_t run_alone(const model::Operation& operation);
  bool multiply_jointly(size_t place, size_t count);
  bool multiply_into_window(const model::Linear& o, size_t place);
  void complete(model::Value value);
  at::Tensor weight(model::Role role) const {
    return weights_.tensor(spec_.index_of(*stage_, role));
  }
  at::Tensor& value(model::Value which) { return values_[which.id]; }

  const model::ModelSpec& spec_;
  const GeneratorWeights& weights_;
  const Step& step_;
  const model::Stage* stage_ = nullptr;
  std::vector<at::Tensor> parameters_;  // of the stage
  model::Values values_;  // [M, width]; the rows of a product of several weights are not contiguous
  // Work done together with the operation that reads the value: a sum by a norm, rotations by
  // attention.
  at::Tensor added_;                                     // to the stream
  std::vector<std::optional<model::Rotate>> rotations_;  // by value
};

// Errors of the device's kernels for layers of this shape, by LibTorch's operators; empty:
// nothing. Waits for the device.
std::string fused_operators_problem(at::Device device, const kernels::DeviceKernels& own,
                                    const LocalShape& shape);

}  // namespace trireme::generate
