// The ranks of the reward role, which of them cut one copy of its frozen models, and the memory in
// which these are gathered.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/mesh.hpp"
#include "trireme/comm/ring_memory.hpp"

namespace trireme::reward {

struct ModelRanks {
  ModelRanks() = default;
  using Rings = std::shared_ptr<comm::RingMemory>;
  ModelRanks(const comm::CommView& together, Rings its_rings = nullptr)
      : all(together), shard(together), rings(std::move(its_rings)) {}  // one copy, cut over all
  ModelRanks(const comm::Mesh& mesh, Rings its_rings)
      : all(mesh.all()),
        shard(mesh.along(comm::Axis::shard)),
        copies(mesh.along(comm::Axis::data)),
        rings(std::move(its_rings)) {}

  comm::CommView all, shard;
  std::optional<comm::CommView> copies;  // ranks that hold the same rows as this one
  Rings rings;                           // ShardedModelOptions::rings
};

}  // namespace trireme::reward
