// How the GPUs of a communicator's ranks reach each other, for the first words of a run: a center
// that isolates GPUs, or lacks NCCL's plugin for its network, makes every message several times
// slower without an error.
#pragma once

#include <optional>
#include <string>

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

struct DeviceLinks {
  int library = 0;  // version of NCCL: 22809
  int ranks = 0, nodes = 0;
  bool shares_node = false;  // two ranks or more are on one node
  bool peer_to_peer =
      false;           // of each node, where GPUs are on one: each can read the others' memory
  double seconds = 0;  // of a sum of summed_bytes over the ranks, the best of a few
};
inline constexpr int64_t summed_bytes = int64_t{1} << 20;

// Nothing where the ranks' devices do not use NCCL: CPUs, one rank, ranks that share a GPU. Waits
// for the device. Collective over `comm`; while another user of the same ranks is alive NCCL makes
// no connections for it.
std::optional<DeviceLinks> measure_device_links(const CommView& comm);
// Who measures them; set by enable_device_exchange().
void set_link_measurement(std::optional<DeviceLinks> (*measure)(const CommView& comm));

// For the log, one line.
std::string describe(const DeviceLinks& links);
// "", or why messages between these GPUs are slower than any of their networks, and what to do.
std::string problem_of(const DeviceLinks& links);

}  // namespace trireme::comm
