// Decisions of the program that the memory plan has to know, too: pure functions of the deck and of
// the places of ranks, which both call. Weight syncs: docs/design/0008.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"

namespace trireme::plan {

// How a weight sync's bytes go, unless generators read the trainers' weights in place.
enum class SyncWay : uint8_t {
  buckets,   // in host memory, between processes
  gathers,   // the trainers' own bring each stage whole; a generator copies its slice of it
  messages,  // from GPU to GPU, each slice from those that have it
};
// On GPUs nothing goes through host memory, with weightsync.shared_memory = "auto": by gathers
// where every generator trains, too, else by messages unless ranks that take part share a GPU,
// which NCCL refuses.
SyncWay sync_way(const config::Options& options, const config::RoleMap& roles, bool on_device,
                 bool shares_devices);
// The ranks of a sync, ascending.
std::vector<int> sync_ranks(const config::RoleMap& roles);

// Whether a sync sends only changed weights: on CPUs, if some flow uses messages
// (weightsync.delta). A GPU's weights would have to be copied to the host to be compared.
bool sends_deltas(const config::Options& options, bool on_device, bool on_one_node);

// Generators may read the trainers' weights where these are. They do if each of them is a trainer
// of a shard group that has whole weights in memory of the node: never on GPUs.
bool may_read_in_place(const config::Options& options);

// A generator gives its KV pages, and on a GPU its weights, back while trainers compute, unless
// there is room for both. `trains`: its rank is a trainer; `beside_trainers`: or one uses its GPU.
// With partial rollouts, too, since new weights come before the next token and keys and values are
// computed again anyway. Not with a larger replica: all its ranks have to run the same sequences,
// and some of them may not train.
bool caches_give_way(const config::Options& options, bool trains, bool beside_trainers);

// fp32 arrays of a trained model in a checkpoint: weights, two moments and the moving average.
constexpr int64_t saved_arrays(bool average) { return average ? 4 : 3; }

}  // namespace trireme::plan
