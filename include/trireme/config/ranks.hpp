// Which rank plays which role: pure arithmetic over the texts of the [ranks] section.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::config {

// Ascending world ranks per role; a rank may stand in several. Every role has at least one rank.
struct RoleMap {
  std::vector<int> trainer;
  std::vector<int> generator;
  std::vector<int> reward;
  bool operator==(const RoleMap&) const = default;
};

// A set is written
//   "4"          four ranks (a count)
//   "0-3,6"      these ranks (a list has a comma or a dash: rank 3 alone is "3-3")
//   "nodes:0-1"  all ranks of these nodes (numbered in the order of their lowest rank)
//   ""           see 3.
//
// How the sets come together, in this order:
//   1. Lists and nodes are what they say and may overlap (colocated roles).
//   2. Counts are laid out one after another, in the order trainer, reward, generator (experience
//   goes from the rewards to the
//      trainers: they lie side by side), on the ranks that no list names. When there are not enough
//      of those for all counts together, each count takes the world's first ranks instead
//      (colocated): "2" and "2" are disjoint on four ranks and colocated on two or three. A count
//      larger than the world is an error.
//   3. Empty: trainer and generator both empty take all ranks. When one of the two is empty, it
//   takes the ranks that the other
//      roles leave, or the same ranks as the other when none is left. An empty reward takes the
//      trainer's ranks when `trainer` is set, else all ranks.
// `node_of_rank[r]` is the node index of world rank r (any numbering; size = world).
// Throws UserError(configuration) naming the key: malformed text, rank or node that does not exist,
// a rank twice in one list.
RoleMap resolve_ranks(const RanksOptions& options, int world, std::span<const int> node_of_rank);

// "trainer 0-3, generator 4-7, reward 0-3": for the log and the planner.
std::string describe(const RoleMap& roles);

// "0-3,6" for {0,1,2,3,6}
std::string rank_ranges(std::span<const int> ranks);

}  // namespace trireme::config
