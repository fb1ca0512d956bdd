// How a role map lies on the nodes: which ranks make one generator replica, what of it costs time,
// and the map as text. Pure arithmetic over `node_of_rank` (the node index of each world rank), so
// a job can be looked at before it is submitted.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"

namespace trireme::config {

// Nodes of `ranks` ranks that fill one node after another; the last node may have fewer than
// `per_node`.
std::vector<int> block_nodes(int ranks, int per_node);

// Ranks of each generator replica, [replica][tensor-parallel rank], replicas in the order of their
// first ranks. A replica stays inside a node wherever the node has `degree` generators left; the
// rest of the nodes is joined in rank order. `degree` must divide the number of generators.
std::vector<std::vector<int>> replica_groups(std::span<const int> generators,
                                             std::span<const int> node_of_rank, int degree);

// Throws UserError(configuration), naming key and value: generator ranks that are no multiple of
// the tensor-parallel degree, trainer ranks that are no multiple of train.shard_group.
void check_placement(const Options& options, const RoleMap& roles);

// Reward ranks that cut one copy of the frozen models: train.shard_group where it divides their
// number, else all of them.
int reward_shard_size(const Options& options, const RoleMap& roles);

// Whether reward models are sharded over the trainers' ranks, in the same way as the trained
// models. A reward model that is an adapter on the trained model's base then shares that base.
bool reward_shares_trainers(const Options& options, const RoleMap& roles);

// What of the placement costs time or leaves ranks idle, each with the value to set.
std::vector<std::string> placement_warnings(const Options& options, const RoleMap& roles,
                                            std::span<const int> node_of_rank);

// "trainer    ranks 0-15  nodes 0-1  2 shard groups of 8", a line per role.
std::vector<std::string> describe_placement(const Options& options, const RoleMap& roles,
                                            std::span<const int> node_of_rank);

}  // namespace trireme::config
