// A program with a watchdog that moves weights between fake GPUs, one of which fails in the way
// that the command line says. It ends as the program ends. Rank 1 is the one that fails.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fakegpu/fake_gpu.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/device_exchange.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/trace/activity.hpp"
#include "trireme/trace/region.hpp"
#include "trireme/weightsync/sync.hpp"

namespace {

using namespace trireme;

constexpr double hang_timeout = 4;  // seconds
constexpr int64_t per_rank = 1000;
constexpr int passes = 20;

std::unique_ptr<comm::ShardExchange> make_exchange(const comm::CommView& world) {
  const int64_t elements = (per_rank * world.size() + 31) / 32 * 32;
  comm::ExchangeOptions options;
  options.weight_type = comm::DType::f32;
  options.device = true;
  const comm::SlotGeometry stage{{{0, 0, per_rank}}, elements};
  comm::SlotGeometry other = stage;
  other.parameters[0].id = 1;
  return comm::make_shard_exchange(world, {stage, other, stage}, options);
}

// A model's forward passes; the host waits for the device once in each, as a loss does.
void compute(comm::ShardExchange& exchange, const std::function<void(int pass)>& before) {
  for (int pass = 0; pass < passes; ++pass) {
    const trace::Region region{"train", pass};
    for (int stage = 0; stage < 3; ++stage) {
      exchange.gather(stage);
      before(pass);
      const void* weights = exchange.gathered(stage).front();
      fakegpu::launch(nullptr, {fakegpu::reads(weights, per_rank * sizeof(float))}, [] {});
      exchange.release(stage);
    }
    exchange.begin_update();  // the weights are others from here on
    exchange.end_update();
    cudaStreamSynchronize(nullptr);
  }
}

// Weights go to a generator that fails in the middle of a sync: its device dies with its process
// when the others' messages are under way already.
void sync_weights(const comm::CommView& world, const std::string& what) {
  const base::TensorSpec spec{"weight", {900, 64}};
  const auto source = base::ShardLayout::by_rows({spec}, 1),
             target = base::ShardLayout::by_rows({spec}, 1);
  weightsync::SyncOptions options;
  options.device = true;
  options.delta = weightsync::DeltaScope::off;
  options.plan.between_devices = true;
  options.plan.bucket_bytes = 4096;
  weightsync::WeightSync sync(world, source, target, {{{0}}, {{1}, {2}}, {}}, options);
  void* memory = nullptr;
  cudaMalloc(&memory, static_cast<size_t>(spec.elements()) * sizeof(uint16_t));
  for (int64_t version = 1; version <= 3; ++version) {
    const trace::Region region{"weight sync", version};
    if (world.rank() == 1 && version == 2 && what == "killed_generator") {
      fakegpu::launch(nullptr, {}, [] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        std::raise(SIGKILL);
      });
    }
    weightsync::Sources sources;
    std::vector<void*> targets;
    if (world.rank() == 0) {
      sources.data = {memory};
    } else {
      targets = {memory};
    }
    sync.run(version, sources, targets);
  }
  cudaFree(memory);
}

void run(const comm::Session& session, const std::string& what) {
  const comm::CommView& world = session.world();
  const bool fails = world.rank() == 1;
  const comm::Watchdog watchdog(
      world,
      {.deadlines = {.usual = hang_timeout, .io = hang_timeout},
       .report_folder = std::getenv("DRILL_FOLDER"),
       .thread_multiple = session.facts().thread_multiple,
       .look = [] { return comm::LifeSign{.waiting = true, .host = "here", .where = "train"}; },
       .activity = [] { return trace::activity(); }});
  fakegpu::set_bus_id(base::text("0000:0", world.rank(), ":00.0"));
  const auto resident = make_exchange(world);  // of a model whose pass is over when the other fails
  const std::map<std::string, fakegpu::Faults> faults = {
      {"async_error", {.error_at_call = 5}},
      {"async_error_while_waiting", {.error_at_call = 6}},  // the last one of a pass
      {"missing_rank", {.missing_at_call = 5}},
      {"sync_async_error", {.error_at_call = 40}},
      {"sync_missing_rank", {.missing_at_call = 40}},
      {"endless_init", {.endless_init = true}},
      {"wrong_interface", {.endless_init = true}}};
  if (fails && faults.contains(what)) fakegpu::set_faults(faults.at(what));
  if (fails && what == "no_memory_at_start")
    fakegpu::set_memory(fakegpu::device_bytes() + 3 * per_rank * sizeof(float));
  if (what == "killed_generator" || what == "sync_without_faults" || what == "sync_async_error" ||
      what == "sync_missing_rank")
    return sync_weights(world, what);
  const auto exchange = make_exchange(world);
  bool called = false;
  compute(*exchange, [&](int pass) {
    if (!fails || pass < 3 || std::exchange(called, true)) return;
    if (what == "killed_rank") std::raise(SIGKILL);
    if (what == "no_memory_later") throw UserError(ExitCode::out_of_memory, "CUDA out of memory");
    if (what != "other_calls") return;
    exchange->gradients(2);
    exchange->reduce(2);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const comm::Session session;
  try {
    comm::enable_device_exchange();
    run(session, argc > 1 ? argv[1] : "");
    session.world().barrier();
    return 0;
  } catch (const UserError& error) {
    return session.fail(static_cast<int>(error.code()), error.what());
  }
}
