#include "trireme/comm/topology.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "comm/mpi_support.hpp"
#include "trireme/trace/activity.hpp"

namespace trireme::comm {

NodeTopology discover(const CommView& comm) {
  NodeTopology topology;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  topology.node_of.assign(static_cast<size_t>(comm.size()), 0);
  if (comm.size() == 1) {
    topology.host_of_node = {host.data()};
    return topology;
  }
  const trace::Collective collective{"split by nodes", comm.name().c_str(), 0};
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(static_cast<MPI_Comm>(comm.native()), MPI_COMM_TYPE_SHARED,
                                comm.rank(), MPI_INFO_NULL, &local),
            "MPI_Comm_split_type");
  check_mpi(MPI_Comm_rank(local, &topology.local_rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(local, &topology.local_size), "MPI_Comm_size");
  int leader = comm.rank();
  check_mpi(MPI_Bcast(&leader, 1, MPI_INT, 0, local), "MPI_Bcast");
  check_mpi(MPI_Comm_free(&local), "MPI_Comm_free");

  // Nodes are numbered in the order of their lowest ranks.
  const auto leaders = comm.gather_values(leader);
  std::vector<int> distinct = leaders;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const auto hosts = comm.all_gather(host.data());
  for (size_t rank = 0; rank < leaders.size(); ++rank) {
    const auto node =
        std::lower_bound(distinct.begin(), distinct.end(), leaders[rank]) - distinct.begin();
    topology.node_of[rank] = static_cast<int>(node);
  }
  for (const int first : distinct)
    topology.host_of_node.push_back(hosts[static_cast<size_t>(first)]);
  topology.nodes = static_cast<int>(distinct.size());
  topology.node = topology.node_of[static_cast<size_t>(comm.rank())];
  return topology;
}

}  // namespace trireme::comm
