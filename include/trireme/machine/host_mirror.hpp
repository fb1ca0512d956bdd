// Host copies of arrays that live on a GPU, for code that reads and writes host memory:
// checkpoints, weight sync, export. On CPUs an array is its own copy: nothing is allocated, nothing
// is moved.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "trireme/base/placed.hpp"
#include "trireme/kernels/device_type.hpp"

namespace trireme::machine {

class HostMirror {
 public:
  explicit HostMirror(at::Device device) : device_(device) {}
  HostMirror(const HostMirror&) = delete;

  // Where the host sees `bytes` bytes of an array on the device: the same address whenever the same
  // array is added again, valid as long as the mirror. Page-locked; its contents are those of the
  // last to_host(). Null for null. The arrays must stay where they are.
  template <class T>
  T* add(base::Placed<T> array, int64_t bytes) {
    if (!copies() || !array) return array.host();
    return static_cast<T*>(add_copy(const_cast<std::remove_const_t<T>*>(array.address()), bytes));
  }

  // Copies every array that was added, after all work on the device so far; complete when it
  // returns.
  void to_host() { copy(Direction::to_host); }
  void to_device() { copy(Direction::to_device); }

  // Whether the host's arrays are copies, which stay as they are while the device's change.
  bool copies() const { return !kernels::on_host(device_); }
  int64_t bytes() const { return bytes_; }  // of host memory that this mirror took

 private:
  enum class Direction : uint8_t { to_host, to_device };
  struct Copy {
    std::byte* host;
    int64_t bytes;
  };
  void* add_copy(void* array, int64_t bytes);
  std::byte* allocate(int64_t bytes);
  void copy(Direction direction);

  at::Device device_;
  std::unordered_map<void*, Copy> copies_;  // by the array on the device
  std::vector<at::Tensor> slabs_;           // u8, page-locked
  std::byte* next_ = nullptr;               // first free byte of the last slab
  int64_t left_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace trireme::machine
