#include "driver/roles.hpp"

#include <algorithm>
#include <charconv>
#include <sched.h>

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

namespace {

int cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Ranks of `role` on this rank's node.
int on_my_node(const Roles& roles, const std::vector<int>& role) {
  return static_cast<int>(std::count_if(role.begin(), role.end(), [&](int rank) {
    return roles.topology.node_of[static_cast<size_t>(rank)] == roles.topology.node;
  }));
}

}  // namespace

ThreadPlan plan_threads(const config::Options& options, const Roles& roles) {
  const int cores = cores_of_process();
  const std::string& wish = options.run.threads;
  if (wish == "phase") {
    // A core set of one rank (bound by the launcher) is its own; an unbound one is shared by the ranks of a phase.
    const auto share = [&](const std::vector<int>& role) {
      return std::max(1, cores / std::max(1, on_my_node(roles, role)));
    };
    return {share(roles.map.trainer), share(roles.map.generator), share(roles.map.reward)};
  }
  int threads = std::max(1, cores / roles.topology.local_size);
  if (wish != "auto") std::from_chars(wish.data(), wish.data() + wish.size(), threads);
  return {threads, threads, threads};
}

}  // namespace trireme::driver
