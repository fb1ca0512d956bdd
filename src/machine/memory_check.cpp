#include "torch/torch.hpp"

#include "trireme/machine/memory_check.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "machine/allocation_advice.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/heap.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/log.hpp"
#include "trireme/job/node_limits.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_product.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::machine {
namespace {

// This rank's memory, before the ledger is known.
struct Place {
  int64_t device_free = plan::free_unknown, host_free = plan::free_unknown;
  std::string device_pool,
      host_pool;  // names that ranks of one GPU or one node and control group share
};

Place measure(const comm::NodeTopology& topology, at::Device device) {
  Place out;
  const auto host = job::available_memory();
  out.host_free = host.bytes;
  // Nodes may share a name.
  out.host_pool = base::text("node ", topology.node, ", ",
                             topology.host_of_node.at(static_cast<size_t>(topology.node)), ", ",
                             host.limited_by);
  if (device.is_cpu()) return out;
  out.device_free = free_memory(device);
  out.device_pool = base::text(topology.node, " ", gpu_bus(device.index()));
  return out;
}

uint64_t number_of(const std::string& pool) { return std::hash<std::string>{}(pool); }

std::string refusal(const PlannedJob& planned, const plan::Pool& pool, const std::string& where) {
  const plan::Job job = planned.job();
  std::string out = base::text(
      "this job needs more memory than there is (", where, "): ", plan::describe(pool),
      "\nlargest on rank ", pool.fullest, " (~: estimated):\n",
      plan::contributors(plan::memory_of_rank(job, pool.fullest), pool.place, pool.phase, 8));
  const auto remedies = plan::nearest_fits(job, planned.cut(), 4);
  if (remedies.empty())
    out +=
        "\nno single change of the deck, and no pair of changes, makes it fit: use a smaller model "
        "or a larger machine";
  for (const auto& remedy : remedies) out += base::text("\nfits: ", remedy.change);
  return out;
}

// Roles differ in their phases: these travel with their names.
std::map<std::string, int64_t> peaks_by_phase(const comm::CommView& world) {
  std::vector<std::pair<std::string, int64_t>> mine;
  for (const auto& [phase, memory] : trace::phase_memory()) {
    std::string name = phase;
    std::replace(name.begin(), name.end(), ' ', '_');
    mine.emplace_back(name + "_host_peak", memory.host);
    if (memory.device > 0) mine.emplace_back(name + "_device_peak", memory.device);
  }
  std::map<std::string, int64_t> out;
  for (const auto& [name, bytes] : world.all_gather<std::pair<std::string, int64_t>>(mine))
    out[name] = std::max(out[name], bytes);
  return out;
}

plan::HostBf16 host_bf16(at::Device device) {
  if (!kernels::multiplies_bf16(device)) return plan::HostBf16::widened;
  return base::has_matrix_units() ? plan::HostBf16::tiles : plan::HostBf16::vectors;
}

void log_plan(const std::vector<plan::Pool>& pools) {
  for (const plan::Place place : {plan::Place::device, plan::Place::host}) {
    const plan::Pool* tightest = nullptr;
    for (const plan::Pool& pool : pools) {
      if (pool.place == place &&
          (!tightest || pool.free - pool.need < tightest->free - tightest->need))
        tightest = &pool;
    }
    if (tightest) log::info("memory: " + plan::describe(*tightest));
  }
}

// The same job on every rank, so that each knows the ledgers of all: memory of the rank with least
// has, and the kernels that all agreed on (use_device()).
PlannedJob planned_job(const config::Options& options, const Workload& work,
                       const comm::Roles& roles, at::Device device, const Place& place) {
  const comm::CommView& world = roles.world;
  const bool cpu = device.is_cpu();
  const auto places = world.all_gather(place.device_pool);
  const auto sharers =
      std::max<int64_t>(1, std::count(places.begin(), places.end(), place.device_pool));
  PlannedJob out{
      .options = options,
      .roles = planned_roles(roles.map, world.size(), work.command),
      .node_of_rank = roles.topology.node_of,
      .models = job_models(options, work.command,
                           shapes_of(options, work.command, work.actor.shape, work.critic)),
      .machine = {.name = "this",
                  .device_bytes = world.min(cpu ? 0 : place.device_free / sharers),
                  .host_bytes = world.min(place.host_free)},
      .compute = options.model.compute(),
      .command = work.command,
      .keeps_caches = false,
      .own_kernels = kernels::device_kernels() != nullptr,
      .process_started = true,
      .threads = at::get_num_threads(),
      .host_bf16 = host_bf16(device),
      .length = work.length,
      .rank = world.rank(),
      .actor = work.actor};
  // A generator on a GPU takes its pages whole.
  if (cpu)
    out.options.data.max_len = out.options.model.max_len =
        std::min(options.max_len(), work.length.longest);
  if (!cpu && kernels::device_product() == nullptr)
    out.options.train.exact_products = false;  // disabled
  return out;
}

// Collective over `world`.
std::vector<plan::Pool> pools_of(const PlannedJob& planned, const Place& place,
                                 const comm::CommView& world) {
  plan::RankNeed mine = plan::need_of(plan::memory_of_rank(planned.job(), planned.rank));
  mine.device_free = place.device_free;
  mine.host_free = place.host_free;
  mine.device_pool = number_of(place.device_pool);
  mine.host_pool = number_of(place.host_pool);
  return plan::pools_of(world.gather_values(mine));
}

// Throws on every rank, or warns, of a pool that the plan does not fit. Collective over `world`.
void refuse(const PlannedJob& planned, const plan::Pool& pool, const Place& place,
            const comm::CommView& world) {
  const auto names = world.all_gather(pool.place == plan::Place::device ? "GPU " + place.device_pool
                                                                        : place.host_pool);
  const std::string message =
      refusal(planned, pool, names[static_cast<size_t>(pool.ranks.front())]);
  VALIDATE(
      planned.options.run.memory_check != config::MemoryCheck::refuse, ExitCode::configuration,
      message,
      "\nwhere the estimate is wrong: run.memory_check = \"warn\" goes on (docs/user/plan.md)");
  if (world.rank() == 0) log::warning(message);
}

}  // namespace

