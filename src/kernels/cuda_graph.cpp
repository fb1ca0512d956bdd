#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "trireme/kernels/device_graph.hpp"
#include "trireme/kernels/device_kernels.hpp"

namespace trireme::kernels {
namespace {

// LibTorch's kernels and ours go to a stream.
class OnStream {
 public:
  explicit OnStream(const c10::cuda::CUDAStream& stream) : guard_(stream) { use(stream.stream()); }
  OnStream(const OnStream&) = delete;
  ~OnStream() { use(nullptr); }

 private:
  static void use(void* stream) {
    if (const DeviceKernels* own = device_kernels()) own->use_stream(stream);
  }
  c10::cuda::CUDAStreamGuard guard_;
};

class CudaGraph final : public DeviceGraph {
 public:
  void launch() override { graph_.replay(); }
  void record(const c10::cuda::CUDAStream& stream, at::MempoolId_t pool, const DeviceGraphs::Work& work) {
    // Other threads may go on allocating and asking for events.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work(stream.stream());
    } catch (...) {
      give_up(stream, pool);
      throw;
    }
    try {
      graph_.capture_end();
    } catch (...) {
      give_up(stream, pool);
      throw;
    }
  }

 private:
  // What a capture that failed has begun, of which LibTorch ends nothing: the stream's, and the allocator's.
  static void give_up(const c10::cuda::CUDAStream& stream, at::MempoolId_t pool) {
    cudaGraph_t unfinished = nullptr;
    if (cudaStreamEndCapture(stream.stream(), &unfinished) == cudaSuccess && unfinished != nullptr) cudaGraphDestroy(unfinished);
    static_cast<void>(cudaGetLastError());
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(stream.device_index(), pool);
    } catch (const c10::Error&) {
      // it was ended before
    }
  }

  at::cuda::CUDAGraph graph_;
};

class CudaGraphs final : public DeviceGraphs {
 public:
  explicit CudaGraphs(at::Device device) : stream_(at::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())), pool_(at::cuda::graph_pool_handle()) {}

  void rehearse(const Work& work) override {
    at::cuda::CUDAEvent before;
    before.record();
    before.block(stream_);
    {
      const OnStream on_stream(stream_);
      work(stream_.stream());
    }
    stream_.synchronize();
  }

  std::unique_ptr<DeviceGraph> record(Work work) override {
    auto out = std::make_unique<CudaGraph>();
    const OnStream on_stream(stream_);
    out->record(stream_, pool_, work);
    return out;
  }

 private:
  c10::cuda::CUDAStream stream_;  // the legacy default stream cannot be captured
  at::MempoolId_t pool_;
};

std::unique_ptr<DeviceGraphs> make_cuda_graphs(at::Device device) {
  const DeviceKernels* own = device_kernels();
  if (own != nullptr && own->use_stream == nullptr) return nullptr;
  return std::make_unique<CudaGraphs>(device);
}

}  // namespace

void enable_device_graphs() { set_device_graphs(&make_cuda_graphs); }

}  // namespace trireme::kernels
