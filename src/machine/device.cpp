#include "torch/torch.hpp"

#include "trireme/machine/device.hpp"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/device_bytes.hpp"
#include "trireme/comm/device_clock.hpp"
#include "trireme/job/node_limits.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_product.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/model/device_rows.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::machine {
namespace {

GpuLibrary& gpu_library() {
  static GpuLibrary library;
  return library;
}

comm::CudaVersions cuda_versions() {
  return gpu_library().versions != nullptr ? gpu_library().versions() : comm::CudaVersions{};
}

bool driver_is_too_old(const comm::CudaVersions& versions) {
  return versions.driver > 0 && versions.driver / 1000 < versions.runtime / 1000;
}

std::string cuda_words(int version, const char* between) {
  return base::text(version / 1000, between, version % 1000 / 10);
}

// What LibTorch's allocator and the exchanges hold. Their peaks need not have come together: the
// sum is from above.
trace::Memory device_memory() {
  const int64_t device = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice().index();
  const auto stats =
      c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(device));
  const auto& reserved =
      stats.reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  const auto exchanges = comm::device_bytes();
  return {reserved.current + exchanges.held, reserved.peak + exchanges.peak};
}

// The program's kernels, unless they compute something else than LibTorch's operators on this
// device or another rank's: ranks count on each other's memory and bits.
void use_own_kernels(at::Device device, const comm::CommView& world) {
  const auto* own = kernels::device_kernels();
  const std::string problem =
      problem_of_any(world, own == nullptr ? "" : model::row_operators_problem(device));
  if (own != nullptr && problem.empty())
    log::debug(base::text("row operators and AdamW on GPUs: own kernels, launched by ", own->name));
  if (problem.empty()) return;
  kernels::set_device_kernels(nullptr);
  if (world.rank() == 0)
    log::warning(base::text("the program's kernels are put aside (", problem,
                            "): LibTorch's operators do their work, which is slower"));
}

// The same for the product that adds to fp32 matrices.
void use_adding_product(at::Device device, const comm::CommView& world) {
  const std::string problem = problem_of_any(world, kernels::exact_product_problem(device));
  if (problem.empty()) return;
  kernels::set_device_product(nullptr);
  if (world.rank() == 0) {
    log::warning(base::text("products on the GPU that add to fp32 gradients are put aside (",
                            problem,
                            "): LibTorch rounds each to bf16 first, in memory of its own"));
  }
}

}  // namespace

int visible_gpus() {
  return at::globalContext().hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount())
                                       : 0;
}

at::Device choose_device(config::Device wanted, const comm::CommView& world,
                         const comm::NodeTopology& topology) {
  if (wanted == config::Device::cpu) return at::kCPU;
  const int gpus = visible_gpus();
  const bool built = at::detail::getCUDAHooks().hasCUDART();
  VALIDATE(gpus > 0 || wanted != config::Device::cuda, ExitCode::unfit_environment,
           "a GPU was asked for (run.device or --device = \"cuda\"), but ",
           built ? no_gpu_words(cuda_versions())
                 : "this program has no GPU support: build it where nvcc and the GPU wheels are "
                   "(TRIREME_GPU=1 ./bootstrap.sh build)",
           ", or ask for \"cpu\"");
  const auto seen = world.gather_values(gpus);
  const auto without = std::ranges::count(seen, 0);
  const bool everywhere = without == 0;
  if (!everywhere && without < world.size()) {
    const auto rank = static_cast<size_t>(std::ranges::find(seen, 0) - seen.begin());
    const comm::CudaVersions there = world.broadcast_value(cuda_versions(), static_cast<int>(rank));
    throw UserError(
        ExitCode::unfit_environment,
        base::text("no GPU is visible to ", without, " of ", world.size(),
                   " ranks, while the others have some (the first is rank ", rank, " on ",
                   topology.host_of_node[static_cast<size_t>(topology.node_of[rank])], "): ",
                   driver_is_too_old(there)
                       ? base::text("there ", no_gpu_words(there))
                       : "a GPU of that node may be lost, look at nvidia-smi there",
                   "; leave the node out, or ask for \"cpu\" (run.device, --device)"));
  }
  if (built && !everywhere && driver_is_too_old(cuda_versions()) && world.rank() == 0)
    log::warning(base::text(no_gpu_words(cuda_versions()), ". This run uses the CPUs"));
  if (world.rank() == 0 && everywhere) {
    const comm::CudaVersions versions = cuda_versions();
    log::info(base::text("device: GPUs; rank 0 sees ", gpus, ", its driver serves CUDA ",
                         cuda_words(versions.driver, "."), ", the program is built with CUDA ",
                         cuda_words(versions.runtime, ".")));
  }
  if (!everywhere) return at::kCPU;
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(topology.local_rank % gpus));
}

