// What supervised training minimises: the language-model loss (sft), the pairwise loss of a reward model (rm), or a preference
// loss against a frozen reference (dpo). The loop around them is the same (step_loop.hpp).
// Legend: T packed tokens, P pairs, D hidden, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "driver/metrics.hpp"
#include "driver/models.hpp"
#include "driver/roles.hpp"
#include "driver/scoring.hpp"
#include "driver/training_set.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::driver {

// One micro-batch on the device, which is never empty, and what its losses are divided by.
struct ObjectiveInput {
  const at::Tensor& hidden;        // [T, D]
  const at::Tensor& head_weight;   // [V, D] or [1, D]
  const ActionBatch& batch;        // of pairs: chosen, rejected, chosen, ...
  std::span<const float> margins;  // [P]
  const BatchTotals& totals;
};

class Objective {
 public:
  virtual ~Objective() = default;

  virtual model::HeadKind head() const = 0;
  // Names of what loss() adds up; the first is "loss".
  virtual std::vector<std::string> quantities() const = 0;
  // Before loss() of the same micro-batch, which may be empty. Collective over the trainers.
  virtual void prepare(const ActionBatch&) {}
  // The micro-batch's part of the loss of all rows: differentiable, already divided by the totals. Adds its part of each
  // quantity's mean to `means`.
  virtual at::Tensor loss(const ObjectiveInput& input, std::span<double> means) = 0;
  // The metrics made of the means over all micro-batches and ranks, each name with `prefix` in front.
  virtual void add_metrics(std::span<const double> means, const BatchTotals& totals, const std::string& prefix,
                           IterationMetrics& metrics) const;
};

// `start`: the model that is trained; dpo loads its reference from reference.path or the same weights. Collective over the
// trainers.
std::unique_ptr<Objective> make_objective(const config::Options& options, config::Command command, const Roles& roles,
                                          const ModelStart& start, at::Device device);
model::HeadKind head_of(config::Command command);

}  // namespace trireme::driver
