#include "trireme/kernels/device_kernels.hpp"

namespace trireme::kernels {
namespace {

const DeviceKernels*& current() {
  static const DeviceKernels* kernels = nullptr;
  return kernels;
}

}  // namespace

const DeviceKernels* device_kernels() { return current(); }
void set_device_kernels(const DeviceKernels* kernels) { current() = kernels; }

}  // namespace trireme::kernels
