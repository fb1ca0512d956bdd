// Nodes of a communicator, and memory that the ranks of one node share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/files.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::comm {

struct NodeTopology {
  int nodes = 1;
  int node = 0;        // of this rank
  int local_rank = 0;  // within the node
  int local_size = 1;
  std::vector<int> node_of;  // [ranks]
  std::vector<std::string> host_of_node;
};

// Collective. Ranks are on one node when they can share memory (MPI_COMM_TYPE_SHARED).
NodeTopology discover(const CommView& comm);

// Who touches the pages of a shared window first, and so on which NUMA node they lie.
enum class Placement {
  by_owner,  // each rank its own part: for what one rank writes and reads most
  dealt,     // all ranks in turn, 2 MiB each, whoever's part it is: for what all ranks read alike
};

// Memory shared by all ranks of `node_comm`, zeroed, with huge pages where the system allows them.
// Allocation is collective over node_comm; destruction unmaps this rank's view only, the memory
// goes with the last view. Rank r's part begins at part(r); parts are 4 KiB aligned and lie in one
// map. All of it is backed by memory when the constructor returns: what cannot be had is an error
// there and no SIGBUS later. Visibility between ranks is the caller's: release/acquire atomics on
// words inside the window.
class SharedWindow {
 public:
  SharedWindow() = default;
  // Collective; `bytes` is this rank's part. Throws out_of_memory with the sizes where the node, or
  // the job's control group, has less memory left, on every rank alike.
  SharedWindow(const CommView& node_comm, int64_t bytes, const std::string& name,
               Placement placement = Placement::by_owner);
  SharedWindow(SharedWindow&&) noexcept;
  SharedWindow& operator=(SharedWindow&&) noexcept;
  ~SharedWindow();

  std::byte* part(int rank) const { return base_ + offsets_[static_cast<size_t>(rank)]; }
  int64_t part_bytes(int rank) const {
    return offsets_[static_cast<size_t>(rank) + 1] - offsets_[static_cast<size_t>(rank)];
  }
  int64_t total_bytes() const { return offsets_.empty() ? 0 : offsets_.back(); }
  bool valid() const { return base_ != nullptr; }
  // "memfd, 4 KiB pages, one NUMA node" or the like, for the log: as the kernel reports it, not
  // as asked for.
  const std::string& kind() const { return kind_; }

 private:
  void release() noexcept;
  std::byte* base_ = nullptr;
  int64_t mapped_bytes_ = 0;
  base::FileDescriptor file_;  // open as long as the window: others find it in /proc
  std::vector<int64_t> offsets_;
  std::string kind_;
};

// A window's file as a process that has it names it to others of the node.
struct WindowFile {
  int32_t pid = 0;
  int32_t fd = -1;
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t bytes = 0;
  bool operator==(const WindowFile&) const = default;
};

// Where an address lies in a window of this process. Any thread.
struct WindowPlace {
  WindowFile file;
  int64_t offset = -1;  // bytes from the window's begin; negative: it lies in none
  bool operator==(const WindowPlace&) const = default;
};
WindowPlace find_in_windows(const void* address);

// Another process's window, for reading, mapped without that process's help: this process's own map
// where it has one. The two must agree on what is read there, and when.
class WindowView {
 public:
  // Not valid() where the file cannot be opened through /proc, or is another one there.
  explicit WindowView(const WindowFile& file);
  WindowView(WindowView&&) noexcept;
  WindowView& operator=(WindowView&&) = delete;
  ~WindowView();
  bool valid() const { return base_ != nullptr; }
  const std::byte* base() const { return base_; }

 private:
  const std::byte* base_ = nullptr;
  int64_t mapped_bytes_ = 0;  // by this object; 0: it is a window of this process
};

}  // namespace trireme::comm
