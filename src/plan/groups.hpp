// Which ranks of a job work together, and what they share because of it.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/plan/decisions.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::plan {

// The trainers among which trainer `rank` shards its models.
std::vector<int> shard_group(const Job& job, int rank);
// The reward ranks among which reward rank `rank` shards the frozen models.
std::vector<int> reward_group(const Job& job, int rank);
bool one_node(const Job& job, const std::vector<int>& ranks);

// Every generator is a trainer and reads whole weights in the window of its shard group: it has no
// copy of its own. The program looks for the window itself (driver::shared_weights()).
bool reads_in_place(const Job& job);

// Each rank has a GPU of its own, where there are GPUs.
SyncWay sync_way(const Job& job);

// What NCCL holds on the device of `rank` for its communicators: one of its own for each set of
// ranks, from which the others of the same ranks in the same order are split off
// (comm/nccl_comm.hpp).
int64_t nccl_bytes(const Job& job, int rank);

inline constexpr int64_t nccl_communicator = int64_t{700} << 20;  // a reading of others
// NCCL 2.28.9 by its sources: one that is split off uses the connections, their buffers and those
// of NVLS of the first one (init.cc, nvls.cc). Of its own are tables, the peers and the ring of
// each channel (channel.cc) and its view on the device; each takes what the driver gives at least,
// 2 MiB.
inline constexpr int64_t nccl_channels = 64;  // at most
inline constexpr int64_t nccl_split_off = (2 * nccl_channels + 1) * (int64_t{2} << 20);

}  // namespace trireme::plan
