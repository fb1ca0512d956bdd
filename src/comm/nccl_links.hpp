// Private to trireme_comm_cuda.
#pragma once

#include <string>
#include <vector>

#include "trireme/comm/device_links.hpp"

namespace trireme::comm {

// measure_device_links() where no two ranks share a device. hosts: by rank, what NCCL tells
// machines apart by.
DeviceLinks measure_nccl_links(const CommView& comm, const std::vector<std::string>& hosts);

}  // namespace trireme::comm
