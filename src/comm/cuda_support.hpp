// CUDA and NCCL handles. Private to trireme_comm_cuda.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/device_copies.hpp"

namespace trireme::comm {

// Throw UserError: out_of_memory where the device has no memory left, else internal; both name the
// call.
void check_cuda(cudaError_t code, const char* call);
void check_nccl(ncclResult_t code, const char* call);
#define TRIREME_CUDA_CALL(call) ::trireme::comm::check_cuda((call), #call)
#define TRIREME_NCCL_CALL(call) ::trireme::comm::check_nccl((call), #call)

// into[i] += values[i] on a stream, bf16 values as their bits; device pointers. In
// shard_exchange_add.cu.
cudaError_t launch_add(float* into, const float* values, int64_t count, cudaStream_t stream);
cudaError_t launch_add(float* into, const uint16_t* values, int64_t count, cudaStream_t stream);
// to[i] = from[i] in bf16; the arrays do not overlap.
cudaError_t launch_round(uint16_t* to, const float* from, int64_t count, cudaStream_t stream);

// sums[i] = what sum_rows() says of rows[i]; both lie on the device, `on_host` has the same rows.
cudaError_t launch_sum_rows(uint64_t* sums, const DeviceRows* rows, const DeviceRows* on_host,
                            int64_t count, cudaStream_t stream);

// The work of start_copy(), finish_copies() and sum_rows() (device_copies.hpp), in the default
// stream.
void start_rows(const RowCopy& copy);
void finish_rows();
std::vector<uint64_t> sum_rows_here(std::span<const DeviceRows> rows);
std::unique_ptr<TwoWayCopies> make_stream_copies();

// Zeroed device memory; `registered` memory comes from ncclMemAlloc, so that NCCL may use it
// without copies.
class DeviceBuffer {
 public:
  enum class Kind : uint8_t { plain, registered };
  DeviceBuffer() = default;
  DeviceBuffer(int64_t bytes, Kind kind);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        kind_(other.kind_) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
    return *this;
  }
  ~DeviceBuffer();
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  Kind kind_ = Kind::plain;
};

class Stream {
 public:
  Stream();  // does not wait for the legacy default stream; highest priority
  Stream(const Stream&) = delete;
  ~Stream();
  operator cudaStream_t() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

class Event {
 public:
  enum class Kind : uint8_t { order, timing };
  explicit Event(Kind kind = Kind::order);
  Event(const Event&) = delete;
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  ~Event();
  void record(cudaStream_t stream);
  // Of a timing event: takes the time when the stream comes here; nothing is ordered by it.
  void stamp(cudaStream_t stream);
  bool is_over() const;                            // the stream has come there
  double seconds_since(const Event& first) const;  // both are over
  void block(
      cudaStream_t stream) const;  // work enqueued on `stream` from now on waits for the event

 private:
  cudaEvent_t handle_ = nullptr;
};

}  // namespace trireme::comm
