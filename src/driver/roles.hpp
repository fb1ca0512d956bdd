// Who does what: the role map of the deck as communicators. The only place that knows world ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/ring_memory.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"

namespace trireme::driver {

// Communicators of this rank's roles. Collective construction over world; destroyed in the same order everywhere.
struct Roles {
  comm::CommView world;
  config::RoleMap map;
  comm::NodeTopology topology;

  bool trainer = false;
  bool generator = false;
  bool reward = false;

  comm::Comm trainers;        // null on other ranks
  comm::Comm shard_group;     // of trainers: ranks that cut one copy of the model
  comm::Comm shard_replicas;  // of trainers: ranks that hold the same rows in different groups; one rank when there is one group
  int shard_groups = 1;
  comm::Comm rewards;

  std::shared_ptr<comm::RingMemory> rings = std::make_shared<comm::RingMemory>();  // of all models of this rank: they run one after the other

  int tensor_parallel = 1;
  int replicas = 1;           // generator replicas
  int replica = -1;           // of this rank
  comm::Comm tensor_ranks;    // the ranks of this replica

  // World ranks: [replica][tensor-parallel rank], [group][shard].
  std::vector<std::vector<int>> replica_ranks() const;
  std::vector<std::vector<int>> shard_ranks() const;
  // First tensor-parallel rank of its replica: the one that hands samples on.
  bool leads_replica() const { return generator && tensor_ranks->rank() == 0; }
  bool colocated() const { return map.trainer == map.generator; }
  // "trainer, generator" for tables.
  std::string text() const;
};

// Throws UserError(configuration): ranks that do not exist, generator ranks that are no multiple of the tensor-parallel
// degree, trainer ranks that are no multiple of train.shard_group.
Roles make_roles(const config::Options& options, const comm::CommView& world);

}  // namespace trireme::driver
