// The fullest ranks and nodes of a job, from one rank of each kind.
#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <tuple>

#include "trireme/config/placement.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::plan {
namespace {

// Of the generator's slices on each rank, 0 where it has none. Any place of a replica may have the
// largest: units of 64 leave a rest.
std::vector<int64_t> slice_bytes(const Job& job) {
  std::vector<int64_t> out(job.node_of_rank.size(), 0);
  if (job.command != config::Command::ppo || job.roles.generator.empty()) return out;
  const auto degree = static_cast<int>(job.options.generate.tensor_parallel);
  std::vector<int64_t> of_place;
  for (int place = 0; place < degree; ++place)
    of_place.push_back(
        generator_weight_bytes(job.models.slices, place, config::bytes_per_element(job.compute)));
  for (const auto& replica :
       config::replica_groups(job.roles.generator, job.node_of_rank, degree)) {
    for (size_t place = 0; place < replica.size(); ++place)
      out[static_cast<size_t>(replica[place])] = of_place[place];
  }
  return out;
}

// Of each rank of the job: ranks of its group of `ranks`, cut into groups of `size`, that are on
// its node; 0: it is none of them.
std::vector<int> sharing(const Job& job, const std::vector<int>& ranks, size_t size) {
  std::vector<int> out(job.node_of_rank.size(), 0);
  for (size_t first = 0; first < ranks.size(); first += size) {
    const std::span group = std::span(ranks).subspan(first, std::min(size, ranks.size() - first));
    std::map<int, int> on_node;
    for (const int rank : group) ++on_node[job.node_of_rank[static_cast<size_t>(rank)]];
    for (const int rank : group)
      out[static_cast<size_t>(rank)] = on_node[job.node_of_rank[static_cast<size_t>(rank)]];
  }
  return out;
}

}  // namespace

std::vector<RoleKind> role_kinds(const Job& job) {
  // Roles, and how many share a node's window: of a trainer and of a reward rank its shard group's
  // on the node.
  std::map<std::tuple<bool, bool, bool, int, int>, size_t> place;  // in `out`
  std::vector<RoleKind> out;
  const auto slices = slice_bytes(job);
  const int64_t group = job.options.train.shard_group;
  const auto trainers = sharing(job, job.roles.trainer,
                                group > 0 ? static_cast<size_t>(group) : job.roles.trainer.size());
  const auto judges =
      sharing(job, job.roles.reward,
              static_cast<size_t>(config::reward_shard_size(job.options, job.roles)));
  const auto generators = sharing(job, job.roles.generator, job.roles.generator.size());
  const int nodes = *std::max_element(job.node_of_rank.begin(), job.node_of_rank.end()) + 1;
  for (int rank = 0; rank < static_cast<int>(job.node_of_rank.size()); ++rank) {
    const auto r = static_cast<size_t>(rank);
    const auto [found, fresh] = place.emplace(
        std::tuple{trainers[r] > 0, generators[r] > 0, judges[r] > 0, trainers[r], judges[r]},
        out.size());
    if (fresh) out.push_back({rank, std::vector<int>(static_cast<size_t>(nodes), 0)});
    RoleKind& kind = out[found->second];
    if (slices[static_cast<size_t>(rank)] > slices[static_cast<size_t>(kind.first)])
      kind.first = rank;
    ++kind.ranks_on_node[static_cast<size_t>(job.node_of_rank[static_cast<size_t>(rank)])];
  }
  return out;
}

Fit fit(const Job& job) {
  Fit out;
  const auto kinds = role_kinds(job);
  std::vector<std::array<int64_t, phase_count>> nodes(kinds.front().ranks_on_node.size());
  for (const RoleKind& kind : kinds) {
    const Ledger ledger = memory_of_rank(job, kind.first);
    for (const Place place : {Place::device, Place::host}) {
      Fullest& most = place == Place::device ? out.device : out.host;
      if (ledger.peak(place) > most.peak) most = {kind.first, ledger, ledger.peak(place)};
    }
    for (size_t node = 0; node < nodes.size(); ++node) {
      for (int phase = 0; phase < phase_count; ++phase) {
        nodes[node][static_cast<size_t>(phase)] +=
            kind.ranks_on_node[node] * ledger.bytes(Place::host, static_cast<Phase>(phase));
      }
    }
  }
  for (const auto& node : nodes)
    out.node_bytes = std::max(out.node_bytes, *std::max_element(node.begin(), node.end()));
  out.device_fits = job.machine.device_bytes == 0 || out.device.peak <= job.machine.device_bytes;
  out.host_fits = job.machine.host_bytes == 0 || out.node_bytes <= job.machine.host_bytes;
  return out;
}

}  // namespace trireme::plan
