// Private to trireme_comm_cuda.
#pragma once

#include <memory>

#include "trireme/comm/device_messages.hpp"

namespace trireme::comm {

// make_device_messages() of ranks with a device each.
std::unique_ptr<DeviceMessages> make_nccl_messages(const CommView& comm);

}  // namespace trireme::comm
