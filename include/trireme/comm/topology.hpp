// Nodes of a communicator, and memory that the ranks of one node share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

struct NodeTopology {
  int nodes = 1;
  int node = 0;                 // of this rank
  int local_rank = 0;           // within the node
  int local_size = 1;
  std::vector<int> node_of;     // [ranks]
  std::vector<std::string> host_of_node;
};

// Collective. Ranks are on one node when they can share memory (MPI_COMM_TYPE_SHARED).
NodeTopology discover(const CommView& comm);

// Who touches the pages of a shared window first, and so on which NUMA node they lie.
enum class Placement {
  by_owner,  // each rank its own part: for what one rank writes and reads most
  dealt,     // all ranks in turn, 2 MiB each, whoever's part it is: for what all ranks read alike
};

// Memory shared by all ranks of `node_comm`, zeroed, with huge pages where the system allows them. Allocation is
// collective over node_comm; destruction unmaps this rank's view only, the memory goes with the last view. Rank r's part begins at part(r); parts are 4 KiB aligned and lie in one map.
// All of it is backed by memory when the constructor returns: what cannot be had is an error there and no SIGBUS later.
// Visibility between ranks is the caller's: release/acquire atomics on words inside the window.
class SharedWindow {
 public:
  SharedWindow() = default;
  // Collective; `bytes` is this rank's part. Throws out_of_memory with the sizes where the node, or the job's control group, has
  // less memory left, on every rank alike.
  SharedWindow(const CommView& node_comm, int64_t bytes, const std::string& name, Placement placement = Placement::by_owner);
  SharedWindow(SharedWindow&&) noexcept;
  SharedWindow& operator=(SharedWindow&&) noexcept;
  ~SharedWindow();

  std::byte* part(int rank) const { return base_ + offsets_[static_cast<size_t>(rank)]; }
  int64_t part_bytes(int rank) const { return offsets_[static_cast<size_t>(rank) + 1] - offsets_[static_cast<size_t>(rank)]; }
  int64_t total_bytes() const { return offsets_.empty() ? 0 : offsets_.back(); }
  bool valid() const { return base_ != nullptr; }
  // "memfd, 4 KiB pages, one NUMA node" or the like, for the log: what the kernel reports, not what was asked for.
  const std::string& kind() const { return kind_; }

 private:
  void release() noexcept;
  std::byte* base_ = nullptr;
  int64_t mapped_bytes_ = 0;
  std::vector<int64_t> offsets_;
  std::string kind_;
};

}  // namespace trireme::comm
