// tests/gpu/ranks_test.cpp on the fake GPU.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "gpu/device.hpp"
#include "support/world.hpp"

namespace trireme::test {
namespace {

bool takes_ranks_that_share() { return std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr; }

// All ranks have one device, unless NCCL_HOSTID keeps them apart, or NCCL is told to take them.
class FakeGpu : public testing::Environment {
 public:
  void SetUp() override {
    if (takes_ranks_that_share()) fakegpu::set_faults({.version = 23007});
    if (ranks_share_a_gpu()) setenv("NCCL_HOSTID", std::to_string(world().rank()).c_str(), 1);
    one_device_for_all();
    device_ = std::make_unique<HostAsDevice>();
  }
  void TearDown() override { device_.reset(); }

 private:
  std::unique_ptr<HostAsDevice> device_;
};

[[maybe_unused]] const auto* const fake_gpu = testing::AddGlobalTestEnvironment(new FakeGpu);

}  // namespace

at::Device gpu() { return at::kCPU; }
int64_t free_gpu_bytes() {
  size_t free_bytes = 0, all = 0;
  cudaMemGetInfo(&free_bytes, &all);
  return static_cast<int64_t>(free_bytes);
}
bool ranks_share_a_gpu() {
  return std::getenv("NCCL_HOSTID") == nullptr && !takes_ranks_that_share();
}

}  // namespace trireme::test
