#include "torch/torch.hpp"

#include "trireme/kernels/locked_bytes.hpp"
#include "trireme/kernels/to_device.hpp"

namespace trireme::kernels {
namespace {

at::Tensor of_libtorch(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
}

auto*& giver() {
  static at::Tensor (*give)(int64_t) = of_libtorch;
  return give;
}

}  // namespace

at::Tensor locked_bytes(int64_t bytes) { return giver()(bytes); }
void set_locked_bytes(at::Tensor (*give)(int64_t)) {
  giver() = give != nullptr ? give : of_libtorch;
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  if (device.is_cpu()) return host;
  const at::Tensor locked =
      locked_bytes(static_cast<int64_t>(host.nbytes())).view(host.scalar_type()).view(host.sizes());
  locked.copy_(host);
  return locked.to(device, /*non_blocking=*/true);
}

}  // namespace trireme::kernels
