#include "comm/cuda_support.hpp"

#include <algorithm>

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

namespace {

constexpr int64_t summed_by_block = int64_t{1} << 20;  // bytes, so that many blocks have some

// In pieces for a block each.
void cut(DeviceRows rows, std::vector<DeviceRows>& out) {
  if (rows.stride == rows.bytes) rows = {rows.from, 1, rows.rows * rows.bytes, 0, rows.first};
  const int64_t words = rows.bytes / summed_word;
  if (rows.rows == 1) {
    for (int64_t done = 0; done < rows.bytes; done += summed_by_block) {
      const int64_t bytes = std::min(summed_by_block, rows.bytes - done);
      out.push_back({rows.from + done, 1, bytes, bytes, rows.first + done / summed_word});
    }
    return;
  }
  const int64_t at_once = std::max<int64_t>(1, summed_by_block / rows.bytes);
  for (int64_t done = 0; done < rows.rows; done += at_once)
    out.push_back({rows.from + done * rows.stride, std::min(at_once, rows.rows - done), rows.bytes,
                   rows.stride, rows.first + done * words});
}

}  // namespace

std::vector<uint64_t> sum_rows_here(std::span<const DeviceRows> rows) {
  std::vector<DeviceRows> pieces;
  std::vector<size_t> ends;
  for (const DeviceRows& one : rows) {
    if (one.rows > 0 && one.bytes > 0) cut(one, pieces);
    ends.push_back(pieces.size());
  }
  if (pieces.empty()) return std::vector<uint64_t>(rows.size());
  const auto count = static_cast<int64_t>(pieces.size());
  std::vector<uint64_t> of_pieces(pieces.size());
  const auto bytes_of = [](const auto& list) { return list.size() * sizeof(list[0]); };
  const DeviceBuffer list(static_cast<int64_t>(bytes_of(pieces)), DeviceBuffer::Kind::plain),
      sums(static_cast<int64_t>(bytes_of(of_pieces)), DeviceBuffer::Kind::plain);
  TRIREME_CUDA_CALL(
      cudaMemcpyAsync(list.data(), pieces.data(), bytes_of(pieces), cudaMemcpyDefault, nullptr));
  TRIREME_CUDA_CALL(launch_sum_rows(reinterpret_cast<uint64_t*>(sums.data()),
                                    reinterpret_cast<const DeviceRows*>(list.data()), pieces.data(),
                                    count, nullptr));
  TRIREME_CUDA_CALL(cudaMemcpyAsync(of_pieces.data(), sums.data(), bytes_of(of_pieces),
                                    cudaMemcpyDefault, nullptr));
  finish_rows();
  std::vector<uint64_t> out;
  size_t next = 0;
  for (const size_t end : ends) {
    uint64_t sum = 0;
    for (; next < end; ++next) sum += of_pieces[next];
    out.push_back(sum);
  }
  return out;
}

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
