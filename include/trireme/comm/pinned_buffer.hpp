// Host memory that GPUs copy from and to at the full speed of the bus: page-locked in programs that
// run GPUs (enable_device_exchange()), else memory like any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "trireme/comm/huge_buffer.hpp"

namespace trireme::comm {

// Locks pages for as long as it lives; it must go before the memory does. Where the driver does not
// lock them the log says so; copies are slower then.
class LockedPages {
 public:
  LockedPages() = default;
  LockedPages(std::byte* memory, int64_t bytes, std::string_view what);

 private:
  struct Unlock {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Unlock> locked_;
};

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // Zeroed; as HugeBuffer's.
  PinnedBuffer(int64_t bytes, std::string_view what, std::string_view remedy)
      : memory_(bytes, FirstTouch::now, what, remedy), locked_(data(), bytes, what) {}
  PinnedBuffer(PinnedBuffer&&) = default;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    locked_ = {};  // before the pages are given back
    memory_ = std::move(other.memory_);
    locked_ = std::move(other.locked_);
    return *this;
  }

  std::byte* data() const { return memory_.data(); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  HugeBuffer memory_;
  LockedPages locked_;
};

}  // namespace trireme::comm
