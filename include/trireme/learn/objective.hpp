// What supervised training minimises: the language-model loss (sft), the pairwise loss of a reward
// model (rm), or a preference loss (dpo). The loop around them is the same. Legend: T packed
// tokens, P pairs, D hidden, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/learn/device_sums.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/learn/training_set.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

// One micro-batch on the device, which is never empty, and what its losses are divided by.
struct ObjectiveInput {
  const at::Tensor& hidden;                // [T, D]
  const kernels::HeadWeight& head_weight;  // [V, D] or [1, D]
  const ActionBatch& batch;                // of pairs: chosen, rejected, chosen, ...
  const RowBatch& rows;
  size_t number = 0;  // of the micro-batch in its step, on this rank
  const BatchTotals& totals;
};

// All micro-batches of an optimizer step, as a rank has them before the first gradient.
struct ObjectiveStep {
  zero::ShardedModel& model;
  std::span<const RowBatch> batches;
  const comm::CommView& ranks;
  at::Device device;
};

class Objective {
 public:
  virtual ~Objective() = default;

  virtual model::HeadKind head() const = 0;
  // Names of what loss() adds up; the first is "loss".
  virtual std::vector<std::string> quantities() const = 0;
  // Before the first micro-batch of a step, for what a loss has to know of all of them. Collective
  // over the trainers.
  virtual void begin_step(const ObjectiveStep&) {}
  // Before loss() of the same micro-batch, which may be empty; `model` is the trained one.
  // Collective over the trainers.
  virtual void prepare(zero::ShardedModel& /*model*/, const ActionBatch&) {}
  // The micro-batch's part of the loss of all rows: differentiable, already divided by the totals.
  // Adds its part of each quantity's mean to `means`. The host waits for no device.
  virtual at::Tensor loss(const ObjectiveInput& input, DeviceSums& means) = 0;
  // Reported means over all micro-batches and ranks, by name.
  virtual std::vector<std::pair<std::string, double>> metrics(std::span<const double> means,
                                                              const BatchTotals& totals) const;
  // Of the rewards of all answers, where the objective gives rewards: what reward.normalize_enable
  // needs of the exported model.
  struct RewardMoments {
    double mean, deviation;
  };
  virtual std::optional<RewardMoments> reward_moments(std::span<const double>,
                                                      const BatchTotals&) const {
    return std::nullopt;
  }
};

// `reference`: the frozen model of dpo where its loss has one, the teacher of sft
// (config::has_reference_model); else null. Local.
std::unique_ptr<Objective> make_objective(const config::Options& options, config::Command command,
                                          std::unique_ptr<zero::ShardedModel> reference);

}  // namespace trireme::learn
