// Golden models with adapters, and pairs of rows for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>

#include "parity/golden_rows.hpp"
#include "parity/ranks.hpp"
#include "support/golden.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/ppo/preference.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::test {

constexpr int64_t few_tokens = 30;  // several micro-batches where a rank has more than one row

// A model with its adapter, and where its weights come from.
struct Adapted {
  explicit Adapted(const GoldenCase& c) {
    const auto folder = model::open_model(model_path(c));
    const auto adapter = model::open_adapter(Golden::folder() / c.word("adapter").value());
    const auto head = folder.shape.score_head ? model::HeadKind::score : model::HeadKind::language;
    spec = model::with_adapter(model::describe(folder.shape, head), adapter.adapter, c.name);
    weights = model::adapted_weights(spec, folder.weights, &adapter);
  }
  zero::ShardedModel load(const model::ModelSpec& which,
                          const std::shared_ptr<const model::WeightSource>& from) const {
    zero::ShardedModel out(which, world(), std::nullopt, at::kCPU, {.compute = config::DType::f32});
    out.load([&](size_t p, const base::Block& block, float* values) {
      model::load_parameter(which, p, block, *from, 0, values);
    });
    return out;
  }
  zero::ShardedModel load() const { return load(spec, weights); }

  model::ModelSpec spec;
  std::shared_ptr<const model::WeightSource> weights;
};

// Chosen rows of this rank, then the rejected ones, as one micro-batch.
struct PairRows {
  explicit PairRows(const GoldenCase& c)
      : PairRows(side_of(c, "chosen_"), side_of(c, "rejected_")) {}
  PairRows(GoldenRows its_chosen, GoldenRows its_rejected)
      : chosen(std::move(its_chosen)), rejected(std::move(its_rejected)) {
    Samples all;
    for (GoldenRows* side : {&chosen, &rejected}) {
      for (int64_t i = 0; i < side->samples().size(); ++i) all.append(side->samples(), i);
    }
    batch = learn::make_action_batch(all, at::kCPU);
  }
  static GoldenRows side_of(const GoldenCase& c, const std::string& prefix) {
    GoldenRows rows(c, prefix);
    if (c.has_input(prefix + "mask")) rows.set_action_mask(c.input(prefix + "mask"));
    return rows;
  }
  // Of [2 n].
  ppo::Pairs sides(const at::Tensor& values) const {
    const int64_t n = values.size(0) / 2;
    return {values.narrow(0, 0, n), values.narrow(0, n, n)};
  }

  GoldenRows chosen, rejected;
  learn::ActionBatch batch;
};

// What a step of DPO computes.
struct PreferenceStep {
  at::Tensor policy = at::empty({0}), reference = at::empty({0});
  double loss = 0;  // of all ranks
};

// Adds the gradients of a step of DPO.
PreferenceStep preference_gradients(const GoldenCase& c, zero::ShardedModel& model,
                                    const PairRows& rows);

using ValuesOf = base::Placed<float> (zero::ShardedModel::*)(size_t);

// All outputs "<kind>/<key of adapter_model.safetensors>", and that nothing else is trained.
void expect_trained(const GoldenCase& c, const std::string& kind, zero::ShardedModel& model,
                    ValuesOf values, double factor = 1);

// Fifty steps of one of TRL's trainers (tests/gold/lora_steps).
void check_trainer_steps(const GoldenCase& c);

}  // namespace trireme::test
