// Trainers' shards to generators' slices: the two layouts and pointers that weightsync works on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/decisions.hpp"
#include "trireme/weightsync/sync.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

// Where each rank reads the actor's whole weights in place, one pointer per parameter: on every
// generator rank of the job when all of them are trainers whose shard group shares memory, without
// tensor parallelism; else empty on every rank. Not with other weightsync.shared_memory than
// "auto". Collective over world; `actor` is null on ranks that are no trainers.
std::vector<const std::byte*> shared_weights(const config::Options& options,
                                             const comm::Roles& roles, zero::ShardedModel* actor);

class WeightBridge {
 public:
  // Collective over world. `device`: where this rank's actor and generator weights live.
  // `shared`: generators read the actor's weights in place, by shared_weights().
  WeightBridge(const config::Options& options, const comm::Roles& roles,
               const model::ModelSpec& spec, at::Device device, bool shared);

  // Collective over world: the generators' weights become the actor's, with this version; frozen
  // ones are sent where they are missing. Null where this rank lacks the role. Counters of this
  // rank.
  weightsync::SyncCounters run(int64_t version, zero::ShardedModel* actor,
                               generate::GeneratorWeights* weights);
  // Syncs after which a generator's memory differed from the trainers', so that everything was sent
  // again; the same on every rank.
  int64_t healed() const { return healed_; }
  std::string describe() const;  // how they go, for the log
  // Of all ranks; collective. Nothing but times where the weights are shared.
  weightsync::SyncTotals totals(const weightsync::SyncCounters& counters) const;

 private:
  bool gathers() const { return way_ == plan::SyncWay::gathers; }
  weightsync::SyncCounters copy(int64_t version, zero::ShardedModel* actor,
                                generate::GeneratorWeights* weights);
  weightsync::SyncCounters gather(int64_t version, zero::ShardedModel* actor,
                                  generate::GeneratorWeights* weights);
  // Frozen weights are to be sent, too: for the first time, or since a generator gave its memory
  // back. Collective over world.
  bool sends_frozen(const generate::GeneratorWeights* weights) const;
  weightsync::SyncCounters share(int64_t version, zero::ShardedModel* actor,
                                 generate::GeneratorWeights* weights) const;

  const comm::Roles& roles_;
  int64_t element_bytes_;
  int64_t healed_ = 0;
  bool freezes_ = false;         // some parameters
  bool frozen_arrived_ = false;  // once, by gathers
  at::Device device_;
  bool verifies_ = false;  // gathers: sums of the copies against those of the originals
  plan::SyncWay way_ = plan::SyncWay::buckets;
  bool compares_memory_;  // of both sides after each sync: deltas change what lies there, messages
                          // between GPUs have no digest
  int64_t whole_bytes_ = 0;                       // of all weights
  std::unique_ptr<weightsync::WeightSync> sync_;  // null: the weights are shared, or gathered
};

}  // namespace trireme::driver
