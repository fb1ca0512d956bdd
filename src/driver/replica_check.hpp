// Shard groups hold the same weights: bits that differ come from a processor or a memory that computes wrong, and no loss shows them.
#pragma once

#include <string>

#include "driver/roles.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

// Compares this rank's fp32 weights and optimizer moments with those of its replicas, by digests. Throws UserError(internal) on all of them, with the first
// tensor and its ranks. Host memory only. Collective over the trainers that hold the same rows.
void require_equal_replicas(const Roles& roles, const std::string& name, zero::ShardedModel& model);

}  // namespace trireme::driver
