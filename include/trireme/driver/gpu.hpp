// Additions of the program's GPU variant. It lives in a library of its own (trireme_driver_cuda),
// which links LibTorch's CUDA libraries and NCCL, so that programs for CPUs load neither.
#pragma once

namespace trireme::driver {

// Once at start, before any run: models may live on GPUs from now on. Touches no device. Not
// collective.
void enable_gpu();

}  // namespace trireme::driver
