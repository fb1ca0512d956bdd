// A small actor of this test's ranks, which all train and generate.
#pragma once

#include <memory>
#include <vector>

#include "driver/checkpointing.hpp"
#include "support/samples.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/learn/sharded_models.hpp"
#include "trireme/model/spec.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::driver {

struct TinyActor {
  explicit TinyActor(const config::Options& options_of_run, bool tracks_changes = false)
      : options(options_of_run),
        roles(comm::make_roles(options, test::world())),
        spec(described(options)),
        model(learn::make_sharded(roles.trainers, spec, at::kCPU,
                                  {.compute = config::DType::f32,
                                   .track_changes = tracks_changes,
                                   .rings = roles.rings})) {
    model->load(test::initial_reader(spec));
  }
  static model::ModelSpec described(const config::Options& options) {
    auto spec = model::describe(test::tiny_shape(test::Tied::no), model::HeadKind::language);
    model::freeze(spec, options.actor.freeze, "actor.freeze");
    return spec;
  }
  // The values of this rank's shards, one parameter behind the other.
  std::vector<float> values(SavedArray array = &zero::ShardedModel::master) const {
    std::vector<float> all;
    for (size_t p = 0; p < spec.parameters.size(); ++p) {
      if (!spec.parameters[p].trainable) continue;
      const float* values = (model.get()->*array)(p).host();
      if (values) all.insert(all.end(), values, values + model->own(p).elements());
    }
    return all;
  }
  // One optimizer step. Collective.
  void learn(uint64_t seed) {
    const auto batch =
        test::tiny_batch(spec.shape, seed + static_cast<uint64_t>(test::world().rank()), {5, 7});
    model->forward_backward(batch, test::loss_of(spec, batch));
    static_cast<void>(model->step({.lr = 1e-2}));
  }

  const config::Options& options;
  comm::Roles roles;
  model::ModelSpec spec;
  std::unique_ptr<zero::ShardedModel> model;
};

}  // namespace trireme::driver
