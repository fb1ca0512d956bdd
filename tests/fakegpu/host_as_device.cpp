#include "fakegpu/host_as_device.hpp"

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fakegpu/machine.hpp"
#include "trireme/kernels/device_graph.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_product.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/locked_bytes.hpp"

namespace trireme::test {
namespace {

std::atomic<int64_t> waits{0};
std::atomic<int64_t> exact{0};
cudaStream_t compute_stream =
    nullptr;  // where operators stand: the legacy default stream, or what work is rehearsed on

// What was allocated and freed, in order. oneDNN asks for its own scratch memory by raw pointers,
// which is known when it gives them back.
struct Allocations {
  struct Event {
    const void* memory;
    int64_t bytes;  // less than 0: freed
    bool of_library;
  };
  std::mutex mutex;
  std::vector<Event> events;
  int64_t held = 0;  // of tensors, before the first event

  // The most that tensors had at a time; forgets what led there.
  int64_t take_peak() {
    const std::lock_guard lock(mutex);
    std::map<const void*, Event*> open;
    for (Event& event : events) {
      if (event.bytes > 0) {
        open[event.memory] = &event;
      } else if (const auto found = open.find(event.memory); found != open.end()) {
        found->second->of_library = event.of_library;
        open.erase(found);
      } else {
        event.of_library = false;  // it was counted the last time
      }
    }
    int64_t peak = held;
    for (const Event& event : events) {
      if (!event.of_library) held += event.bytes;
      peak = std::max(peak, held);
    }
    events.clear();
    return peak;
  }
  void add(const Event& event) {
    const std::lock_guard lock(mutex);
    events.push_back(event);
  }
  void forget() {
    const std::lock_guard lock(mutex);
    events.clear();
    held = 0;
  }
};
Allocations& allocations() {
  static auto* allocations = new Allocations;
  return *allocations;
}

// As LibTorch's allocator for GPUs, memory is used again in the order of the compute stream: what
// other streams still do with it is a finding.
void free_in_order(void* memory) {
  if (memory == nullptr) return;
  fakegpu::drain(compute_stream);
  allocations().add({memory, -fakegpu::bytes_at(memory), false});
  fakegpu::release(memory);
}

void free_of_library(void* memory) {
  if (memory == nullptr) return;
  allocations().add({memory, -fakegpu::bytes_at(memory), true});
  fakegpu::release(memory);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes > 0 && fakegpu::allocate(&memory, bytes) != cudaSuccess) throw std::bad_alloc();
    if (memory != nullptr) allocations().add({memory, static_cast<int64_t>(bytes), false});
    return {memory, memory, free_in_order, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_of_library; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// As LibTorch's allocator of page-locked memory, which gives powers of two.
at::Tensor lock_bytes(int64_t bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, std::bit_ceil(static_cast<size_t>(bytes)), cudaHostAllocDefault) !=
      cudaSuccess)
    throw std::bad_alloc();
  return at::from_blob(
      memory, {bytes}, [](void* given) { static_cast<void>(cudaFreeHost(given)); },
      at::TensorOptions().dtype(at::kByte));
}

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& function) {
  static const std::set<std::string> waiting{"aten::_local_scalar_dense", "aten::nonzero",
                                             "aten::masked_select", "aten::equal",
                                             "aten::unique_consecutive"};
  fakegpu::drain(compute_stream);
  if (waiting.contains(function.name())) ++waits;
  return nullptr;
}

