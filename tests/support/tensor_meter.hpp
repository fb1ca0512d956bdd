// How much memory LibTorch's tensors take while something runs, on this thread.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace trireme::test {

class TensorMeter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }
  int64_t now() const { return now_; }

 private:
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

// Most bytes of new tensors that lived at the same time during `body`.
template <class Body>
int64_t peak_tensor_bytes(const Body& body) {
  const auto meter = std::make_shared<TensorMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  body();
  return meter->peak();
}

// Bytes of tensors that live behind `body` and did not before; negative where it gave back more.
template <class Body>
int64_t remaining_tensor_bytes(const Body& body) {
  const auto meter = std::make_shared<TensorMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  body();
  return meter->now();
}

}  // namespace trireme::test
