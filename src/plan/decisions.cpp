#include "trireme/plan/decisions.hpp"

#include <algorithm>

namespace trireme::plan {

SyncWay sync_way(const config::Options& options, const config::RoleMap& roles, bool on_device,
                 bool shares_devices) {
  if (!on_device || options.weightsync.shared_memory != config::SharedMemory::automatic)
    return SyncWay::buckets;
  const bool all_train = std::ranges::all_of(roles.generator, [&](int rank) {
    return std::ranges::find(roles.trainer, rank) != roles.trainer.end();
  });
  if (all_train) return SyncWay::gathers;
  return shares_devices ? SyncWay::buckets : SyncWay::messages;
}

std::vector<int> sync_ranks(const config::RoleMap& roles) {
  std::vector<int> ranks = roles.trainer;
  ranks.insert(ranks.end(), roles.generator.begin(), roles.generator.end());
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  return ranks;
}

bool sends_deltas(const config::Options& options, bool on_device, bool on_one_node) {
  return options.weightsync.delta && !on_device &&
         !(on_one_node && config::shares(options.weightsync.shared_memory));
}

bool may_read_in_place(const config::Options& options) {
  return options.generate.tensor_parallel == 1 &&
         options.weightsync.shared_memory == config::SharedMemory::automatic;
}

bool caches_give_way(const config::Options& options, bool trains, bool beside_trainers) {
  if (options.train.async_depth == 0) return trains || beside_trainers;
  return trains && options.train.partial_rollout_enable && options.generate.tensor_parallel == 1;
}

}  // namespace trireme::plan
