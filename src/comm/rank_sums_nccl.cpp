#include "comm/rank_sums_nccl.hpp"

#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>

#include "comm/cuda_support.hpp"
#include "comm/nccl_comm.hpp"
#include "comm/nccl_links.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/pinned_buffer.hpp"

namespace trireme::comm {
namespace {

// On both, values that are summed in bf16 are rounded, and come back, in the stream of the sums.
class DeviceSums : public RankSums {
 public:
  void add_up_in(DType type, float* values, int64_t count) override {
    if (type == DType::f32) return add_up(values, count, type);
    EXPECT(type == DType::bf16);
    const int64_t bytes = count * static_cast<int64_t>(sizeof(uint16_t));
    if (rounded_.bytes() < bytes) {
      TRIREME_CUDA_CALL(cudaStreamSynchronize(stream_));
      rounded_ = {};
      rounded_ = DeviceBuffer(bytes, DeviceBuffer::Kind::plain);
    }
    auto* bits = reinterpret_cast<uint16_t*>(rounded_.data());
    TRIREME_CUDA_CALL(launch_round(bits, values, count, stream_));
    add_up(bits, count, type);
    TRIREME_CUDA_CALL(
        cudaMemsetAsync(values, 0, static_cast<size_t>(count) * sizeof(float), stream_));
    TRIREME_CUDA_CALL(launch_add(values, bits, count, stream_));
  }

 protected:
  explicit DeviceSums(cudaStream_t stream) : stream_(stream) {}

  cudaStream_t stream_;

 private:
  DeviceBuffer rounded_;
};

constexpr int first_with_windows = 22703;  // version of NCCL
constexpr int64_t granule = int64_t{2} << 20;

// Why the GPUs of `comm` have no symmetric window, by the conditions of NCCL's init.cc
// (symmetricSupport) and sym_kernels.cc, which no call tells; empty: they have. Empty on all ranks
// or on none. Collective.
std::string window_problem(const CommView& comm) {
  const DeviceLinks links = find_nccl_links(comm, hosts_of(comm));
  std::string problem;
  if (links.library < first_with_windows) problem = "this NCCL has none";
  if (links.nodes > 1) problem = "NCCL sees its GPUs on several nodes";
  if (!links.peer_to_peer) problem = "its GPUs do not see each other's memory";
  for (const char* name : {"NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE"}) {
    const char* wish = std::getenv(name);
    if (wish != nullptr && std::atoi(wish) == 0) problem = base::text(name, " is ", wish);
  }
  if (comm.all(problem.empty()) || !problem.empty()) return problem;
  return "another rank has none";
}

// Tensor parallelism's are among the work of the compute stream: nothing else could run beside
// them, since all that follows reads the sum.
class NcclSums final : public DeviceSums {
 public:
  NcclSums(const CommView& comm, cudaStream_t stream)
      : DeviceSums(stream), comm_(comm), nccl_(comm) {}
  ~NcclSums() override {
    // The communicator is freed when its work is over; what other ranks will not come to is aborted
    // instead.
    if (std::uncaught_exceptions() > 0) NcclComm::abort_all();
    static_cast<void>(cudaStreamSynchronize(stream_));
  }

