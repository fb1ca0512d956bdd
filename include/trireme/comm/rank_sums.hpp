// Sums over the ranks of a tensor-parallel group, or of copies of a shard, where the values lie: in
// host memory by MPI, on devices by NCCL on a communicator of the group's own. Work enqueued on a
// device is not waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

struct RankSumsCounters {
  int64_t sums = 0;
  int64_t bytes = 0;       // of the values that were summed and gathered, this rank's
  int64_t host_bytes = 0;  // those of them that went through host memory: all on CPUs, none by NCCL
  int64_t window_bytes = 0;  // those of them that were summed in open_window()'s memory
  int64_t device_waits = 0;  // times that the host waited for the device
};

class RankSums {
 public:
  virtual ~RankSums() = default;  // collective on devices
  // values[i] becomes the sum over the ranks, f32 or bf16, the same bits on all. On CPUs fp32 in
  // the order of the ranks, rounded once. Collective.
  virtual void add_up(void* values, int64_t count, DType type) = 0;
  // The same of fp32 values on a device, which go from rank to rank in `type`.
  virtual void add_up_in(DType type, float* values, int64_t count) = 0;
  // Every rank's `bytes` bytes, one rank's behind the other's; this rank's lie in their place
  // already. Collective.
  virtual void gather(void* all, int64_t bytes) = 0;
  // At least `bytes` bytes of a device's memory, as many on all ranks, in which add_up() may be
  // faster: the GPUs of a node see each other's (a symmetric window of NCCL). Null on all ranks
  // where one has none; kind() tells why. Belongs to the sums. Called once at most, while nothing
  // is recorded. Collective. Throws UserError(out_of_memory), and what make_rank_sums() throws.
  virtual std::byte* open_window(int64_t /*bytes*/) { return nullptr; }
  virtual std::string kind() const = 0;  // for the log
  // True: a device can record them (kernels/device_graph.hpp); the host does nothing in between.
  virtual bool recordable() const { return false; }
  // Where those of a device take their place from now on.
  virtual void use_stream(void* /*compute_stream*/) {}
  const RankSumsCounters& counters() const { return counters_; }
  // For callers that replay sums without a call, or call without running one.
  void set_counters(const RankSumsCounters& counters) { counters_ = counters; }

 protected:
  void count_wait() { ++counters_.device_waits; }
  void count(int64_t bytes, bool through_host) {
    ++counters_.sums;
    counters_.bytes += bytes;
    counters_.host_bytes += through_host ? bytes : 0;
  }
  void count_in_window(int64_t bytes) { counters_.window_bytes += bytes; }

 private:
  RankSumsCounters counters_;
};

// `device`: the values lie in the memory of the current CUDA device, and sums take their place
// among the work of `compute_stream` (a cudaStream_t; null: the legacy default stream). Ranks that
// share a device go through host memory. Collective over `comm`, which must outlive the sums.
// Throws unfit_environment where this program has no CUDA.
std::unique_ptr<RankSums> make_rank_sums(const CommView& comm, bool device,
                                         void* compute_stream = nullptr);

}  // namespace trireme::comm
