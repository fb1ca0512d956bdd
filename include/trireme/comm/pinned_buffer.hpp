// Zeroed host memory that GPUs copy from and to at the full speed of the bus: page-locked in programs that run GPUs
// (enable_device_exchange()), else a HugeBuffer like any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "trireme/comm/huge_buffer.hpp"

namespace trireme::comm {

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // As HugeBuffer's. Where the driver does not lock the pages the log says so; copies are slower then.
  PinnedBuffer(int64_t bytes, std::string_view what, std::string_view remedy);

  std::byte* data() const { return memory_.data(); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  struct Unlock {
    void operator()(std::byte* memory) const;
  };
  HugeBuffer memory_;
  std::unique_ptr<std::byte, Unlock> locked_;  // after the memory: unlocked before it is freed
};

}  // namespace trireme::comm
