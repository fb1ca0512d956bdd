// Memory through which weights go from trainers to generators.
#pragma once

#include <cstdint>

#include "trireme/plan/job.hpp"

namespace trireme::plan {

struct SyncStaging {
  int64_t rings = 0;  // of the host: bytes that this rank gives to its node
  int64_t mapped =
      0;  // of trainers' weights on its node that it reads in place, without being one of them
  int64_t messages = 0;  // buffers of those that it sends and takes
  int64_t device = 0;    // of a GPU: what is packed and unpacked there for messages between GPUs
};

// The staging memory of weightsync/plan.cpp and its engines, from counts of ranks and each slice's
// share of a shard. With more than 32 ranks each of several groups of trainers counts as if it sent
// everything. None where generators read the trainers' weights in place.
SyncStaging sync_staging(const Job& job, int rank);

}  // namespace trireme::plan
