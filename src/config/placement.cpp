#include "trireme/config/placement.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

using Group = std::vector<int>;

int node_at(std::span<const int> node_of_rank, int rank) {
  return node_of_rank[static_cast<size_t>(rank)];
}

std::vector<int> nodes_of(std::span<const int> ranks, std::span<const int> node_of_rank) {
  std::set<int> nodes;
  for (const int rank : ranks) nodes.insert(node_at(node_of_rank, rank));
  return {nodes.begin(), nodes.end()};
}

std::map<int, Group> by_node(std::span<const int> ranks, std::span<const int> node_of_rank) {
  std::map<int, Group> out;
  for (const int rank : ranks) out[node_at(node_of_rank, rank)].push_back(rank);
  return out;
}

// Consecutive ranks, as zero cuts its shard groups.
std::vector<Group> consecutive_groups(const Group& ranks, size_t size) {
  std::vector<Group> out;
  for (size_t i = 0; i + size <= ranks.size(); i += size) {
    out.emplace_back(ranks.begin() + static_cast<std::ptrdiff_t>(i),
                     ranks.begin() + static_cast<std::ptrdiff_t>(i + size));
  }
  return out;
}

// The largest group size up to `size` that lets every node's share of `ranks` be cut into whole
// groups.
int size_inside_nodes(const Group& ranks, std::span<const int> node_of_rank, int size) {
  const auto nodes = by_node(ranks, node_of_rank);
  for (int smaller = size; smaller > 1; --smaller) {
    const bool fits = std::all_of(nodes.begin(), nodes.end(), [&](const auto& node) {
      return static_cast<int>(node.second.size()) % smaller == 0;
    });
    if (fits) return smaller;
  }
  return 1;
}

// "0-7, 8-15, ... 24-31"
std::string list_groups(const std::vector<Group>& groups) {
  constexpr size_t shown = 4;
  std::vector<std::string> texts;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups.size() > shown + 1 && i == shown) {
      texts.push_back("... " + rank_ranges(groups.back()));
      break;
    }
    texts.push_back(rank_ranges(groups[i]));
  }
  return base::join(texts, " | ");
}

int shard_group_size(const Options& options, const RoleMap& roles) {
  return options.train.shard_group > 0 ? static_cast<int>(options.train.shard_group)
                                       : static_cast<int>(roles.trainer.size());
}

std::string replica_warning(const Options& options, const RoleMap& roles,
                            std::span<const int> node_of_rank) {
  const auto degree = static_cast<int>(options.generate.tensor_parallel);
  for (const Group& replica : replica_groups(roles.generator, node_of_rank, degree)) {
    const auto nodes = nodes_of(replica, node_of_rank);
    if (nodes.size() == 1) continue;
    return base::text("the generator replica of ranks ", rank_ranges(replica), " lies on nodes ",
                      rank_ranges(nodes),
                      " (every token of it waits for the network): set generate.tensor_parallel = ",
                      size_inside_nodes(roles.generator, node_of_rank, degree),
                      ", or give ranks.generator whole nodes (\"nodes:...\")");
  }
  return "";
}

// Groups of several whole nodes are meant so; a group that takes a part of a node and ranks of
// another is not.
std::string shard_warning(const Options& options, const RoleMap& roles,
                          std::span<const int> node_of_rank) {
  const int size = shard_group_size(options, roles);
  if (size == static_cast<int>(roles.trainer.size())) return "";
  const auto all = by_node(roles.trainer, node_of_rank);
  for (const Group& group : consecutive_groups(roles.trainer, static_cast<size_t>(size))) {
    const auto mine = by_node(group, node_of_rank);
    const auto partly = [&](const auto& node) { return node.second != all.at(node.first); };
    if (mine.size() == 1 || std::none_of(mine.begin(), mine.end(), partly)) continue;
    return base::text("the shard group of ranks ", rank_ranges(group), " takes parts of nodes ",
                      rank_ranges(nodes_of(group, node_of_rank)),
                      " (its weights are gathered over the network): set ",
                      "train.shard_group = ", size_inside_nodes(roles.trainer, node_of_rank, size),
                      ", which stays inside a node, or 0");
  }
  return "";
}

std::string idle_warning(const RoleMap& roles, int world) {
  Group idle;
  for (int rank = 0; rank < world; ++rank) {
    const auto in = [rank](const Group& set) {
      return std::binary_search(set.begin(), set.end(), rank);
    };
    if (!in(roles.trainer) && !in(roles.generator) && !in(roles.reward)) idle.push_back(rank);
  }
  if (idle.empty()) return "";
  return base::text("no role uses rank", idle.size() == 1 ? " " : "s ", rank_ranges(idle),
                    ": raise a count in [ranks], or start fewer ranks");
}

std::string role_line(std::string_view role, const Group& ranks, std::span<const int> node_of_rank,
                      const std::string& more) {
  const auto nodes = nodes_of(ranks, node_of_rank);
  std::string line = base::text(role, std::string(role.size() < 11 ? 11 - role.size() : 1, ' '),
                                "ranks ", rank_ranges(ranks), "  ",
                                nodes.size() == 1 ? "node " : "nodes ", rank_ranges(nodes));
  return more.empty() ? line : line + "  " + more;
}

}  // namespace

