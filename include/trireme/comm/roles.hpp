// Who does what: the role map of the deck as meshes of ranks. The only place that knows world
// ranks.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/mesh.hpp"
#include "trireme/comm/ring_memory.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"

namespace trireme::comm {

// Destroyed in the same order everywhere: the meshes own communicators.
struct Roles {
  CommView world;
  config::RoleMap map;
  NodeTopology topology;

  bool trainer = false;
  bool generator = false;
  bool reward = false;

  // How the ranks of each role divide their work. Trainers: data x shard, a line along `shard`
  // being a shard group. Generators: data x tensor, a line along `tensor` being a replica. Rewards,
  // whose models are frozen: like trainers.
  Mesh trainers;
  Mesh generators;
  Mesh rewards;

  std::shared_ptr<RingMemory> rings =
      std::make_shared<RingMemory>();  // of all models of this rank: they run one after the other

  int tensor_parallel() const { return generators.size(Axis::tensor); }
  int replicas() const { return generators.size(Axis::data); }
  // World ranks: [replica][tensor-parallel rank], [group][shard].
  std::vector<std::vector<int>> replica_ranks() const { return generators.lines(Axis::tensor); }
  std::vector<std::vector<int>> shard_ranks() const { return trainers.lines(Axis::shard); }
  // First tensor-parallel rank of its replica: the one that hands samples on.
  bool leads_replica() const { return generator && generators.place(Axis::tensor) == 0; }
  // Of the trainers that hold the same rows of a model the one that writes them.
  bool writes_shard() const { return trainer && trainers.place(Axis::data) == 0; }
  // 1 for those of trainer, generator, reward that this rank has.
  std::array<int, 3> of_rank() const { return {trainer, generator, reward}; }
  // "trainer, generator" for tables.
  std::string text() const;
};

// Throws UserError(configuration): ranks that do not exist, generator ranks that are no multiple of
// the tensor-parallel degree, trainer ranks that are no multiple of train.shard_group.
Roles make_roles(const config::Options& options, const CommView& world);

}  // namespace trireme::comm
