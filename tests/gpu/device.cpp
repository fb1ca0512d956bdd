#include "torch/torch.hpp"

#include "gpu/device.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

#include "support/world.hpp"
#include "trireme/comm/device_links.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/driver/gpu.hpp"
#include "trireme/machine/device.hpp"

namespace trireme::test {
namespace {

class NeedsGpu : public testing::Environment {
 public:
  void SetUp() override {
    driver::enable_gpu();
    if (machine::visible_gpus() > 0) {
      machine::use_device(gpu(), false, world());
      return;
    }
    if (world().rank() == 0) std::fprintf(stderr, "skipped: no GPU is visible to LibTorch\n");
    MPI_Finalize();
    std::_Exit(125);
  }
};

[[maybe_unused]] const auto* const needs_gpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace

at::Device gpu() {
  static const int local_rank = comm::discover(world()).local_rank;
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % machine::visible_gpus()));
}

int64_t free_gpu_bytes() { return machine::free_memory(gpu()); }

bool ranks_share_a_gpu() {
  // NCCL takes ranks with their own NCCL_HOSTID for those of several machines, and later versions
  // take them as they are (NCCL_MULTI_RANK_GPU_ENABLE).
  if (std::getenv("NCCL_HOSTID") != nullptr ||
      comm::discover(world()).local_size <= machine::visible_gpus())
    return false;
  static const bool refused = !comm::measure_device_links(world());
  return refused;
}

model::PackedBatch to_device(const model::PackedBatch& batch, at::Device device) {
  model::PackedBatch out = batch;
  out.ids = batch.ids.to(device);
  out.positions = batch.positions.to(device);
  if (!device.is_cpu())
    out.cu_seqlens_device = at::tensor(batch.cu_seqlens, at::kLong).to(device, at::kInt);
  return out;
}

}  // namespace trireme::test
