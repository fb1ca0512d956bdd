#include "trireme/comm/roles.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::comm {
namespace {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Mesh trainer_mesh(const config::Options& options, const Roles& roles) {
  const auto count = static_cast<int>(roles.map.trainer.size());
  const int group =
      options.train.shard_group > 0 ? static_cast<int>(options.train.shard_group) : count;
  return {roles.world, roles.map.trainer, {.data = count / group, .shard = group}, "trainers"};
}

Mesh reward_mesh(const config::Options& options, const Roles& roles) {
  const int group = config::reward_shard_size(options, roles.map);
  const int copies = group > 0 ? static_cast<int>(roles.map.reward.size()) / group : 1;
  return {roles.world, roles.map.reward, {.data = copies, .shard = group}, "rewards"};
}

}  // namespace

std::string Roles::text() const {
  std::vector<std::string> names;
  if (trainer) names.emplace_back("trainer");
  if (generator) names.emplace_back("generator");
  if (reward) names.emplace_back("reward");
  return names.empty() ? "idle" : base::join(names);
}

Roles make_roles(const config::Options& options, const CommView& world) {
  Roles roles;
  roles.world = world;
  roles.topology = discover(world);
  roles.map = config::resolve_ranks(options.ranks, world.size(), roles.topology.node_of);
  config::check_placement(options, roles.map);
  roles.trainer = contains(roles.map.trainer, world.rank());
  roles.generator = contains(roles.map.generator, world.rank());
  roles.reward = contains(roles.map.reward, world.rank());
  roles.trainers = trainer_mesh(options, roles);
  roles.generators =
      mesh_of_replicas(world, roles.topology, roles.map.generator,
                       static_cast<int>(options.generate.tensor_parallel), "generators");
  roles.rewards = reward_mesh(options, roles);
  return roles;
}

}  // namespace trireme::comm
