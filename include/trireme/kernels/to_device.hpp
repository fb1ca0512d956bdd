// Copies for which the host does not wait.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

// A copy of a host's tensor on `device`, through page-locked memory that LibTorch uses again when
// the copy is over; the tensor itself where `device` is the CPU.
at::Tensor to_device(const at::Tensor& host, at::Device device);

}  // namespace trireme::kernels
