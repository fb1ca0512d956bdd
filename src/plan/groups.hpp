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
// The generators that share the weights of generator `rank`.
std::vector<int> replica_of(const Job& job, int rank);
// Products of a replica's decoding are summed in a symmetric window of NCCL
// (comm::RankSums::open_window()), unless its GPUs lack access to each other.
bool sums_in_window(const Job& job, const std::vector<int>& replica);

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
// The same for the first symmetric window: what its kernels send through (sym_kernels.cc,
// ncclSymkInitOnce; ll_a2a.cc), two times 512 values of 16 bytes from each rank for each of 64
// blocks.
inline constexpr int64_t nccl_window_of_rank = int64_t{64} * 2 * 512 * 16;

}  // namespace trireme::plan
