// The device of a rank: choosing it, making it current, asking for its memory. LibTorch's calls
// about devices differ between versions: all of them outside the model are in device.cpp. Nothing
// here needs CUDA to compile or to link: LibTorch answers through its registry of backends, in
// which the CPU variant of the program has no CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/device_exchange.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/config/options.hpp"

namespace trireme::machine {

// GPUs that this process sees; 0 in the CPU variant of the program and without a driver. Makes no
// context.
int visible_gpus();

// The device of this rank: the deck's, or with run.device = "auto" a GPU when every rank of
// the world sees one. Ranks of a node take its GPUs in turn. Throws unfit_environment when the deck
// asks for a GPU that is not there. Collective over world. Makes no context: child processes may
// still be started.
at::Device choose_device(config::Device wanted, const comm::CommView& world,
                         const comm::NodeTopology& topology);

// Where the fp32 weights and the moments of the models lie that are trained on `device`
// (train.optimizer_offload).
at::Device state_device(const config::Options& options, at::Device device);

// LibTorch's allocator for GPUs then grows its segments instead of making a new one for each size,
// unless PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF says something: micro-batches differ in
// size, and the roles take turns. Before the first tensor on a device.
void set_allocator();

// Makes the device current for this process: for LibTorch, whose work then goes to the device's
// default stream, and for the exchange, which takes the current device and orders itself after that
// stream. bf16 products are added up in fp32. Kernels of our own that do not agree with LibTorch's
// operators on some rank's device are put aside on all, with a warning of rank 0. deterministic:
// only operations with a fixed order. Does nothing for the CPU. Main thread, before the first
// tensor on the device. Collective over world, whose ranks all have a GPU or none
// (choose_device()).
void use_device(at::Device device, bool deterministic, const comm::CommView& world);
// "" where no rank has a `problem`; else, the same on every rank, who has one and what it is: "on
// rank 3 of n2: ...". Collective over world.
std::string problem_of_any(const comm::CommView& world, const std::string& problem);

// Waits for all work that was given to the device.
void wait_for(at::Device device);

// Bytes that are free on the device now; for the CPU what job::available_memory() says of this node
// and the job's control group.
int64_t free_memory(at::Device device);

// Bytes that this process holds: on a GPU of LibTorch's allocator, on the CPU in physical memory.
int64_t held_memory(at::Device device);
// GPU memory of this process, by its owner; nothing on the CPU. The three peaks need not
// have come together.
struct DeviceKinds {
  int64_t tensors = 0;  // the most that tensors had; of LibTorch's allocator
  int64_t reserved =
      0;  // the most that it held for them, what it could not use in between included
  int64_t exchanges = 0;  // the most that slices, rings and gradient slots had
  int64_t libraries = 0;  // the rest of `taken` bytes, now: NCCL's buffers, kernels, cuBLAS
};
DeviceKinds device_kinds(at::Device device, int64_t taken);
// What LibTorch's allocator keeps for later goes back to the GPU, where other processes can have
// it.
void give_back_unused(at::Device device);

// Ranks of world with this rank's device, on the CPU those of its node: they share its memory.
// Collective over world.
std::vector<int> ranks_on_device(const comm::CommView& world, const comm::NodeTopology& topology,
                                 at::Device device);
// How many of `ranks` are among those `here`.
int64_t count_here(const std::vector<int>& here, const std::vector<int>& ranks);

// PCI address of the n-th GPU that this process sees; "" in the CPU variant of the program.
std::string gpu_bus(int gpu);

// Queries of the CUDA library about GPUs; set by enable_gpu(), null in the CPU variant of the
// program.
struct GpuLibrary {
  std::string (*bus)(int gpu) = nullptr;  // by which ranks_on_device() tells GPUs apart
  comm::CudaVersions (*versions)() = nullptr;
};
void set_gpu_library(const GpuLibrary& library);

// Why a program that is built with CUDA sees no GPU on a node with these versions, and what to do.
std::string no_gpu_words(const comm::CudaVersions& versions);

}  // namespace trireme::machine