// In place of cuBLAS, in memory order of the compute stream: each sum in the order of K.
void multiply_here(const kernels::DeviceProduct& p) {
  fakegpu::drain(compute_stream);
  const auto at = [](const kernels::ProductOperand& x, int row, int column) {
    const size_t place =
        x.transposed
            ? static_cast<size_t>(column) * static_cast<size_t>(x.stride) + static_cast<size_t>(row)
            : static_cast<size_t>(row) * static_cast<size_t>(x.stride) +
                  static_cast<size_t>(column);
    return std::bit_cast<float>(static_cast<uint32_t>(x.values[place]) << 16);
  };
  for (int i = 0; i < p.m; ++i) {
    for (int j = 0; j < p.n; ++j) {
      float sum = 0;
      for (int k = 0; k < p.k; ++k) sum += at(p.a, i, k) * at(p.b, k, j);
      float& to =
          p.c[static_cast<size_t>(i) * static_cast<size_t>(p.c_stride) + static_cast<size_t>(j)];
      to = p.add ? to + sum : sum;
    }
  }
  ++exact;
}

// Instead of recording kernels, keeps the function that starts them. The numbers of the step that
// it was given are those of then, what lies on the device is as it is at a launch; addresses, too,
// are those of the launch, which a graph's would not be.
class HostGraph final : public kernels::DeviceGraph {
 public:
  HostGraph(kernels::DeviceGraphs::Work work, bool does, cudaStream_t rehearsed_on)
      : work_(std::move(work)), does_(does), communicators_(rehearsed_on) {}
  void launch() override {
    if (does_) work_(nullptr);
  }

 private:
  kernels::DeviceGraphs::Work work_;
  bool does_;
  fakegpu::Recording communicators_;  // that the rehearsal used
};

Graphs graphs = Graphs::work;

class HostGraphs final : public kernels::DeviceGraphs {
 public:
  HostGraphs() {
    if (cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0) != cudaSuccess)
      throw std::runtime_error("no stream to rehearse on");
  }
  ~HostGraphs() override { static_cast<void>(cudaStreamDestroy(stream_)); }
  void rehearse(const Work& work) override {
    fakegpu::drain(nullptr);
    const OnStream on_stream(stream_);
    work(stream_);
    fakegpu::drain(stream_);
  }
  std::unique_ptr<kernels::DeviceGraph> record(Work work) override {
    if (graphs == Graphs::refused)
      throw std::runtime_error("operation not permitted when stream is capturing");
    return std::make_unique<HostGraph>(std::move(work), graphs == Graphs::work, stream_);
  }

 private:
  struct OnStream {
    explicit OnStream(cudaStream_t stream) { use(stream); }
    OnStream(const OnStream&) = delete;
    ~OnStream() { use(nullptr); }
    static void use(cudaStream_t stream) {
      compute_stream = stream;
      if (const auto* own = kernels::device_kernels()) own->use_stream(stream);
    }
  };
  cudaStream_t stream_ = nullptr;
};

constexpr uint8_t above_all = 255;

}  // namespace

HostAsDevice::HostAsDevice(Graphs chosen) : before_(c10::GetCPUAllocator()) {
  static DeviceAllocator allocator;
  waits = 0;
  exact = 0;
  graphs = chosen;
  allocations().forget();
  kernels::set_device_type(c10::DeviceType::CPU);
  kernels::set_locked_bytes(lock_bytes);
  kernels::enable_device_kernels();
  kernels::set_device_product(multiply_here);
  kernels::set_device_graphs([](at::Device) -> std::unique_ptr<kernels::DeviceGraphs> {
    return std::make_unique<HostGraphs>();
  });
  c10::SetCPUAllocator(&allocator, above_all);
  callback_ = at::addGlobalCallback(
      at::RecordFunctionCallback(before_operator).scopes({at::RecordScope::FUNCTION}));
}

HostAsDevice::~HostAsDevice() {
  at::removeCallback(callback_);
  c10::SetCPUAllocator(before_, above_all);
  kernels::set_device_graphs(nullptr);
  kernels::set_device_product(nullptr);
  kernels::set_device_kernels(nullptr);
  kernels::set_locked_bytes(nullptr);
  kernels::set_device_type(c10::DeviceType::CUDA);
}

int64_t HostAsDevice::hidden_waits() { return waits; }
int64_t HostAsDevice::products_added() { return exact; }
int64_t HostAsDevice::take_tensor_peak() { return allocations().take_peak(); }

}  // namespace trireme::test
