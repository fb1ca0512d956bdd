#include "torch/torch.hpp"

#include "trireme/kernels/to_device.hpp"

namespace trireme::kernels {

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  if (device.is_cpu()) return host;
  const at::Tensor locked = at::empty(host.sizes(), host.options().pinned_memory(true));
  locked.copy_(host);
  return locked.to(device, /*non_blocking=*/true);
}

}  // namespace trireme::kernels