std::vector<int> block_nodes(int ranks, int per_node) {
  EXPECT(ranks > 0 && per_node > 0);
  std::vector<int> out(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) out[static_cast<size_t>(rank)] = rank / per_node;
  return out;
}

std::vector<Group> replica_groups(std::span<const int> generators,
                                  std::span<const int> node_of_rank, int degree) {
  EXPECT(degree > 0 && static_cast<int>(generators.size()) % degree == 0);
  std::vector<Group> groups;
  Group left;
  for (const auto& [node, ranks] : by_node(generators, node_of_rank)) {
    const auto whole = consecutive_groups(ranks, static_cast<size_t>(degree));
    groups.insert(groups.end(), whole.begin(), whole.end());
    left.insert(left.end(), ranks.begin() + static_cast<std::ptrdiff_t>(whole.size()) * degree,
                ranks.end());
  }
  std::sort(left.begin(), left.end());
  const auto joined = consecutive_groups(left, static_cast<size_t>(degree));
  groups.insert(groups.end(), joined.begin(), joined.end());
  std::sort(groups.begin(), groups.end());
  return groups;
}

void check_placement(const Options& options, const RoleMap& roles) {
  const auto trainers = static_cast<int>(roles.trainer.size());
  const int group = shard_group_size(options, roles);
  VALIDATE(group <= trainers && trainers % group == 0, ExitCode::configuration,
           "train.shard_group = ", group, " does not divide the ", trainers,
           " trainer ranks: choose a divisor, or 0 to shard over all of them");
  const auto generators = static_cast<int>(roles.generator.size());
  const auto degree = static_cast<int>(options.generate.tensor_parallel);
  VALIDATE(degree <= generators && generators % degree == 0, ExitCode::configuration,
           "generate.tensor_parallel = ", degree, " does not divide the ", generators,
           " generator ranks (ranks.generator = ", rank_ranges(roles.generator),
           "): change one of the two");
  if (options.train.partial_rollout_order != PartialRolloutOrder::finished) return;
  VALIDATE(degree == 1, ExitCode::configuration,
           "train.partial_rollout_order = \"finished\" with generate.tensor_parallel = ", degree,
           " (the ranks of a replica would have to agree on what is finished first): set "
           "\"drawn\", or 1");
  for (const int rank : roles.generator) {
    VALIDATE(std::find(roles.trainer.begin(), roles.trainer.end(), rank) == roles.trainer.end(),
             ExitCode::configuration, "train.partial_rollout_order = \"finished\", but rank ", rank,
             " generates and trains (it cannot write on while it trains): set \"drawn\", or ",
             "give the roles ranks of their own, e.g. ranks.trainer and ranks.generator");
  }
}

int reward_shard_size(const Options& options, const RoleMap& roles) {
  const auto count = static_cast<int>(roles.reward.size());
  const auto group = static_cast<int>(options.train.shard_group);
  return group > 0 && group < count && count % group == 0 ? group : count;
}

bool reward_shares_trainers(const Options& options, const RoleMap& roles) {
  return roles.reward == roles.trainer &&
         reward_shard_size(options, roles) == shard_group_size(options, roles);
}

std::vector<std::string> placement_warnings(const Options& options, const RoleMap& roles,
                                            std::span<const int> node_of_rank) {
  std::vector<std::string> out;
  for (const auto& warning :
       {replica_warning(options, roles, node_of_rank), shard_warning(options, roles, node_of_rank),
        idle_warning(roles, static_cast<int>(node_of_rank.size()))}) {
    if (!warning.empty()) out.push_back(warning);
  }
  return out;
}

std::vector<std::string> describe_placement(const Options& options, const RoleMap& roles,
                                            std::span<const int> node_of_rank) {
  const auto shards =
      consecutive_groups(roles.trainer, static_cast<size_t>(shard_group_size(options, roles)));
  const auto replicas = replica_groups(roles.generator, node_of_rank,
                                       static_cast<int>(options.generate.tensor_parallel));
  const std::string sharding =
      shards.size() == 1 ? base::text("sharded over ", roles.trainer.size())
                         : base::text(shards.size(), " shard groups: ", list_groups(shards));
  const std::string copies =
      options.generate.tensor_parallel == 1
          ? base::text(replicas.size(), replicas.size() == 1 ? " replica" : " replicas of one rank")
          : base::text(replicas.size(),
                       replicas.size() == 1 ? " replica: " : " replicas: ", list_groups(replicas));
  const int scorers = reward_shard_size(options, roles);
  const auto copies_of_judges =
      scorers == static_cast<int>(roles.reward.size())
          ? std::vector<Group>{}
          : consecutive_groups(roles.reward, static_cast<size_t>(scorers));
  const std::string judges =
      copies_of_judges.empty()
          ? ""
          : base::text(copies_of_judges.size(), " shard groups: ", list_groups(copies_of_judges));
  return {role_line("trainer", roles.trainer, node_of_rank, sharding),
          role_line("generator", roles.generator, node_of_rank, copies),
          role_line("reward", roles.reward, node_of_rank, judges)};
}

}  // namespace trireme::config
