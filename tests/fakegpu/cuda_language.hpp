// Stands before a .cu file that is compiled as C++: the words of CUDA that our kernels use, by
// blocks.hpp. A word that a kernel uses anew is missing when it is compiled: write it as its
// documentation says, no more.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "fakegpu/blocks.hpp"

#define __CUDA_ARCH__ 800
#undef __shared__
#define __shared__ static
#define cudaLaunchKernelEx ::trireme::fakegpu::launch_kernel

using trireme::fakegpu::blockDim;
using trireme::fakegpu::blockIdx;
using trireme::fakegpu::gridDim;
using trireme::fakegpu::threadIdx;

inline void __syncthreads(const std::source_location& at = std::source_location::current()) {
  trireme::fakegpu::wait_for_block(at);
}

template <class Value>
requires std::is_arithmetic_v<Value> Value
__shfl_down_sync(unsigned lanes, Value value, unsigned by,
                 const std::source_location& at = std::source_location::current()) {
  using Bits = std::conditional_t<sizeof(Value) == 8, uint64_t, uint32_t>;
  return std::bit_cast<Value>(static_cast<Bits>(
      trireme::fakegpu::from_lane_above(lanes, std::bit_cast<Bits>(value), by, at)));
}
