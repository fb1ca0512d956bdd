// Trainers' shards to generators' slices: the two layouts and pointers that weightsync works on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "driver/host_mirror.hpp"
#include "driver/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/weightsync/sync.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

class WeightBridge {
 public:
  // Collective over world. `device`: where this rank's actor and generator weights live; from a GPU they go through host memory.
  WeightBridge(const config::Options& options, const Roles& roles, const model::ModelSpec& spec, at::Device device);

  // Collective over world: the generators' weights become the actor's, with this version. Null where this rank lacks the
  // role. Counters of this rank.
  weightsync::SyncCounters run(int64_t version, zero::ShardedModel* actor, generate::GeneratorWeights* weights);
  // For the log; collective.
  std::string describe(const weightsync::SyncCounters& counters) const { return sync_->describe(counters); }

 private:
  int64_t element_bytes_;
  HostMirror shards_;  // the actor's compute-dtype shards
  HostMirror slices_;  // the generator's weights; deltas are applied to what the last sync left there
  std::unique_ptr<weightsync::WeightSync> sync_;
};

}  // namespace trireme::driver
