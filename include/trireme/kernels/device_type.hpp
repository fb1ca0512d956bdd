// Which tensors count as on a device. Tensors of a device are computed by kernels that the host
// starts and does not wait for; whether the host treats them so is decided by on_host(), not
// by the type of a tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

// CUDA, unless set otherwise.
c10::DeviceType device_type();
// For tests where there is no GPU: the CPU as `type` sends tensors of the host the ways of a
// device's. Before any model or generator is made.
void set_device_type(c10::DeviceType type);

inline bool on_host(c10::Device device) { return device.type() != device_type(); }

}  // namespace trireme::kernels
