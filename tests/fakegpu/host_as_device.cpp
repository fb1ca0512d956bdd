#include "fakegpu/host_as_device.hpp"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <memory>
#include <new>
#include <set>
#include <string>

#include "fakegpu/machine.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_type.hpp"

namespace trireme::test {
namespace {

std::atomic<int64_t> waits{0};

// As LibTorch's allocator for GPUs, memory is used again in the order of the compute stream: what other streams still do with it is a finding.
void free_in_order(void* memory) {
  if (memory == nullptr) return;
  fakegpu::drain(nullptr);
  fakegpu::release(memory);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes > 0 && fakegpu::allocate(&memory, bytes) != cudaSuccess) throw std::bad_alloc();
    return {memory, memory, free_in_order, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_in_order; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& function) {
  static const std::set<std::string> waiting{"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::unique_consecutive"};
  fakegpu::drain(nullptr);
  if (waiting.contains(function.name())) ++waits;
  return nullptr;
}

constexpr uint8_t above_all = 255;

}  // namespace

HostAsDevice::HostAsDevice() : before_(c10::GetCPUAllocator()) {
  static DeviceAllocator allocator;
  waits = 0;
  kernels::set_device_type(c10::DeviceType::CPU);
  kernels::enable_device_kernels();
  c10::SetCPUAllocator(&allocator, above_all);
  callback_ = at::addGlobalCallback(at::RecordFunctionCallback(before_operator).scopes({at::RecordScope::FUNCTION}));
}

HostAsDevice::~HostAsDevice() {
  at::removeCallback(callback_);
  c10::SetCPUAllocator(before_, above_all);
  kernels::set_device_kernels(nullptr);
  kernels::set_device_type(c10::DeviceType::CUDA);
}

int64_t HostAsDevice::hidden_waits() { return waits; }

}  // namespace trireme::test
