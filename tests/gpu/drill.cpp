// A program with a watchdog that moves weights between GPUs, one rank of which (1) fails in the way
// that the command line says: drills_test.py. The fake GPU has one with the same names, and more
// (tests/fakegpu/drill.cpp).
#include "torch/torch.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/driver/gpu.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/trace/activity.hpp"
#include "trireme/trace/region.hpp"

namespace {

using namespace trireme;

constexpr double hang_timeout = 4;  // seconds
constexpr int64_t per_rank = 1000;
constexpr int passes = 20, failing_pass = 3;
constexpr int skipped = 125;

void fail(const std::string& what) {
  if (what == "killed_rank") std::raise(SIGKILL);
  if (what == "missing_rank") {
    while (true) ::pause();
  }
  if (what != "no_memory_later") return;
  try {
    static_cast<void>(at::empty({int64_t{1} << 42}, at::TensorOptions(at::kCUDA).dtype(at::kByte)));
  } catch (const c10::OutOfMemoryError& error) {
    throw UserError(ExitCode::out_of_memory, base::text("CUDA out of memory: ", error.what()));
  }
}

void run(const comm::Session& session, at::Device gpu, const std::string& what) {
  const comm::CommView& world = session.world();
  const comm::Watchdog watchdog(
      world,
      {.deadlines = {.usual = hang_timeout, .io = hang_timeout},
       .report_folder = std::getenv("DRILL_FOLDER"),
       .thread_multiple = session.facts().thread_multiple,
       .look = [] { return comm::LifeSign{.waiting = true, .host = "here", .where = "train"}; },
       .activity = [] { return trace::activity(); }});
  comm::ExchangeOptions options;
  options.weight_type = comm::DType::f32;
  options.device = true;
  const comm::SlotGeometry stage{{{0, 0, per_rank}}, (per_rank * world.size() + 31) / 32 * 32};
  const auto exchange = comm::make_shard_exchange(world, {stage}, options);
  for (int pass = 0; pass < passes; ++pass) {
    const trace::Region region{"train", pass};
    exchange->begin_update();
    exchange->end_update();
    exchange->gather(0);
    if (world.rank() == 1 && pass == failing_pass) fail(what);
    static_cast<void>(exchange->gathered(0));
    exchange->release(0);
    machine::wait_for(gpu);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const comm::Session session;
  try {
    driver::enable_gpu();
    const int gpus = machine::visible_gpus();
    if (gpus == 0) {
      std::fprintf(stderr, "skipped: no GPU is visible to LibTorch\n");
      return skipped;
    }
    const int local_rank = comm::discover(session.world()).local_rank;
    const at::Device gpu(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpus));
    machine::use_device(gpu, false, session.world());
    run(session, gpu, argc > 1 ? argv[1] : "");
    session.world().barrier();
    return 0;
  } catch (const UserError& error) {
    return session.fail(static_cast<int>(error.code()), error.what());
  }
}
