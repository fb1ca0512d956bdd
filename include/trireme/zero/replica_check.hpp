// Shard groups hold the same weights: bits that differ come from a processor or a memory that
// computes wrong, and no loss shows them.
#pragma once

#include <string>

#include "trireme/zero/sharded_model.hpp"

namespace trireme::zero {

// Compares this rank's fp32 weights and optimizer moments, and frozen weights, with those of
// `replicas`, the ranks that hold copies of them (Axis::data), by digests. Throws
// UserError(internal) on all of them, with the first tensor and its ranks, which are called by
// `world_rank`. Of a GPU's memory through 4 MiB of page-locked host memory. Collective over
// `replicas`.
void require_equal_replicas(const comm::CommView& replicas, int world_rank, const std::string& name,
                            ShardedModel& model);

}  // namespace trireme::zero
