#include "torch/torch.hpp"

#include "trireme/kernels/tensor_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include "trireme/base/heap.hpp"

namespace trireme::kernels {
namespace {

void give_back(void* data) {
  if (data == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  if (!base::tensor_blocks().give_back(data)) c10::free_cpu(data);
}

class BlockAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes < base::BlockCache::least ? nullptr : base::tensor_blocks().take(bytes);
    if (data == nullptr) data = c10::alloc_cpu(bytes);  // which says what is missing
    c10::profiledCPUMemoryReporter().New(data, bytes);  // as LibTorch's own does: to profilers
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void use_block_cache() { c10::SetCPUAllocator(new BlockAllocator, 1); }

}  // namespace trireme::kernels
