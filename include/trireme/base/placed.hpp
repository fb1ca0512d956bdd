// Addresses that say in whose memory they are. A GPU's memory has addresses like any other, and the
// host that reads one crashes: interfaces that may give either give these, and raw pointers are the
// host's.
#pragma once

#include <cstdint>

#include "trireme/base/error.hpp"

namespace trireme::base {

enum class Memory : uint8_t { host, device };

template <class T>
class Placed {
 public:
  Placed() = default;
  Placed(T* address, Memory memory) : address_(address), memory_(memory) {}
  operator Placed<const T>() const { return {address_, memory_}; }

  explicit operator bool() const { return address_ != nullptr; }
  Memory memory() const { return memory_; }
  // For code of the host. Throws InternalError where a device has it.
  T* host() const {
    if (address_ != nullptr && memory_ != Memory::host)
      throw InternalError(
          "code of the host was given memory of a GPU: copy it first (machine::HostMirror, "
          "comm::start_copy)");
    return address_;
  }
  // For kernels, copies and collectives, which know where it is.
  T* address() const { return address_; }

 private:
  T* address_ = nullptr;
  Memory memory_ = Memory::host;
};

}  // namespace trireme::base
