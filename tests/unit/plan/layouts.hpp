// A described model as the ledger takes it.
#pragma once

#include "trireme/model/spec.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::test {

inline plan::ModelLayout layout(const model::ModelSpec& spec) {
  plan::ModelLayout out{spec.shape, spec.tensors(), {}};
  for (const auto& stage : spec.stages) out.stages.push_back(stage.parameters);
  return out;
}

}  // namespace trireme::test
