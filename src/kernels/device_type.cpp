#include "trireme/kernels/device_type.hpp"

namespace trireme::kernels {
namespace {

c10::DeviceType& type_of_devices() {
  static c10::DeviceType type = c10::DeviceType::CUDA;
  return type;
}

}  // namespace

c10::DeviceType device_type() { return type_of_devices(); }
void set_device_type(c10::DeviceType type) { type_of_devices() = type; }

}  // namespace trireme::kernels
