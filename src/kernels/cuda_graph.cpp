#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
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

// Of the allocators of device and page-locked memory: graphs that share one are made and used one
// at a time. LibTorch takes no id again whose graphs are all gone.
struct Pool {
  at::MempoolId_t id = at::cuda::graph_pool_handle();
};

// A step of undoing, which may have nothing to undo. False: so it was.
template <class Undo>
bool undone(const Undo& undo) {
  try {
    undo();
    return true;
  } catch (const c10::Error&) { return false; }
}

// Closes the pool of page-locked memory that a failed capture left open. LibTorch 2.10 (CUDA 12)
// has no such pools.
template <class HostAllocator>
void give_up_host_pool(HostAllocator* host, const at::MempoolId_t& pool) {
  if constexpr (requires {
                  host->end_allocate_to_pool(pool);
                  host->release_pool(pool);
                }) {
    if (undone([&] { host->end_allocate_to_pool(pool); }))
      undone([&] { host->release_pool(pool); });
  }
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
  void launch() override { graph_.replay(); }
  void record(const c10::cuda::CUDAStream& stream, const DeviceGraphs::Work& work) {
    try {
      // Other threads may go on allocating and asking for events.
      graph_.capture_begin(pool_->id, cudaStreamCaptureModeThreadLocal);
      work(stream.stream());
      graph_.capture_end();
    } catch (...) {
      give_up(stream);
      throw;
    }
  }
  // To the stream of launches: here, and not at the first of them, memory may be missing.
  void upload() {
    C10_CUDA_CHECK(
        cudaGraphUpload(graph_.raw_cuda_graph_exec(), c10::cuda::getCurrentCUDAStream()));
  }

 private:
  // Ends the parts of a failed capture that LibTorch leaves open: the stream's, both
  // allocators', the random generator's.
  void give_up(const c10::cuda::CUDAStream& stream) {
    cudaGraph_t unfinished = nullptr;
    if (cudaStreamEndCapture(stream.stream(), &unfinished) == cudaSuccess && unfinished != nullptr)
      cudaGraphDestroy(unfinished);
    static_cast<void>(cudaGetLastError());
    const auto device = stream.device_index();
    if (undone([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_->id); })) {
      undone([&] { c10::cuda::CUDACachingAllocator::releasePool(device, pool_->id); });
    }
    give_up_host_pool(at::getHostAllocator(at::kCUDA), pool_->id);
    undone([&] {  // the generator leaves its state of capturing at the end of one
      at::cuda::CUDAGraph nothing;
      nothing.capture_begin(at::cuda::graph_pool_handle(), cudaStreamCaptureModeThreadLocal);
      nothing.capture_end();
    });
  }

  std::shared_ptr<Pool> pool_;  // gone after the graph
  at::cuda::CUDAGraph graph_;
};

class CudaGraphs final : public DeviceGraphs {
 public:
  explicit CudaGraphs(const c10::cuda::CUDAStream& stream) : stream_(stream) {}

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
    std::shared_ptr<Pool> pool = pool_.lock();
    if (!pool) {
      // During a capture the allocator does not take back what it keeps for others.
      c10::cuda::CUDACachingAllocator::emptyCache();
      pool_ = pool = std::make_shared<Pool>();
    }
    auto out = std::make_unique<CudaGraph>(std::move(pool));
    {
      const OnStream on_stream(stream_);
      out->record(stream_, work);
    }
    out->upload();
    return out;
  }

 private:
  c10::cuda::CUDAStream stream_;  // the legacy default stream cannot be captured
  std::weak_ptr<Pool> pool_;      // of the graphs that there are
};

std::unique_ptr<DeviceGraphs> make_cuda_graphs(at::Device device) {
  const DeviceKernels* own = device_kernels();
  if (own != nullptr && own->use_stream == nullptr) return nullptr;
  // One for the process, which has one device: libraries keep memory for each stream that they have
  // worked on.
  static const c10::cuda::CUDAStream stream =
      at::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  return std::make_unique<CudaGraphs>(stream);
}

}  // namespace

void enable_device_graphs() { set_device_graphs(&make_cuda_graphs); }

}  // namespace trireme::kernels
