#include "trireme/driver/gpu.hpp"

#include "driver/device.hpp"
#include "trireme/comm/device_exchange.hpp"

namespace trireme::driver {

void enable_gpu() {
  comm::enable_device_exchange();
  set_gpu_identity(&comm::device_bus_id);
}

}  // namespace trireme::driver
