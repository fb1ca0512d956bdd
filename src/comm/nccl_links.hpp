// Private to trireme_comm_cuda.
#pragma once

#include <string>
#include <vector>

#include "trireme/comm/device_links.hpp"

namespace trireme::comm {

// By rank, what NCCL tells machines apart by. Collective.
std::vector<std::string> hosts_of(const CommView& comm);

// As measure_device_links(), without the time of a sum. Collective.
DeviceLinks find_nccl_links(const CommView& comm, const std::vector<std::string>& hosts);

// measure_device_links() where no two ranks share a device.
DeviceLinks measure_nccl_links(const CommView& comm, const std::vector<std::string>& hosts);

}  // namespace trireme::comm
