#include "driver/weight_bridge.hpp"

#include "trireme/trace/region.hpp"

namespace trireme::driver {

WeightBridge::WeightBridge(const config::Options& options, const Roles& roles, const model::ModelSpec& spec) {
  weightsync::SyncOptions sync;
  sync.delta = options.weightsync.delta ? weightsync::DeltaScope::between_nodes : weightsync::DeltaScope::off;
  sync.verify = options.weightsync.verify;
  sync.plan.bucket_bytes = options.weightsync.bucket_bytes.count;
  sync.plan.element_bytes = config::bytes_per_element(options.model.dtype);
  const auto groups = roles.shard_ranks();
  const auto source = base::ShardLayout::by_rows(spec.tensors(), static_cast<int>(groups.front().size()));
  const auto target = model::tensor_parallel_layout(spec, roles.tensor_parallel);
  const weightsync::Members members{groups, roles.replica_ranks(), roles.topology.node_of};
  sync_ = std::make_unique<weightsync::WeightSync>(roles.world, source, target, members, sync);
}

weightsync::SyncCounters WeightBridge::run(int64_t version, zero::ShardedModel* actor, generate::GeneratorWeights* weights) {
  weightsync::Sources sources;
  if (actor) {
    for (size_t p = 0; p < actor->spec().parameters.size(); ++p) sources.data.push_back(actor->compute_slice(p));
  }
  std::vector<void*> targets;
  if (weights) {
    for (std::byte* pointer : weights->storage()) targets.push_back(pointer);
  }
  const auto counters = sync_->run(version, sources, targets);
  if (weights) weights->set_version(static_cast<int32_t>(version));
  return counters;
}

}  // namespace trireme::driver
