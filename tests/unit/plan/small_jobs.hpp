// A model that is small enough to add up by hand, and jobs of it.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "layouts.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/config/ranks.hpp"
#include "trireme/plan/admission.hpp"

namespace trireme::test {

inline config::ModelShape small_shape(int64_t layers = 1, int64_t heads = 2, int64_t kv_heads = 1) {
  config::ModelShape shape;
  shape.layers = layers;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.hidden = 8;
  shape.head_dim = 4;
  shape.ffn = 16;
  shape.vocab = 10;
  shape.max_positions = 4096;
  return shape;
}

struct SmallJob {
  SmallJob(config::Options wanted, const config::ModelShape& shape, int nodes, int per_node,
           plan::Machine on)
      : options(std::move(wanted)),
        actor(model::describe(shape, model::HeadKind::language)),
        machine(std::move(on)),
        node_of_rank(config::block_nodes(nodes * per_node, per_node)),
        roles(config::resolve_ranks(options.ranks, nodes * per_node, node_of_rank)) {
    models.actor = layout(actor);
    models.slices =
        model::tensor_parallel_layout(actor, static_cast<int>(options.generate.tensor_parallel));
    models.reference = models.actor;
    models.critic = layout(model::describe(shape, model::HeadKind::score));
  }
  config::DType compute() const {
    return options.model.dtype == config::ComputeType::fp32 ? config::DType::f32
                                                            : config::DType::bf16;
  }
  plan::Job job() const { return {options, roles, node_of_rank, models, machine, compute()}; }
  plan::CutActor cut() const {
    return [this](int degree) { return model::tensor_parallel_layout(actor, degree); };
  }
  // The job of the deck with these overrides, as a user writes them.
  SmallJob with(const std::vector<std::string>& overrides, int more_nodes = 1) const {
    const auto per_node = static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.end(), 0));
    return {config::parse_deck(config::dump_deck(options), "deck", overrides), actor.shape,
            more_nodes * (node_of_rank.back() + 1), per_node, machine};
  }

  config::Options options;
  model::ModelSpec actor;
  plan::Machine machine;
  std::vector<int> node_of_rank;
  config::RoleMap roles;
  plan::JobModels models;
};

}  // namespace trireme::test
