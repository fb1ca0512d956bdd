// The lane of the fake GPU: what a test computes is a kernel on the legacy default stream, as
// LibTorch's are, or on a stream of its own.
#pragma once

#include <new>
#include <stdexcept>

#include "fakegpu/fake_gpu.hpp"
#include "support/exchange_user.hpp"

namespace trireme::test {

class DeviceLane final : public Lane {
 public:
  explicit DeviceLane(bool own_stream = false) {
    if (own_stream) cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0);
  }
  DeviceLane(const DeviceLane&) = delete;
  ~DeviceLane() override {
    for (float* memory : memory_) cudaFree(memory);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  comm::ExchangeOptions options() const override {
    comm::ExchangeOptions options;
    options.weight_type = comm::DType::f32;
    options.device = true;
    options.compute_stream = stream_;
    return options;
  }
  void run(const std::vector<Use>& uses, std::function<void()> body) override {
    std::vector<fakegpu::Range> ranges;
    for (const Use& use : uses)
      ranges.push_back({use.data, static_cast<size_t>(use.elements) * sizeof(float), use.written});
    if (fakegpu::launch(stream_, ranges, std::move(body)) != cudaSuccess)
      throw std::logic_error("a kernel was given memory that is not the device's");
  }
  float* allocate(int64_t elements) override {
    void* data = nullptr;
    if (cudaMalloc(&data, static_cast<size_t>(elements) * sizeof(float)) != cudaSuccess)
      throw std::bad_alloc();
    return memory_.emplace_back(static_cast<float*>(data));
  }
  void wait() override { cudaStreamSynchronize(stream_); }
  std::shared_ptr<void> during(const char* what) override {
    return std::make_shared<fakegpu::During>(what);
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<float*> memory_;
};

// The device of this rank: one of its own, or the same for all.
void own_device();
void one_device_for_all();

}  // namespace trireme::test
