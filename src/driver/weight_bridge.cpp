#include "torch/torch.hpp"

#include "driver/weight_bridge.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/base/log.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
std::vector<const std::byte*> shared_weights(const config::Options& options,
                                             const comm::Roles& roles, zero::ShardedModel* actor) {
  std::vector<const std::byte*> whole;
  if (roles.generator && roles.tensor_parallel() == 1 &&
      options.weightsync.shared_memory == config::SharedMemory::automatic && actor) {
    for (size_t p = 0; p < actor->spec().parameters.size(); ++p) {
      if (const void* values = actor->compute_whole(p))
        whole.push_back(static_cast<const std::byte*>(values));
    }
    if (whole.size() != actor->spec().parameters.size()) whole.clear();
  }
  if (!roles.world.all(!roles.generator || !whole.empty())) whole.clear();
  return whole;
}

bool sends_deltas(const config::Options& options, const comm::Roles& roles) {
  return options.weightsync.delta &&
         (roles.topology.nodes > 1 || !config::shares(options.weightsync.shared_memory));
}

WeightBridge::WeightBridge(const config::Options& options, const comm::Roles& roles,
                           const model::ModelSpec& spec, at::Device device, bool shared)
    : roles_(roles),
      element_bytes_(config::bytes_per_element(options.model.compute())),
      compares_memory_(options.weightsync.verify && sends_deltas(options, roles)),
      device_(device) {
  if (shared) return;
  weightsync::SyncOptions sync;
  sync.delta = options.weightsync.delta ? weightsync::DeltaScope::between_nodes
                                        : weightsync::DeltaScope::off;
  sync.verify = options.weightsync.verify;
  sync.shared_memory = config::shares(options.weightsync.shared_memory);
  sync.in_place = options.weightsync.shared_memory == config::SharedMemory::automatic;
  sync.device = !kernels::on_host(device);
  sync.parallel_for = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    kernels::parallel_for(0, count, 1, body);
  };
  sync.plan.bucket_bytes = options.weightsync.bucket_bytes.count;
  sync.plan.element_bytes = element_bytes_;
  if (sends_deltas(options, roles)) sync.groups = model::layer_groups(spec);
  freezes_ = spec.trainable_elements() < spec.elements();
  if (freezes_) sync.tensors = spec.trainable_parameters();
  const auto groups = roles.shard_ranks();
  const auto source =
      base::ShardLayout::by_rows(spec.tensors(), static_cast<int>(groups.front().size()));
  const auto target = model::tensor_parallel_layout(spec, roles.tensor_parallel());
  const weightsync::Members members{groups, roles.replica_ranks(), roles.topology.node_of};
  sync_ = std::make_unique<weightsync::WeightSync>(roles.world, source, target, members, sync);
}

weightsync::SyncCounters WeightBridge::run(int64_t version, zero::ShardedModel* actor,
                                           generate::GeneratorWeights* weights) {
  const auto counters = sync_ ? copy(version, actor, weights) : share(version, actor, weights);
  trace::count("weight_sync_bytes_copied", counters.bytes_local + counters.bytes_received);
  if (weights) {
    weights->set_version(static_cast<int32_t>(version));
    if (const int64_t bytes = weights->quantise(); bytes > 0)
      trace::count("rollout_weight_bytes_in_8_bits", bytes);
  }
  return counters;
}

weightsync::SyncCounters WeightBridge::share(int64_t version, zero::ShardedModel* actor,
                                             generate::GeneratorWeights* weights) const {
  std::vector<const void*> tensors;
  std::vector<int64_t> bytes;
  for (size_t p = 0; weights && p < actor->spec().parameters.size(); ++p) {
    tensors.push_back(weights->data(p));
    bytes.push_back(weights->block(p).elements() * element_bytes_);
  }
  return weightsync::sync_shared(roles_.world, version, tensors, bytes);
}

weightsync::SyncCounters WeightBridge::copy(int64_t version, zero::ShardedModel* actor,
                                            generate::GeneratorWeights* weights) {
  weightsync::Sources sources;
  if (actor) {
    for (size_t p = 0; p < actor->spec().parameters.size(); ++p) {
      sources.data.push_back(actor->compute_slice(p).address());  // SyncOptions::device knows
      sources.changed.push_back(actor->changed(p));
    }
  }
  // Generators that gave their memory back have lost frozen weights, too.
  if (freezes_ && !roles_.world.all(!weights || weights->data(0) != nullptr)) sync_->forget();
  std::vector<void*> targets;
  if (weights) {
    weights->restore();
    const auto storage = weights->storage();
    targets.assign(storage.begin(), storage.end());
  }
  auto counters = sync_->run(version, sources, targets);
  if (weights && base::nan_wanted("generator")) {
    at::from_blob(targets.front(), {element_bytes_}, at::TensorOptions(device_).dtype(at::kByte))
        .fill_(0xff);  // no number
  }
  if (compares_memory_) {
    if (const std::string problem = sync_->differences(sources, targets); !problem.empty()) {
      if (roles_.world.rank() == 0)
        log::warning(base::text(problem, ": all weights are sent again"));
      ++healed_;
      sync_->forget();
      counters = sync_->run(version, sources, targets);
      const std::string again = sync_->differences(sources, targets);
      VALIDATE(again.empty(), ExitCode::internal, again, ", although all weights were sent");
    }
  }
  if (actor) actor->clear_changes();
  return counters;
}

weightsync::SyncTotals WeightBridge::totals(const weightsync::SyncCounters& counters) const {
  if (sync_) return sync_->totals(counters);
  return {.version = counters.version, .seconds = roles_.world.max(counters.seconds)};
}

}  // namespace trireme::driver
