#include "comm/cuda_support.hpp"

#include "trireme/base/error.hpp"
#include "trireme/comm/device_bytes.hpp"

namespace trireme::comm {

namespace {

[[noreturn]] void refuse_memory(const char* call) {
  throw UserError(ExitCode::out_of_memory,
                  base::text("the GPU has no memory left for ", call,
                             ": use more ranks, shorter micro-batches or recompute"));
}

// NCCL asks the driver for memory and does not say why it got none.
void check_registered(ncclResult_t code, size_t bytes) {
  constexpr size_t granule = size_t{2} << 20;
  size_t free_bytes = 0, all = 0;
  if (code != ncclSuccess && cudaMemGetInfo(&free_bytes, &all) == cudaSuccess &&
      free_bytes < bytes + granule)
    refuse_memory("ncclMemAlloc");
  check_nccl(code, "ncclMemAlloc");
}

}  // namespace

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  if (code == cudaErrorMemoryAllocation) refuse_memory(call);
  throw InternalError(base::text("CUDA: ", call, " failed: ", cudaGetErrorString(code)));
}

void check_nccl(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return;
  throw InternalError(base::text("NCCL: ", call, " failed: ", ncclGetErrorString(code), " (",
                                 ncclGetLastError(nullptr), ")"));
}

void start_rows(const RowCopy& c) {
  if (c.rows == 1) {
    TRIREME_CUDA_CALL(
        cudaMemcpyAsync(c.to, c.from, static_cast<size_t>(c.bytes), cudaMemcpyDefault, nullptr));
  } else {
    TRIREME_CUDA_CALL(cudaMemcpy2DAsync(
        c.to, static_cast<size_t>(c.to_stride), c.from, static_cast<size_t>(c.from_stride),
        static_cast<size_t>(c.bytes), static_cast<size_t>(c.rows), cudaMemcpyDefault, nullptr));
  }
}

void finish_rows() { TRIREME_CUDA_CALL(cudaStreamSynchronize(nullptr)); }

DeviceBuffer::DeviceBuffer(int64_t bytes, Kind kind) : bytes_(bytes), kind_(kind) {
  if (bytes == 0) return;
  void* data = nullptr;
  if (kind == Kind::registered) {
    check_registered(ncclMemAlloc(&data, static_cast<size_t>(bytes)), static_cast<size_t>(bytes));
  } else {
    TRIREME_CUDA_CALL(cudaMalloc(&data, static_cast<size_t>(bytes)));
  }
  data_ = static_cast<std::byte*>(data);
  count_device_bytes(bytes);
  TRIREME_CUDA_CALL(cudaMemset(data, 0, static_cast<size_t>(bytes)));
  TRIREME_CUDA_CALL(cudaStreamSynchronize(nullptr));  // cudaMemset is a kernel of the legacy
                                                      // stream, for which other streams do not wait
}

DeviceBuffer::~DeviceBuffer() {
  if (!data_) return;
  count_device_bytes(-bytes_);
  if (kind_ == Kind::registered) {
    static_cast<void>(ncclMemFree(data_));
  } else {
    static_cast<void>(cudaFree(data_));
  }
}

Stream::Stream() {
  int lowest = 0, highest = 0;
  TRIREME_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  TRIREME_CUDA_CALL(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, highest));
}
Stream::~Stream() { static_cast<void>(cudaStreamDestroy(handle_)); }

Event::Event(Kind kind) {
  TRIREME_CUDA_CALL(cudaEventCreateWithFlags(
      &handle_, kind == Kind::order ? cudaEventDisableTiming : cudaEventDefault));
}
Event::~Event() {
  if (handle_) static_cast<void>(cudaEventDestroy(handle_));
}
void Event::record(cudaStream_t stream) { TRIREME_CUDA_CALL(cudaEventRecord(handle_, stream)); }
void Event::stamp(cudaStream_t stream) {
  TRIREME_CUDA_CALL(cudaEventRecordWithFlags(handle_, stream, cudaEventRecordDefault));
}
bool Event::is_over() const {
  const cudaError_t code = cudaEventQuery(handle_);
  if (code == cudaErrorNotReady) {
    static_cast<void>(
        cudaGetLastError());  // who asks next must not take it for an error of its own
    return false;
  }
  check_cuda(code, "cudaEventQuery");
  return true;
}
double Event::seconds_since(const Event& first) const {
  float milliseconds = 0;
  TRIREME_CUDA_CALL(cudaEventElapsedTime(&milliseconds, first.handle_, handle_));
  return 1e-3 * static_cast<double>(milliseconds);
}
void Event::block(cudaStream_t stream) const {
  TRIREME_CUDA_CALL(cudaStreamWaitEvent(stream, handle_, 0));
}

}  // namespace trireme::comm