  void add_up(void* values, int64_t count, DType type) override {
    EXPECT(type == DType::f32 || type == DType::bf16);
    const int64_t bytes = count * static_cast<int64_t>(size_of(type));
    RankSums::count(bytes, false);
    if (in_window(values)) count_in_window(bytes);
    nccl_.check(ncclAllReduce(values, values, static_cast<size_t>(count),
                              type == DType::bf16 ? ncclBfloat16 : ncclFloat, ncclSum,
                              nccl_.handle(), stream_),
                "ncclAllReduce");
  }
  void gather(void* all, int64_t bytes) override {
    RankSums::count(bytes, false);
    nccl_.check(ncclAllGather(static_cast<std::byte*>(all) + comm_.rank() * bytes, all,
                              static_cast<size_t>(bytes), ncclUint8, nccl_.handle(), stream_),
                "ncclAllGather");
  }
  std::byte* open_window(int64_t bytes) override {
    EXPECT(window_.bytes() == 0);
    no_window_ = window_problem(comm_);
    if (!no_window_.empty()) return nullptr;
    window_ = DeviceBuffer(base::round_up(bytes, granule), DeviceBuffer::Kind::registered);
    if (comm_.all(nccl_.open_window(window_.data(), window_.bytes()))) return window_.data();
    no_window_ = "NCCL makes none";
    nccl_.dismiss();
    window_ = {};
    return nullptr;
  }
  std::string kind() const override {
    if (window_.bytes() > 0)
      return base::text("NCCL, those of products in a symmetric window of ",
                        base::human_bytes(static_cast<double>(window_.bytes())));
    return no_window_.empty() ? "NCCL" : "NCCL, without a symmetric window (" + no_window_ + ")";
  }
  bool recordable() const override { return true; }
  void use_stream(void* compute_stream) override {
    stream_ = static_cast<cudaStream_t>(compute_stream);
  }

 private:
  bool in_window(const void* values) const {
    const auto* first = static_cast<const std::byte*>(values);
    const std::less<> before;
    return window_.bytes() > 0 && !before(first, window_.data()) &&
           before(first, window_.data() + window_.bytes());
  }

  CommView comm_;
  DeviceBuffer window_;  // freed after nccl_, which gives the window up
  std::string no_window_;
  NcclComm nccl_;
};

// For ranks that share a device: through locked host memory. Correct, not fast.
class StagedSums final : public DeviceSums {
 public:
  StagedSums(const CommView& comm, cudaStream_t stream)
      : DeviceSums(stream), comm_(comm), host_(make_rank_sums(comm, false)) {}
  ~StagedSums() override {
    static_cast<void>(cudaStreamSynchronize(stream_));
  }  // copies from the buffer

  void add_up(void* values, int64_t count, DType type) override {
    const int64_t bytes = count * static_cast<int64_t>(size_of(type));
    RankSums::count(bytes, true);
    std::byte* staged = stage(values, bytes, 0, bytes);
    host_->add_up(staged, count, type);
    copy(values, staged, bytes);
  }
  void gather(void* all, int64_t bytes) override {
    RankSums::count(bytes, true);
    const int64_t own = comm_.rank() * bytes, whole = comm_.size() * bytes;
    std::byte* staged = stage(static_cast<std::byte*>(all) + own, whole, own, bytes);
    host_->gather(staged, bytes);
    copy(all, staged, whole);
  }
  std::string kind() const override { return "MPI through host memory, because ranks share a GPU"; }

 private:
  // Copies `bytes` bytes to place `at` of `whole` bytes of host memory, which nothing uses any more
  // by then.
  std::byte* stage(const void* from, int64_t whole, int64_t at, int64_t bytes) {
    if (!buffer_ || buffer_->bytes() < whole) {
      TRIREME_CUDA_CALL(cudaStreamSynchronize(stream_));
      buffer_.emplace(whole, "tensor-parallel sums", "give each rank a GPU of its own");
    }
    copy(buffer_->data() + at, from, bytes);
    TRIREME_CUDA_CALL(cudaStreamSynchronize(stream_));
    count_wait();
    return buffer_->data();
  }
  void copy(void* to, const void* from, int64_t bytes) {
    TRIREME_CUDA_CALL(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_));
  }

  CommView comm_;
  std::unique_ptr<RankSums> host_;
  std::optional<PinnedBuffer> buffer_;
};

}  // namespace

std::unique_ptr<RankSums> make_device_sums(const CommView& comm, bool share_a_device,
                                           void* compute_stream) {
  const auto stream = static_cast<cudaStream_t>(compute_stream);
  if (!share_a_device) return std::make_unique<NcclSums>(comm, stream);
  if (comm.rank() == 0)
    log::warning(
        "several ranks of a tensor-parallel replica share a GPU, which NCCL refuses: its sums go "
        "through host memory and MPI");
  return std::make_unique<StagedSums>(comm, stream);
}

}  // namespace trireme::comm
