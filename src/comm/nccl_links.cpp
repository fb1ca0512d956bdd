// Transport of an NCCL communicator and the time of a sum.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "comm/cuda_support.hpp"
#include "comm/nccl_comm.hpp"
#include "comm/nccl_links.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/device_exchange.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::comm {
namespace {

constexpr int warm_up = 2, repetitions = 3;

bool reaches(int device, const std::string& bus) {
  int peer = 0, can = 0;
  if (cudaDeviceGetByPCIBusId(&peer, bus.c_str()) == cudaSuccess &&
      (peer == device || cudaDeviceCanAccessPeer(&can, device, peer) == cudaSuccess))
    return peer == device || can != 0;
  static_cast<void>(cudaGetLastError());  // a GPU that this process does not see
  return false;
}

bool switched_off() {
  const char* wish = std::getenv("NCCL_P2P_DISABLE");
  return wish != nullptr && std::atoi(wish) != 0;
}

double seconds_of_a_sum(const CommView& comm) {
  const NcclComm nccl(comm);
  const Stream stream;
  const DeviceBuffer values(summed_bytes, DeviceBuffer::Kind::plain);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < warm_up + repetitions; ++i) {
    comm.barrier();
    const base::Stopwatch watch;
    nccl.check(ncclAllReduce(values.data(), values.data(), summed_bytes / sizeof(float), ncclFloat,
                             ncclSum, nccl.handle(), stream),
               "ncclAllReduce");
    TRIREME_CUDA_CALL(cudaStreamSynchronize(stream));
    if (i >= warm_up) best = std::min(best, watch.seconds());
  }
  return comm.max(best);
}

}  // namespace

std::vector<std::string> hosts_of(const CommView& comm) {
  const auto nodes = discover(comm);
  const char* host = std::getenv("NCCL_HOSTID");
  return comm.all_gather(host != nullptr ? base::text("host ", host)
                                         : base::text("node ", nodes.node));
}

DeviceLinks find_nccl_links(const CommView& comm, const std::vector<std::string>& hosts) {
  int device = 0;
  TRIREME_CUDA_CALL(cudaGetDevice(&device));
  DeviceLinks out;
  TRIREME_NCCL_CALL(ncclGetVersion(&out.library));
  out.ranks = comm.size();
  const auto buses = comm.all_gather(device_bus_id(device));
  const std::string& mine = hosts[static_cast<size_t>(comm.rank())];
  bool all = !switched_off();
  int together = 0;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != mine) continue;
    ++together;
    all = all && reaches(device, buses[rank]);
  }
  auto different = hosts;
  std::ranges::sort(different);
  const auto repeated = std::ranges::unique(different);
  out.nodes = static_cast<int>(repeated.begin() - different.begin());
  out.shares_node = comm.max(together) > 1;
  out.peer_to_peer = comm.all(all);
  return out;
}

DeviceLinks measure_nccl_links(const CommView& comm, const std::vector<std::string>& hosts) {
  DeviceLinks out = find_nccl_links(comm, hosts);
  out.seconds = seconds_of_a_sum(comm);
  return out;
}

}  // namespace trireme::comm
