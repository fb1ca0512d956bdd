#include "torch/torch.hpp"

#include "trireme/machine/host_mirror.hpp"

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/locked_bytes.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::machine {
namespace {

at::Tensor bytes_at(void* address, int64_t bytes, at::Device device) {
  return at::from_blob(address, {bytes}, at::TensorOptions().dtype(at::kByte).device(device));
}

}  // namespace

std::byte* HostMirror::allocate(int64_t bytes) {
  bytes = base::round_up(bytes, plan::MirrorBytes::alignment);
  if (bytes > left_) {
    left_ = plan::MirrorBytes::slab(bytes);
    slabs_.push_back(kernels::locked_bytes(left_));
    next_ = static_cast<std::byte*>(slabs_.back().mutable_data_ptr());
    bytes_ += left_;
  }
  std::byte* memory = next_;
  next_ += bytes;
  left_ -= bytes;
  return memory;
}

void* HostMirror::add_copy(void* array, int64_t bytes) {
  const auto [entry, added] = copies_.try_emplace(array, Copy{nullptr, bytes});
  if (added) entry->second.host = allocate(bytes);
  EXPECT(entry->second.bytes == bytes);
  return entry->second.host;
}

void HostMirror::copy(Direction direction) {
  if (copies_.empty()) return;
  const at::NoGradGuard no_gradients;
  constexpr bool asynchronous = true;
  for (const auto& [array, copy] : copies_) {
    if (copy.bytes == 0) continue;
    at::Tensor host = bytes_at(copy.host, copy.bytes, at::kCPU),
               device = bytes_at(array, copy.bytes, device_);
    if (direction == Direction::to_host) {
      host.copy_(device, asynchronous);
    } else {
      device.copy_(host, asynchronous);
    }
  }
  wait_for(device_);
}

}  // namespace trireme::machine
