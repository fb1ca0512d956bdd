// A described model as the memory plan takes it.
#pragma once

#include "trireme/model/spec.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::machine {

// `lender`: a model whose frozen parameters this one reads where they are alike; null: none.
inline plan::ModelLayout layout_of(const model::ModelSpec& spec,
                                   const model::ModelSpec* lender = nullptr) {
  const auto kept = [&](model::Kept model::OperationRow::*by) {
    const model::KeptColumns columns = model::kept_by_block(spec, by);
    return plan::ModelLayout::Kept{columns.values, columns.numbers};
  };
  plan::ModelLayout out{.shape = spec.shape,
                        .tensors = spec.tensors(),
                        .own = kept(&model::OperationRow::own),
                        .composed = kept(&model::OperationRow::composed),
                        .adapter_columns = model::adapter_columns(spec)};
  for (const auto& parameter : spec.parameters) out.trainable.push_back(parameter.trainable);
  if (lender != nullptr) {
    for (const auto& alike : model::frozen_alike(spec, *lender))
      out.lent.push_back(alike.has_value());
  }
  for (const auto& stage : spec.stages) {
    out.stages.push_back(stage.parameters);
    for (const model::Operation& operation : stage.operations) {
      const auto* norm = std::get_if<model::Norm>(&operation);
      out.head_norms = out.head_norms || (norm != nullptr && norm->in == norm->out);
    }
  }
  return out;
}

}  // namespace trireme::machine
