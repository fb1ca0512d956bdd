#include "trireme/driver/gpu.hpp"

#include "trireme/machine/device.hpp"
#include "trireme/comm/device_exchange.hpp"
#include "trireme/kernels/device_kernels.hpp"

namespace trireme::driver {

void enable_gpu() {
  comm::enable_device_exchange();
  kernels::enable_device_kernels();
  machine::set_gpu_identity(&comm::device_bus_id);
}

}  // namespace trireme::driver
