// A whole model in one process, for tests: plain tensors and the stage functions one after another.
#pragma once

#include <vector>

#include "trireme/model/forward.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::test {

struct WholeModel {
  model::ModelSpec spec;
  std::vector<at::Tensor> parameters;  // in the order of spec.parameters
  model::Ropes ropes;

  // A score head that the source lacks is drawn with seed 0.
  WholeModel(const model::ModelSpec& description, const model::WeightSource& weights,
             at::ScalarType type = at::kFloat)
      : spec(description) {
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      const auto& tensor = spec.parameters[i].spec;
      at::Tensor values = at::empty(tensor.shape, at::TensorOptions().dtype(at::kFloat));
      model::load_parameter(spec, i, {0, tensor.rows(), 0, tensor.columns()}, weights, 0,
                            values.mutable_data_ptr<float>());
      parameters.push_back(values.to(type));
    }
    ropes = model::make_ropes(spec, spec.shape.max_positions, at::kCPU);
  }

  std::vector<at::Tensor> of_stage(size_t stage) const {
    std::vector<at::Tensor> out;
    for (const size_t i : spec.stages[stage].parameters) out.push_back(parameters[i]);
    return out;
  }

  void require_grad() {
    for (auto& parameter : parameters) parameter.requires_grad_(true);
  }

  // [T, D] after the final norm.
  at::Tensor hidden(const model::PackedBatch& batch, model::Strategy& strategy) const {
    at::Tensor x;
    for (size_t s = 0; s < spec.stages.size(); ++s)
      x = model::run_stage({spec, spec.stages[s], of_stage(s), batch, ropes, strategy}, x);
    return x;
  }
  at::Tensor hidden(const model::PackedBatch& batch) const {
    model::Strategy plain;
    return hidden(batch, plain);
  }

  // The head's matrix: [V, D], or [1, D] of a score head.
  const at::Tensor& head() const { return parameters[spec.head_parameter()]; }
};

}  // namespace trireme::test
