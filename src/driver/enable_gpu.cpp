#include "trireme/driver/gpu.hpp"

#include "trireme/comm/device_exchange.hpp"
#include "trireme/kernels/device_graph.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_product.hpp"
#include "trireme/machine/device.hpp"

namespace trireme::driver {

void enable_gpu() {
  comm::enable_device_exchange();
  kernels::enable_device_kernels();
  kernels::enable_device_product();
  kernels::enable_device_graphs();
  machine::set_gpu_library({&comm::device_bus_id, &comm::cuda_versions});
}

}  // namespace trireme::driver