at::Device state_device(const config::Options& options, at::Device device) {
  return options.train.optimizer_offload ? at::Device(at::kCPU) : device;
}

void set_allocator() {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (std::getenv(name) != nullptr) return;
  }
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}

std::string problem_of_any(const comm::CommView& world, const std::string& problem) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const auto all = world.all_gather(
      problem.empty() ? ""
                      : base::text("on rank ", world.rank(), " of ", host.data(), ": ", problem));
  const auto first =
      std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  return first == all.end() ? "" : *first;
}

void use_device(at::Device device, bool deterministic, const comm::CommView& world) {
  if (device.is_cpu()) return;
  auto& context = at::globalContext();
  if (deterministic) {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8",
           0);  // cuBLAS repeats its sums only with workspaces of a fixed size
    context.setDeterministicAlgorithms(true, false);
  }
  set_allocator();
  context.lazyInitDevice(device.type());
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  context.setAllowBF16ReductionCuBLAS(false);
  trace::set_device_memory_source(&device_memory);
  trace::set_device_clock(comm::make_device_clock(nullptr));
  use_adding_product(device, world);
  use_own_kernels(device, world);
}

void wait_for(at::Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

int64_t free_memory(at::Device device) {
  if (!device.is_cpu())
    return static_cast<int64_t>(
        c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
  return job::available_memory().bytes;
}

int64_t held_memory(at::Device device) {
  if (device.is_cpu()) return trace::host_memory().resident;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
      .current;
}

DeviceKinds device_kinds(at::Device device, int64_t taken) {
  DeviceKinds out;
  if (device.is_cpu()) return out;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto exchanges = comm::device_bytes();
  out.tensors = stats.allocated_bytes[all].peak;
  out.reserved = stats.reserved_bytes[all].peak;
  out.exchanges = exchanges.peak;
  out.libraries = std::max<int64_t>(0, taken - stats.reserved_bytes[all].current - exchanges.held);
  return out;
}

void give_back_unused(at::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
}

std::vector<int> ranks_on_device(const comm::CommView& world, const comm::NodeTopology& topology,
                                 at::Device device) {
  EXPECT(device.is_cpu() || gpu_library().bus != nullptr);
  const auto all = world.all_gather(
      base::text(topology.node, " ", device.is_cpu() ? "" : gpu_bus(device.index())));
  std::vector<int> out;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (all[static_cast<size_t>(rank)] == all[static_cast<size_t>(world.rank())])
      out.push_back(rank);
  }
  return out;
}

int64_t count_here(const std::vector<int>& here, const std::vector<int>& ranks) {
  return std::ranges::count_if(
      ranks, [&here](int rank) { return std::ranges::find(here, rank) != here.end(); });
}

std::string gpu_bus(int gpu) {
  return gpu_library().bus != nullptr ? gpu_library().bus(gpu) : std::string();
}

void set_gpu_library(const GpuLibrary& library) { gpu_library() = library; }

std::string no_gpu_words(const comm::CudaVersions& versions) {
  if (versions.driver == 0)
    return "no GPU is visible (no NVIDIA driver answers): use a GPU node, look at nvidia-smi";
  if (!driver_is_too_old(versions))
    return "no GPU is visible: use a GPU node, look at CUDA_VISIBLE_DEVICES and nvidia-smi";
  const int major = versions.runtime / 1000;
  const char* least = major >= 13 ? "580" : "525";  // NVIDIA's release notes of CUDA 13.0 and 12.0
  return base::text(
      "no GPU is visible (this node's NVIDIA driver serves CUDA ", cuda_words(versions.driver, "."),
      ", the program is built with CUDA ", cuda_words(versions.runtime, "."),
      ", which needs driver ", least,
      " or newer): use nodes with a newer driver, put the folder of NVIDIA's package cuda-compat-",
      cuda_words(versions.runtime, "-"), " first in LD_LIBRARY_PATH (data-centre GPUs)",
      major >= 13 ? ", or build with CUDA 12 (TRIREME_GPU=12 ./bootstrap.sh build)" : "");
}

}  // namespace trireme::machine