void MemoryCheck::admit(const config::Options& options, const Workload& work,
                        const comm::Roles& roles, at::Device device) {
  const comm::CommView& world = roles.world;
  const trace::Region region{"memory check"};
  world.barrier();  // devices are current, plugins started: memory that is free now is what the job
                    // can have
  const Place place = measure(roles.topology, device);
  device_free_ = device.is_cpu() ? 0 : place.device_free;
  PlannedJob planned = planned_job(options, work, roles, device, place);
  const int64_t layers = work.actor.shape.layers;
  if (options.train.keep_memory) {
    recompute_ = plan::fewest_recomputed(layers, *options.train.keep_memory, [&](int64_t blocks) {
      planned.options.train.recompute = blocks;
      return pools_of(planned, place, world);
    });
    if (world.rank() == 0)
      log::detail("memory: " + plan::describe_kept(layers - recompute_, layers));
  }
  planned.options.train.recompute = recompute(options.train.recompute, layers);
  const plan::CachesBesideTraining caches = plan::caches_beside_training(planned.job());
  if (world.rank() == 0 && caches.bytes > 0) log::detail("memory: " + plan::describe(caches));
  planned.keeps_caches = keeps_caches_ = caches.stay;
  const auto pools = pools_of(planned, place, world);
  expect(plan::memory_of_rank(planned.job(), world.rank()), world);
  advise_on_allocations(planned);
  if (world.rank() == 0) log_plan(pools);
  if (const int worst = plan::worst_pool(pools); worst >= 0)
    refuse(planned, pools[static_cast<size_t>(worst)], place, world);
}

void MemoryCheck::expect(const plan::Ledger& ledger, const comm::CommView& world) {
  const int64_t planned = trace::host_memory().resident + ledger.resident_peak();
  base::set_resident_goal(planned);
  planned_host_ = world.max(planned);
  planned_device_ = world.max(ledger.peak(plan::Place::device));
  for (int kind = 0; kind < plan::kind_count; ++kind) {
    planned_kinds_[static_cast<size_t>(kind)] =
        world.max(ledger.peak(plan::Place::device, static_cast<plan::Kind>(kind)));
  }
}

std::map<std::string, int64_t> MemoryCheck::figures(const comm::CommView& world,
                                                    at::Device device) {
  std::map<std::string, int64_t> out = peaks_by_phase(world);
  out["planned_host_peak"] = planned_host_;
  if (device.is_cpu()) return out;
  const int64_t taken = device_free_ - free_memory(device);
  device_peak_ =
      std::max(device_peak_,
               taken);  // at reports: memory given back in between (give_back_unused) is not seen
  out["planned_device_peak"] = planned_device_;
  out["device_peak"] = world.max(device_peak_);
  const DeviceKinds kinds = device_kinds(device, taken);
  const std::array measured{kinds.tensors, kinds.exchanges, kinds.libraries};
  for (size_t kind = 0; kind < measured.size(); ++kind) {
    const std::string name = plan::to_string(static_cast<plan::Kind>(kind));
    out["planned_device_" + name] = planned_kinds_[kind];
    out["device_" + name] = world.max(measured[kind]);
  }
  out["device_reserved"] = world.max(kinds.reserved);
  return out;
}

std::string MemoryCheck::compare(const std::map<std::string, int64_t>& figures) {
  std::string out;
  const auto add = [&](const std::string& name, const std::string& before,
                       const std::string& what) {
    const auto planned = figures.find("planned_" + name), measured = figures.find(name);
    if (planned == figures.end() || measured == figures.end()) return false;
    const auto gigabytes = [](int64_t bytes) {
      return base::text(base::fixed(static_cast<double>(bytes) * 1e-9, 3), " GB");
    };
    out += base::text(before, what, " ", gigabytes(planned->second), " planned, ",
                      gigabytes(measured->second), " measured");
    return true;
  };
  for (const std::string place : {"host", "device"}) {
    if (add(place + "_peak", out.empty() ? "memory: " : "; ", place + " peak"))
      out += " (of the rank that has most)";
  }
  for (int kind = 0; kind < plan::kind_count; ++kind) {
    const std::string name = plan::to_string(static_cast<plan::Kind>(kind));
    add("device_" + name, kind == 0 ? "; on the GPU " : ", ", name);
  }
  return out;
}

}  // namespace trireme::machine
