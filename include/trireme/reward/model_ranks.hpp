// The ranks of the reward role, and which of them cut one copy of its frozen models.
#pragma once

#include <optional>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/mesh.hpp"

namespace trireme::reward {

struct ModelRanks {
  ModelRanks() = default;
  ModelRanks(const comm::CommView& together)
      : all(together), shard(together) {}  // one copy, cut over all of them
  explicit ModelRanks(const comm::Mesh& mesh)
      : all(mesh.all()),
        shard(mesh.along(comm::Axis::shard)),
        copies(mesh.along(comm::Axis::data)) {}

  comm::CommView all, shard;
  std::optional<comm::CommView> copies;  // ranks that hold the same rows as this one
};

}  // namespace trireme::reward
