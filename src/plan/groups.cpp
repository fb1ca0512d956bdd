#include "plan/groups.hpp"

#include <algorithm>
#include <cstddef>
#include <set>

#include "trireme/base/checked.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::plan {
namespace {

bool is_among(const std::vector<int>& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

// Of `ranks`, cut into groups of `size`, those that have `rank`.
std::vector<int> group_of(const std::vector<int>& ranks, int rank, size_t size) {
  if (size >= ranks.size()) return ranks;
  const auto first =
      static_cast<size_t>(std::ranges::find(ranks, rank) - ranks.begin()) / size * size;
  return {ranks.begin() + static_cast<std::ptrdiff_t>(first),
          ranks.begin() + static_cast<std::ptrdiff_t>(first + size)};
}

int64_t nccl_window_bytes(int64_t ranks) {
  constexpr int64_t granule = int64_t{2} << 20, barriers = int64_t{64} << 10;  // at most
  return base::round_up(ranks * nccl_window_of_rank + barriers, granule);
}

// Trainers that hold the same shard as `rank`.
std::vector<int> replicas_of(const Job& job, int rank) {
  const auto& ranks = job.roles.trainer;
  const size_t group = shard_group(job, rank).size();
  std::vector<int> out;
  for (size_t i = static_cast<size_t>(std::ranges::find(ranks, rank) - ranks.begin()) % group;
       i < ranks.size(); i += group)
    out.push_back(ranks[i]);
  return out;
}

}  // namespace

std::vector<int> shard_group(const Job& job, int rank) {
  const auto wish = static_cast<size_t>(job.options.train.shard_group);
  return wish == 0 ? job.roles.trainer : group_of(job.roles.trainer, rank, wish);
}

std::vector<int> reward_group(const Job& job, int rank) {
  return group_of(job.roles.reward, rank,
                  static_cast<size_t>(config::reward_shard_size(job.options, job.roles)));
}

bool one_node(const Job& job, const std::vector<int>& ranks) {
  const auto node = [&](int rank) { return job.node_of_rank[static_cast<size_t>(rank)]; };
  return std::ranges::all_of(ranks, [&](int rank) { return node(rank) == node(ranks.front()); });
}

std::vector<int> replica_of(const Job& job, int rank) {
  for (auto& replica :
       config::replica_groups(job.roles.generator, job.node_of_rank,
                              static_cast<int>(job.options.generate.tensor_parallel))) {
    if (is_among(replica, rank)) return replica;
  }
  return {};
}

bool sums_in_window(const Job& job, const std::vector<int>& replica) {
  return job.machine.device_bytes > 0 && job.own_kernels && job.options.generate.fused_operators &&
         replica.size() > 1 && one_node(job, replica);
}

bool reads_in_place(const Job& job) {
  if (job.machine.device_bytes > 0 || !may_read_in_place(job.options)) return false;
  return std::ranges::all_of(job.roles.generator, [&](int rank) {
    return is_among(job.roles.trainer, rank) && one_node(job, shard_group(job, rank));
  });
}

SyncWay sync_way(const Job& job) {
  return sync_way(job.options, job.roles, job.machine.device_bytes > 0, false);
}

int64_t nccl_bytes(const Job& job, int rank) {
  const bool ppo = job.command == config::Command::ppo;
  const bool with_trainers = config::trainers_have_reference(job.options, job.command);
  std::vector<std::vector<int>> groups;  // one for each communicator
  const auto add = [&](const std::vector<int>& ranks, size_t count) {
    groups.insert(groups.end(), count, ranks);
  };
  if (is_among(job.roles.trainer, rank)) {
    const size_t trained = job.models.critic ? 2 : 1;
    add(shard_group(job, rank), trained + (job.models.reference && with_trainers ? 1 : 0));
    if (const auto replicas = replicas_of(job, rank); replicas.size() > 1) add(replicas, trained);
  }
  if (ppo && is_among(job.roles.reward, rank))
    add(reward_group(job, rank),
        job.models.reward_models.size() + (job.models.reference && !with_trainers ? 1 : 0));
  int64_t windows = 0;
  if (ppo && job.options.generate.tensor_parallel > 1 && is_among(job.roles.generator, rank)) {
    const auto replica = replica_of(job, rank);
    add(replica, 1);
    if (sums_in_window(job, replica)) windows = nccl_window_bytes(std::ssize(replica));
  }
  if (const auto ranks = sync_ranks(job.roles);
      ppo && sync_way(job) == SyncWay::messages && is_among(ranks, rank))
    add(ranks, 1);
  const auto first = static_cast<int64_t>(std::set(groups.begin(), groups.end()).size());
  return first * nccl_communicator +
         (static_cast<int64_t>(groups.size()) - first) * nccl_split_off + windows;
}

}  // namespace trireme::plan
