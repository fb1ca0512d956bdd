#include "trireme/comm/device_links.hpp"

#include "trireme/base/text.hpp"

namespace trireme::comm {
namespace {

// Bytes a second on each rank's link, as NCCL's tests count them ("bus bandwidth").
constexpr double least_in_node = 10e9;  // PCI Express 4.0 gives 20e9, host memory less than this
constexpr double least_between_nodes = 1e9;  // InfiniBand and Slingshot give 10e9 and more

using Measurement = std::optional<DeviceLinks> (*)(const CommView& comm);
Measurement& measurement() {
  static Measurement measure = nullptr;
  return measure;
}

double rate(const DeviceLinks& links) {
  const double passes = 2.0 * (links.ranks - 1) / links.ranks;
  return passes * static_cast<double>(summed_bytes) / links.seconds;
}

std::string transport(const DeviceLinks& links) {
  const std::string inside = links.peer_to_peer ? "P2P" : "shared memory of the host, no P2P";
  if (links.nodes == 1) return inside;
  const std::string between = base::text("network between ", links.nodes, " nodes");
  return links.shares_node ? base::text(inside, " inside a node, ", between) : between;
}

}  // namespace

std::optional<DeviceLinks> measure_device_links(const CommView& comm) {
  return comm.size() < 2 || measurement() == nullptr ? std::nullopt : measurement()(comm);
}

void set_link_measurement(Measurement measure) { measurement() = measure; }

std::string describe(const DeviceLinks& links) {
  return base::text("NCCL ", links.library / 10000, ".", links.library / 100 % 100, ".",
                    links.library % 100, ", ", links.ranks, " ranks: ", transport(links),
                    "; a sum of 1 MiB takes ", base::human_seconds(links.seconds), " (",
                    base::fixed(rate(links) / 1e9, 1), " GB/s)");
}

std::string problem_of(const DeviceLinks& links) {
  if (links.shares_node && !links.peer_to_peer)
    return "messages between the GPUs of a node go through host memory (no P2P): let each rank see "
           "all GPUs of its node (--gpus-per-node instead of "
           "--gpus-per-task or --gpu-bind), unset NCCL_P2P_DISABLE";
  const double least = links.nodes == 1 ? least_in_node : least_between_nodes;
  if (rate(links) >= least) return "";
  return base::text(
      "a sum of 1 MiB over ", links.ranks, " GPUs runs at ", base::fixed(rate(links) / 1e9, 2),
      " GB/s, below ", base::fixed(least / 1e9, 0),
      links.nodes == 1 ? " (the links between the GPUs of a node are slow or busy): look at "
                         "\"nvidia-smi topo -m\" and at NCCL_DEBUG=INFO"
                       : " (NCCL may use Ethernet instead of the fast network): load the center's "
                         "NCCL plugin (NCCL_NET), set NCCL_SOCKET_IFNAME, look at NCCL_DEBUG=INFO");
}

}  // namespace trireme::comm
