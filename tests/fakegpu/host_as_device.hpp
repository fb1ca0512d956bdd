// The device path of what computes with tensors, on the fake GPU. While a HostAsDevice lives,
// tensors of the CPU are a device's to the program:
//
// - their memory is the fake device's, so that NCCL takes it, what nobody wrote is NaN, and
// freeing what is in use is a finding;
// - each of LibTorch's operators comes where it stands in the legacy default stream: it waits for
// what was put there before, and for
//   nothing of other streams;
// - the program's own kernels for devices are those of the GPU variant, put into that stream;
// - products that add to fp32 matrices are a loop in place of cuBLAS, at that place in the stream;
// - recorded work (kernels/device_graph.hpp) is the function that starts it, done at each launch
// and not when it is recorded; it is rehearsed on a stream of its
//   own, where operators stand meanwhile;
// - page-locked memory is the fake run time's, which counts it.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>

#include <cstdint>

namespace trireme::test {

// What becomes of work that is recorded: it is done when launched, the run time refuses to record
// it, or a launch does nothing.
enum class Graphs : uint8_t { work, refused, do_nothing };

class HostAsDevice {
 public:
  explicit HostAsDevice(Graphs graphs = Graphs::work);
  HostAsDevice(const HostAsDevice&) = delete;
  ~HostAsDevice();

  // Calls of operators that make a host wait for a GPU, since the beginning: values of single
  // elements, sizes that depend on values.
  static int64_t hidden_waits();
  // Calls of the product that adds to fp32 matrices, since the beginning.
  static int64_t products_added();
  // The most that tensors had of the device since the last call, bytes, without what oneDNN takes
  // for itself while it multiplies.
  static int64_t take_tensor_peak();

 private:
  c10::Allocator* before_;
  at::CallbackHandle callback_;
};

}  // namespace trireme::test
