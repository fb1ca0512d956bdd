// The fake NCCL: its own memory, registrations of it, and symmetric windows. Refuses what NCCL only
// asks for in its manual: other memory than ncclMemAlloc's, sizes and places that differ between
// ranks, memory that is freed before its window, windows that outlive their communicator.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fakegpu/nccl_comm.hpp"

using namespace trireme::fakegpu;

struct ncclWindow_vidmem {
  ncclComm_t comm;
  const std::byte* data;
  size_t bytes;
  bool holds(const void* values, size_t count) const {
    const auto* first = static_cast<const std::byte*>(values);
    return first >= data && first + count <= data + bytes;
  }
};

namespace {

struct Windows {
  std::mutex mutex;
  std::map<void*, size_t> memory;  // of ncclMemAlloc
  std::vector<ncclWindow_t> all;
};
Windows& windows() {
  static auto* windows = new Windows;
  return *windows;
}

void find(const char* what) {
  const std::lock_guard lock(machine().mutex);
  machine().order.find(what);
}

// What all ranks must say alike.
struct Wish {
  size_t bytes, offset;
  bool operator==(const Wish&) const = default;
};

bool agree(ncclComm_t comm, const Wish& mine) {
  bool alike = true;
  const auto outcome =
      comm->segment.show({"window", 0}, &mine, sizeof mine, [&](int, const std::byte* shown) {
        Wish other;
        std::memcpy(&other, shown, sizeof other);
        alike = alike && other == mine;
      });
  if (outcome == Segment::Outcome::done && alike) return true;
  report(comm, ncclInvalidUsage, "windows of the ranks differ, or ranks made different calls");
  return false;
}

}  // namespace

namespace trireme::fakegpu {

std::optional<size_t> place_in_window(ncclComm_t comm, const void* values, size_t bytes) {
  const std::lock_guard lock(windows().mutex);
  for (const ncclWindow_t window : windows().all) {
    if (window->comm == comm && window->holds(values, bytes))
      return static_cast<size_t>(static_cast<const std::byte*>(values) - window->data);
  }
  return std::nullopt;
}

void end_windows(ncclComm_t comm) {
  const std::lock_guard lock(windows().mutex);
  const auto gone = std::ranges::partition(
      windows().all, [&](ncclWindow_t window) { return window->comm != comm; });
  for (const ncclWindow_t window : gone) {
    if (!*comm->aborted) find("a communicator is destroyed before its window is given up");
    delete window;
  }
  windows().all.erase(gone.begin(), gone.end());
}

}  // namespace trireme::fakegpu

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  if (allocate(data, bytes) == cudaSuccess) {
    const std::lock_guard lock(windows().mutex);
    windows().memory[*data] = bytes;
    return ncclSuccess;
  }
  static_cast<void>(cudaGetLastError());  // NCCL asks the driver, not the run time
  return refuse(ncclUnhandledCudaError, "Cuda failure 'out of memory'");
}

// Waits for nobody: what still uses the memory is a finding.
ncclResult_t ncclMemFree(void* data) {
  if (data == nullptr) return ncclSuccess;
  {
    const std::lock_guard lock(windows().mutex);
    if (windows().memory.erase(data) == 0)
      return refuse(ncclInvalidArgument, "no memory of ncclMemAlloc");
    for (const ncclWindow_t window : windows().all) {
      if (window->data == data) find("memory is freed before its window is given up");
    }
  }
  return release(data) ? ncclSuccess
                       : refuse(ncclInvalidArgument, "memory of ncclMemAlloc was freed as CUDA's");
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  if (!on_device(data, bytes))
    return refuse(ncclInvalidArgument, "registration of memory that is not the device's");
  *handle = *comm->registrations.insert(new std::pair<const void*, size_t>(data, bytes)).first;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const auto found = comm->registrations.find(static_cast<std::pair<const void*, size_t>*>(handle));
  if (found == comm->registrations.end())
    return refuse(ncclInvalidArgument, "no registration of this communicator");
  const bool freed = !on_device((*found)->first, (*found)->second);
  delete *found;
  comm->registrations.erase(found);
  return freed ? refuse(ncclInvalidUsage, "the memory was freed before its registration")
               : ncclSuccess;
}

// As NCCL where it supports none: no window, and no error.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, size_t bytes, ncclWindow_t* made,
                                    int flags) {
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  const Faults faults = current_faults();
  constexpr int first_version = 22703;
  if (faults.version < first_version)
    return refuse(ncclInvalidUsage, "this version of NCCL has no windows");
  if (faults.failing_window) return refuse(ncclSystemError, "no memory");
  *made = nullptr;
  if (faults.no_windows) return ncclSuccess;
  if (flags != NCCL_WIN_COLL_SYMMETRIC)
    return refuse(ncclInvalidArgument, "the fake NCCL knows symmetric windows");
  const auto* const first = static_cast<const std::byte*>(data);
  size_t offset = 0;
  {
    const std::lock_guard lock(windows().mutex);
    auto block = windows().memory.upper_bound(data);
    if (block != windows().memory.begin()) --block;
    if (block == windows().memory.end() || block->first > data ||
        first + bytes > static_cast<std::byte*>(block->first) + block->second)
      return refuse(ncclInvalidArgument, "a window of memory that is not ncclMemAlloc's");
    offset = static_cast<size_t>(first - static_cast<std::byte*>(block->first));
  }
  if (offset % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return refuse(ncclInvalidArgument, "Window address must be suitably aligned.");
  return carry_out(comm, [=] {
    if (!agree(comm, {bytes, offset})) return false;
    *made = new ncclWindow_vidmem{comm, first, bytes};
    const std::lock_guard lock(windows().mutex);
    windows().all.push_back(*made);
    return true;
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (window == nullptr) return ncclSuccess;
  const std::lock_guard lock(windows().mutex);
  const auto found = std::ranges::find(windows().all, window);
  if (found == windows().all.end() || window->comm != comm) {
    find("a window is given up that its communicator does not have");
    return refuse(ncclInvalidArgument, "no window of this communicator");
  }
  if (comm->on_streams > 0) find("a window is given up while its communicator has work in flight");
  delete window;
  windows().all.erase(found);
  return ncclSuccess;
}
