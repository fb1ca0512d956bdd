#include "driver/role_metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "trireme/trace/region.hpp"

namespace trireme::driver {

learn::TrainingState share_training_state(const comm::Roles& roles,
                                          report::IterationMetrics& metrics,
                                          const learn::TrainingState& state, Outcome& outcome) {
  const int root = roles.map.trainer.front();
  for (const auto& [name, value] : roles.world.broadcast_value(metrics.values, root))
    metrics.set(name, value);
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  const auto [kl, entropy] = roles.world.broadcast_value(
      std::pair(outcome.kl.value_or(none), outcome.entropy.value_or(none)), root);
  outcome.kl = std::isnan(kl) ? std::nullopt : std::optional(kl);
  outcome.entropy = std::isnan(entropy) ? std::nullopt : std::optional(entropy);
  return roles.world.broadcast_value(state, root);
}

void add_memory_metrics(const comm::Roles& roles, std::vector<ModelMemory> models,
                        const rollout::GeneratorMemory* generator,
                        report::IterationMetrics& metrics) {
  if (const auto& rings = *roles.rings; rings.bytes() > 0) {
    zero::MemoryUse use;
    use.weights = rings.bytes(comm::RingMemory::weights);
    use.exchange =
        rings.bytes(comm::RingMemory::gradients) + rings.bytes(comm::RingMemory::received);
    models.emplace_back("rings", use);
  }
  const auto host = trace::host_memory();
  std::vector<std::pair<std::string, int64_t>> mine{{"host", host.resident},
                                                    {"host_peak", host.peak}};
  for (const auto& [name, use] : models) {
    const std::pair<const char*, int64_t> kinds[] = {
        {"master", use.master},      {"gradients", use.gradients},
        {"moments", use.moments},    {"average", use.average},
        {"weights", use.weights},    {"gradient_slots", use.exchange},
        {"gradient_sums", use.sums}, {"activations", use.activations}};
    const bool trained = use.master > 0;
    for (const auto& [kind, bytes] : kinds) {
      if (trained || bytes > 0) mine.emplace_back(name + "_" + kind, bytes);
    }
  }
  if (generator) {
    mine.emplace_back("generator_weights", generator->weights);
    mine.emplace_back("kv_cache_peak", generator->kv_cache_peak);
    mine.emplace_back("kv_pages_peak", generator->kv_pages_peak);
  }
  // The roles of a rank decide which kinds it has: they travel with their names.
  for (const auto& [name, bytes] : roles.world.all_gather<std::pair<std::string, int64_t>>(mine)) {
    int64_t& largest = metrics.memory[name];
    largest = std::max(largest, bytes);
  }
}

trace::Waited add_busy_metrics(const comm::Roles& roles, const trace::Waited& before,
                               report::IterationMetrics& metrics) {
  constexpr std::array names{"trainer", "generator", "reward"};
  const trace::Waited now = trace::waited_in("iteration");
  const double seconds = now.seconds - before.seconds;
  const double busy =
      seconds > 0 ? std::clamp(1 - (now.wait - before.wait) / seconds, 0.0, 1.0) : 1;
  for (size_t role = 0; role < names.size(); ++role) {
    const bool has = roles.of_rank()[role] != 0;
    const auto ranks = roles.world.sum(has ? 1.0 : 0.0);
    const auto all = roles.world.sum(has ? busy : 0.0);
    if (ranks > 0) metrics.busy[names[role]] = all / ranks;
  }
  return now;
}

void add_sync_metrics(const weightsync::SyncTotals& totals, report::IterationMetrics& metrics) {
  if (!totals.moved()) return;
  const auto weights = static_cast<double>(totals.weights);
  metrics.weight_sync = {{"bytes", weights},
                         {"seconds", totals.seconds},
                         {"stall", totals.stall},
                         {"gb_per_second", weights / totals.seconds / 1e9},
                         {"network_bytes", static_cast<double>(totals.network)},
                         {"busiest_node_bytes", static_cast<double>(totals.busiest_node)},
                         {"node_bytes", static_cast<double>(totals.in_node)},
                         {"in_place_bytes", static_cast<double>(totals.in_place)},
                         {"copied_bytes", static_cast<double>(totals.local)},
                         {"messages", static_cast<double>(totals.messages)}};
  if (totals.gathered > 0)
    metrics.weight_sync["gathered_bytes"] = static_cast<double>(totals.gathered);
  if (totals.between_devices > 0)
    metrics.weight_sync["gpu_bytes"] = static_cast<double>(totals.between_devices);
  if (totals.network > 0)
    metrics.weight_sync["over_bound"] =
        static_cast<double>(totals.busiest_rank) / static_cast<double>(totals.bound);
  if (totals.full > 0)
    metrics.weight_sync["sent_share"] =
        static_cast<double>(totals.sent) / static_cast<double>(totals.full);
  for (const auto& [group, share] : totals.changed) metrics.weight_sync["changed_" + group] = share;
}

void add_thread_metrics(const comm::CommView& world, const machine::ThreadPlan& threads,
                        const learn::Trainer* trainer, const rollout::Generator* generator,
                        report::IterationMetrics& metrics) {
  constexpr int64_t none = std::numeric_limits<int32_t>::max();
  const auto add = [&](const char* name, int64_t mine) {
    const int64_t fewest = world.min(mine > 0 ? mine : none);
    if (fewest != none) metrics.threads[name] = fewest;
  };
  add("trainer", trainer ? threads.trainer.count : 0);
  add("trainer_worked", trainer ? trainer->threads_worked() : 0);
  add("generator", generator ? threads.generator.count : 0);
  add("generator_worked", generator ? generator->threads_worked() : 0);
}

}  // namespace trireme::driver
