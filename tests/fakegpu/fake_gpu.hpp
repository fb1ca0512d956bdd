// A fake GPU for test binaries: the functions of the CUDA run time and of NCCL that src/comm
// calls, on threads and host memory, so that the sources for GPUs run, unchanged, where there is
// none. This header is what tests see of it beside <cuda_runtime.h>.
//
// Streams are threads with a queue each; every operation is late by a random time. What an
// asynchronous operation will write is made unusable (NaN) when it begins, so that whoever reads
// too early computes nonsense. Independent of any timing, the order of operations is followed as
// CUDA promises it (program order of a stream, events, waits of the host): two operations on the
// same bytes of which one writes, and between which nothing of that stands, are a finding.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::fakegpu {

// Bytes that an operation uses.
struct Range {
  const void* data;
  size_t bytes;
  bool written;
};
inline Range reads(const void* data, size_t bytes) { return {data, bytes, false}; }
inline Range writes(const void* data, size_t bytes) { return {data, bytes, true}; }

// A kernel: `body` runs in the order of the stream. cudaErrorInvalidValue where a range is not
// within one allocation of the device.
cudaError_t launch(cudaStream_t stream, std::vector<Range> ranges, std::function<void()> body);

// Longest delay before an operation; in between at random. The legacy default stream (0) and all
// others.
struct Delays {
  unsigned seed = 1;
  int legacy_us = 100;
  int others_us = 100;
};
void set_delays(const Delays& delays);

// What this process's device is called (two ranks with one name share a device), and how much
// memory it has. From then on it is device 1 of the process, and the calling thread uses it.
void set_bus_id(const std::string& name);
void set_memory(size_t bytes);
void hide_peers(bool hidden);  // the other ranks' devices from this process

// Names what the test does from here to the end of the scope, for Edge.
class During {
 public:
  explicit During(const char* what);
  During(const During&) = delete;
  ~During();

 private:
  const char* before_;
};

// A call that is left out wherever it comes: the index-th cudaEventRecord, cudaStreamWaitEvent or
// cudaStreamSynchronize within each scope of that name.
struct Edge {
  enum class Call : uint8_t { record, wait, synchronize };
  std::string during;
  Call call = Call::wait;
  int index = 0;
};
void leave_out(std::optional<Edge> edge);
int left_out();  // calls since leave_out()

// Pairs of operations without an order between them, since the last call; and the bytes of device
// memory that are not free.
std::vector<std::string> take_findings();
size_t device_bytes();
size_t locked_ranges();  // of host memory
size_t locked_bytes();   // in them

// What NCCL suffers on this rank; calls are collectives of one communicator, counted from 1.
struct Faults {
  int error_at_call = 0;  // this collective never ends, and an asynchronous error is reported
  int missing_at_call =
      0;  // this rank never comes to this collective: it ends nowhere, and nothing is reported
  bool endless_init = false;  // ranks do not find each other while this is set; of a split, too
  bool failing_split = false;
  bool failing_window = false, no_windows = false;  // registering one fails; it makes none
  int version = 22809;                              // of NCCL
};
void set_faults(const Faults& faults);
// Since the program began.
struct NcclCounts {
  int made = 0, destroyed = 0, aborted = 0;
  int split = 0;        // of those that were made
  int threads = 0;      // that calls made to go on in
  int window_sums = 0;  // that ran in symmetric windows
};
NcclCounts nccl_counts();

// Stands for a recording of what `stream` was given: communicators whose collectives are among that
// are freed after it, else that is a finding (NCCL's wait for it, for ever).
class Recording {
 public:
  explicit Recording(cudaStream_t stream);

 private:
  std::vector<std::shared_ptr<int>> communicators_;
};

}  // namespace trireme::fakegpu
