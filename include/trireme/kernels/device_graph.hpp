// Work that a device is given at once: the kernels that a function starts are recorded, with their
// arguments, and launched together as often as wanted, for a fraction of the host's time (a CUDA
// graph). Recorded kernels read and write the same addresses each time: what changes between
// launches lies in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace trireme::kernels {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void launch() = 0;  // behind what the default stream has; not waited for
};

// All graphs of one use. They share memory for what their kernels write for each other: one at a
// time may be under way, and they are gone before this.
class DeviceGraphs {
 public:
  // Starts kernels, LibTorch's and the program's own, without a word from the device. They go to
  // `stream`, a cudaStream_t: LibTorch and device_kernels() know it, others are told by `work`.
  // Tensors that it makes and keeps stay at their place, but share it with later graphs'.
  using Work = std::function<void(void* stream)>;
  virtual ~DeviceGraphs() = default;
  // Does the work once, so that libraries have made what they need, and waits for it.
  virtual void rehearse(const Work& work) = 0;
  // Records it, without doing it. Throws what `work` throws, or std::exception where it cannot be
  // recorded; nothing is left of it then.
  virtual std::unique_ptr<DeviceGraph> record(Work work) = 0;
};

// Null: this program has none, or kernels that do not take a stream (DeviceKernels::use_stream).
std::unique_ptr<DeviceGraphs> make_device_graphs(at::Device device);
using MakeDeviceGraphs = std::unique_ptr<DeviceGraphs> (*)(at::Device device);
void set_device_graphs(MakeDeviceGraphs make);

// Sets those of the GPU variant; in a library of its own.
void enable_device_graphs();

}  // namespace trireme::kernels
