#include "torch/torch.hpp"

#include "driver/weight_bridge.hpp"

#include <algorithm>
#include <limits>

#include "trireme/base/error.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/device_messages.hpp"
#include "trireme/kernels/copy_sums.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

bool sends_deltas(const config::Options& options, const comm::Roles& roles, at::Device device) {
  return plan::sends_deltas(options, !kernels::on_host(device), roles.topology.nodes == 1);
}

// Collective over world.
plan::SyncWay way_of(const config::Options& options, const comm::Roles& roles, at::Device device) {
  const auto way = [&](bool shares_devices) {
    return plan::sync_way(options, roles.map, !kernels::on_host(device), shares_devices);
  };
  if (way(false) != plan::SyncWay::messages) return way(false);
  return way(!comm::devices_take_messages(roles.world, plan::sync_ranks(roles.map)));
}

at::Tensor part_of(const at::Tensor& whole, const base::Block& block) {
  const at::Tensor rows = whole.narrow(0, block.row, block.rows);
  return whole.dim() < 2 ? rows : rows.narrow(1, block.column, block.columns);
}

// For tests of what comes of it: the first weight is no number.
void spoil(generate::GeneratorWeights& weights) {
  weights.tensor(0).view(-1).narrow(0, 0, 1).fill_(std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

std::vector<const std::byte*> shared_weights(const config::Options& options,
                                             const comm::Roles& roles, zero::ShardedModel* actor) {
  std::vector<const std::byte*> whole;
  if (roles.generator && actor && plan::may_read_in_place(options)) {
    for (size_t p = 0; p < actor->spec().parameters.size(); ++p) {
      if (const void* values = actor->compute_whole(p))
        whole.push_back(static_cast<const std::byte*>(values));
    }
    if (whole.size() != actor->spec().parameters.size()) whole.clear();
  }
  if (!roles.world.all(!roles.generator || !whole.empty())) whole.clear();
  return whole;
}

WeightBridge::WeightBridge(const config::Options& options, const comm::Roles& roles,
                           const model::ModelSpec& spec, at::Device device, bool shared)
    : roles_(roles),
      element_bytes_(config::bytes_per_element(options.model.compute())),
      device_(device),
      verifies_(options.weightsync.verify),
      way_(way_of(options, roles, device)),
      compares_memory_(verifies_ &&
                       (way_ == plan::SyncWay::messages || sends_deltas(options, roles, device))),
      whole_bytes_(spec.elements() * element_bytes_) {
  freezes_ = spec.trainable_elements() < spec.elements();
  if (shared || way_ == plan::SyncWay::gathers) return;
  weightsync::SyncOptions sync;
  const bool deltas = sends_deltas(options, roles, device);
  sync.delta = deltas ? weightsync::DeltaScope::between_nodes : weightsync::DeltaScope::off;
  sync.verify = options.weightsync.verify;
  sync.shared_memory = config::shares(options.weightsync.shared_memory);
  sync.in_place = options.weightsync.shared_memory == config::SharedMemory::automatic;
  sync.device = !kernels::on_host(device);
  sync.parallel_for = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    kernels::parallel_for(0, count, 1, body);
  };
  sync.plan.bucket_bytes = options.weightsync.bucket_bytes.count;
  sync.plan.element_bytes = element_bytes_;
  sync.plan.between_devices = way_ == plan::SyncWay::messages;
  if (deltas) sync.groups = model::layer_groups(spec);
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
  const auto counters = gathers() ? gather(version, actor, weights)
                        : sync_   ? copy(version, actor, weights)
                                  : share(version, actor, weights);
  trace::count("weight_sync_bytes_copied", counters.bytes_local + counters.bytes_received);
  if (counters.bytes_between_devices > 0)
    trace::count("weight_sync_bytes_between_gpus", counters.bytes_between_devices);
  if (weights) {
    weights->set_version(static_cast<int32_t>(version));
    if (const int64_t bytes = weights->quantise(); bytes > 0)
      trace::count("rollout_weight_bytes_in_8_bits", bytes);
  }
  return counters;
}

std::string WeightBridge::describe() const {
  if (gathers()) return "weights come to generators by the trainers' own gathers";
  if (!sync_) return "generators read the trainers' weights in place";
  if (way_ == plan::SyncWay::messages)
    return "weights go from trainers' GPUs to generators' GPUs by NCCL";
  return base::text("weights go from trainers to generators through host memory",
                    kernels::on_host(device_) ? "" : ", from and to the GPUs");
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
  if (sends_frozen(weights)) sync_->forget();
  std::vector<void*> targets;
  if (weights) {
    weights->restore();
    const auto storage = weights->storage();
    targets.assign(storage.begin(), storage.end());
  }
  auto counters = sync_->run(version, sources, targets);
  if (weights && base::nan_wanted("generator")) spoil(*weights);
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

bool WeightBridge::sends_frozen(const generate::GeneratorWeights* weights) const {
  return freezes_ && !roles_.world.all(!weights || weights->data(0) != nullptr);
}

weightsync::SyncCounters WeightBridge::gather(int64_t version, zero::ShardedModel* actor,
                                              generate::GeneratorWeights* weights) {
  const trace::Region region{"weight sync", version};
  const base::Stopwatch watch;
  const bool all = !frozen_arrived_ || sends_frozen(weights);
  frozen_arrived_ = true;
  if (weights) weights->restore();
  weightsync::SyncCounters counters{.version = version};
  kernels::CopySums sums(verifies_ && weights ? weights->layout().tensors().size() : 0, device_);
  if (actor) {
    const auto& parameters = actor->spec().parameters;
    const int64_t before = actor->counters().gathered_bytes;
    actor->visit_whole([&](size_t p) { return all || parameters[p].trainable; },
                       [&](size_t p, const at::Tensor& whole) {
                         if (!weights) return;
                         const at::Tensor to = weights->tensor(p),
                                          from = part_of(whole, weights->block(p));
                         to.copy_(from);
                         counters.bytes_local += to.numel() * element_bytes_;
                         sums.add(p, from, to);
                       });
    counters.bytes_gathered = actor->counters().gathered_bytes - before;
  }
  machine::wait_for(device_);
  if (weights && base::nan_wanted("generator")) spoil(*weights);
  const int64_t wrong = roles_.world.max(sums.first_difference());
  VALIDATE(wrong < 0, ExitCode::internal, "weight sync ", version, ": a generator's copy of ",
           weights ? weights->layout().tensors()[static_cast<size_t>(wrong)].name
                   : base::text("parameter ", wrong),
           " differs from the trainers' weights");
  counters.seconds = watch.seconds();
  return counters;
}

weightsync::SyncTotals WeightBridge::totals(const weightsync::SyncCounters& counters) const {
  if (sync_) return sync_->totals(counters);
  if (gathers()) {
    weightsync::SyncTotals out{.version = counters.version, .weights = whole_bytes_};
    for (const auto& one : roles_.world.gather_values(counters)) {
      out.local += one.bytes_local;
      out.gathered += one.bytes_gathered;
      out.seconds = std::max(out.seconds, one.seconds);
    }
    return out;
  }
  return {.version = counters.version, .seconds = roles_.world.max(counters.seconds)};
}

}  // namespace trireme::driver
