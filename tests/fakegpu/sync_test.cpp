// Weight syncs whose tensors lie on a device: rows go between buckets and the device by its copy
// engines.
#include "support/sync_cases.hpp"

#include "fakegpu/device_lane.hpp"
#include "trireme/comm/device_copies.hpp"

namespace trireme::weightsync {
namespace {

class DeviceTensors final : public Tensors {
 public:
  DeviceTensors() = default;
  DeviceTensors(const DeviceTensors&) = delete;
  ~DeviceTensors() override {
    for (uint16_t* memory : memory_) cudaFree(memory);
  }
  uint16_t* allocate(size_t elements) override {
    void* memory = nullptr;
    if (cudaMalloc(&memory, std::max<size_t>(1, elements) * sizeof(uint16_t)) != cudaSuccess)
      throw std::bad_alloc();
    return memory_.emplace_back(static_cast<uint16_t*>(memory));
  }
  void write(uint16_t* to, const uint16_t* from, size_t elements) override {
    copy(to, from, elements);
  }
  void read(uint16_t* to, const uint16_t* from, size_t elements) override {
    copy(to, from, elements);
  }

 private:
  static void copy(uint16_t* to, const uint16_t* from, size_t elements) {
    const auto bytes = static_cast<int64_t>(elements * sizeof(uint16_t));
    comm::start_copy({reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), 1,
                      bytes, bytes, bytes});
    comm::finish_copies();
  }
  std::vector<uint16_t*> memory_;
};

Home device() {
  SyncOptions options;
  options.device = true;
  options.delta = DeltaScope::off;
  return {"device", options, 16384, [] {
            test::own_device();
            fakegpu::set_delays({.seed = static_cast<unsigned>(1 + test::world().rank()),
                                 .legacy_us = 5,
                                 .others_us = 5});  // thousands of buckets
            return std::make_unique<DeviceTensors>();
          }};
}
INSTANTIATE_TEST_SUITE_P(Device, SyncIn, testing::Values(device()), name_of);

}  // namespace
}  // namespace trireme::weightsync
