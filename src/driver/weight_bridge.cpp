#include "driver/weight_bridge.hpp"

#include "trireme/trace/region.hpp"

namespace trireme::driver {

WeightBridge::WeightBridge(const config::Options& options, const Roles& roles, const model::ModelSpec& spec, at::Device device)
    : element_bytes_(config::bytes_per_element(options.model.compute())), shards_(device), slices_(device) {
  weightsync::SyncOptions sync;
  sync.delta = options.weightsync.delta ? weightsync::DeltaScope::between_nodes : weightsync::DeltaScope::off;
  sync.verify = options.weightsync.verify;
  sync.shared_memory = options.weightsync.shared_memory == config::SharedMemory::automatic;
  sync.plan.bucket_bytes = options.weightsync.bucket_bytes.count;
  sync.plan.element_bytes = element_bytes_;
  const auto groups = roles.shard_ranks();
  const auto source = base::ShardLayout::by_rows(spec.tensors(), static_cast<int>(groups.front().size()));
  const auto target = model::tensor_parallel_layout(spec, roles.tensor_parallel);
  const weightsync::Members members{groups, roles.replica_ranks(), roles.topology.node_of};
  sync_ = std::make_unique<weightsync::WeightSync>(roles.world, source, target, members, sync);
}

weightsync::SyncCounters WeightBridge::run(int64_t version, zero::ShardedModel* actor, generate::GeneratorWeights* weights) {
  weightsync::Sources sources;
  if (actor) {
    for (size_t p = 0; p < actor->spec().parameters.size(); ++p) {
      sources.data.push_back(shards_.add(actor->compute_slice(p), actor->own(p).elements() * element_bytes_));
    }
    shards_.to_host();
  }
  std::vector<void*> targets;
  if (weights) {
    const auto storage = weights->storage();
    for (size_t p = 0; p < storage.size(); ++p) {
      targets.push_back(slices_.add(storage[p], weights->block(p).elements() * element_bytes_));
    }
  }
  const auto counters = sync_->run(version, sources, targets);
  if (weights) {
    slices_.to_device();
    weights->set_version(static_cast<int32_t>(version));
  }
  return counters;
}

}  // namespace trireme::driver
