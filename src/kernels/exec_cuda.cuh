// The launcher of exec.hpp's functors for a Kokkos that has no device space: a team is a block of
// threads. Plain C++ but for CUDA's words, as each of our kernels: started by a function, not by
// <<<>>>, so that tests run it without a GPU (tests/fakegpu/cuda_language.hpp).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "trireme/base/kernel_function.hpp"

namespace trireme::kernels::exec {

// Both sides for the compiler's sake; the host's is never called.
struct BlockTeam {
  TRIREME_KERNEL int rank() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int>(threadIdx.x);
#else
    return 0;
#endif
  }
  TRIREME_KERNEL int size() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int>(blockDim.x);
#else
    return 1;
#endif
  }
  template <class Body>
  TRIREME_KERNEL void each(int64_t n, const Body& body) const {
    for (int64_t i = rank(); i < n; i += size()) body(i);
  }
  template <class Value>
  TRIREME_KERNEL Value sum(Value value) const {
#if defined(__CUDA_ARCH__)
    __shared__ Value of_warp[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    value = over_warp(value);
    if (lane == 0) of_warp[warp] = value;
    __syncthreads();
    if (warp == 0) {
      value = over_warp(lane < warps ? of_warp[lane] : Value{});
      if (lane == 0) of_warp[0] = value;
    }
    __syncthreads();
    value = of_warp[0];
    __syncthreads();  // the next sum writes there
#endif
    return value;
  }
  TRIREME_KERNEL void barrier() const {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  template <class Shared>
  TRIREME_KERNEL Shared& shared() const {
#if defined(__CUDA_ARCH__)
    __shared__ Shared memory;
#else
    static Shared memory;
#endif
    return memory;
  }

 private:
  template <class Value>
  __device__ static Value over_warp(Value value) {
    for (int offset = 16; offset > 0; offset /= 2)
      value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
  }
};

template <class Functor>
__global__ void run_teams(Functor functor, int64_t teams) {
  for (int64_t team = blockIdx.x; team < teams; team += gridDim.x) functor(BlockTeam{}, team);
}

// functor(team, i) for i = 0 .. teams - 1, by `threads` threads each, a multiple of 32.
template <class Functor>
cudaError_t start_teams(int64_t teams, int threads, const Functor& functor, cudaStream_t stream) {
  if (teams == 0) return cudaSuccess;
  constexpr int64_t most_blocks = int64_t{1} << 20;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(teams < most_blocks ? teams : most_blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, run_teams<Functor>, functor, teams);
}

}  // namespace trireme::kernels::exec
