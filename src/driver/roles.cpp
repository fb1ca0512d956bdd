#include "driver/roles.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::driver {
namespace {

bool contains(const std::vector<int>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

int index_in(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

void make_trainers(Roles& roles, const config::Options& options) {
  const auto& ranks = roles.map.trainer;
  const auto count = static_cast<int>(ranks.size());
  const int group = options.train.shard_group > 0 ? static_cast<int>(options.train.shard_group) : count;
  roles.shard_groups = count / group;
  roles.trainers = comm::Comm::subset(roles.world, ranks, "trainers");
  const int mine = roles.trainer ? index_in(ranks, roles.world.rank()) : -1;
  roles.shard_group = comm::Comm::split(roles.world, mine < 0 ? -1 : mine / group, mine, "shard group");
  roles.shard_replicas = comm::Comm::split(roles.world, mine < 0 ? -1 : mine % group, mine, "shard replicas");
}

void make_generators(Roles& roles, const config::Options& options) {
  roles.tensor_parallel = static_cast<int>(options.generate.tensor_parallel);
  const auto groups = roles.replica_ranks();
  roles.replicas = static_cast<int>(groups.size());
  int place = -1;
  for (int replica = 0; replica < roles.replicas; ++replica) {
    const auto& group = groups[static_cast<size_t>(replica)];
    if (!contains(group, roles.world.rank())) continue;
    roles.replica = replica;
    place = index_in(group, roles.world.rank());
  }
  roles.tensor_ranks = comm::Comm::split(roles.world, roles.replica, place, "tensor-parallel ranks");
}

}  // namespace

std::vector<std::vector<int>> Roles::replica_ranks() const {
  return config::replica_groups(map.generator, topology.node_of, tensor_parallel);
}

std::vector<std::vector<int>> Roles::shard_ranks() const {
  std::vector<std::vector<int>> out(static_cast<size_t>(shard_groups));
  const size_t group = map.trainer.size() / out.size();
  for (size_t i = 0; i < map.trainer.size(); ++i) out[i / group].push_back(map.trainer[i]);
  return out;
}

std::string Roles::text() const {
  std::vector<std::string> names;
  if (trainer) names.emplace_back("trainer");
  if (generator) names.emplace_back("generator");
  if (reward) names.emplace_back("reward");
  return names.empty() ? "idle" : base::join(names);
}

Roles make_roles(const config::Options& options, const comm::CommView& world) {
  Roles roles;
  roles.world = world;
  roles.topology = comm::discover(world);
  roles.map = config::resolve_ranks(options.ranks, world.size(), roles.topology.node_of);
  config::check_placement(options, roles.map);
  roles.trainer = contains(roles.map.trainer, world.rank());
  roles.generator = contains(roles.map.generator, world.rank());
  roles.reward = contains(roles.map.reward, world.rank());
  make_trainers(roles, options);
  make_generators(roles, options);
  roles.rewards = comm::Comm::subset(world, roles.map.reward, "rewards");
  return roles;
}

}  // namespace trireme::driver
