#include "torch/torch.hpp"

#include "trireme/kernels/device_graph.hpp"

namespace trireme::kernels {
namespace {

MakeDeviceGraphs& maker() {
  static MakeDeviceGraphs make = nullptr;
  return make;
}

}  // namespace

std::unique_ptr<DeviceGraphs> make_device_graphs(at::Device device) {
  return maker() != nullptr ? maker()(device) : nullptr;
}
void set_device_graphs(MakeDeviceGraphs make) { maker() = make; }

}  // namespace trireme::kernels
