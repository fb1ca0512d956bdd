// The plain CUDA launcher for the functors of this module: what exec.hpp is for the host. No Torch, no Kokkos: a site needs
// no CUDA build of Kokkos.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "trireme/base/error.hpp"

namespace trireme::kernels::exec_cuda {

template <class Functor>
__global__ void call_teams(int64_t teams, Functor functor) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t team = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; team < teams; team += stride) functor(team);
}

// functor(team) for team = 0 .. teams - 1 on `stream`; returns before it is done.
template <class Functor>
void for_each_team(const char* name, int64_t teams, const Functor& functor, cudaStream_t stream) {
  if (teams == 0) return;
  constexpr int64_t threads = 32;  // few long teams: spread them over multiprocessors
  const int64_t blocks = (teams + threads - 1) / threads;
  call_teams<<<static_cast<unsigned>(blocks < 65535 ? blocks : 65535), threads, 0, stream>>>(teams, functor);
  const cudaError_t error = cudaGetLastError();
  VALIDATE(error == cudaSuccess, ExitCode::internal, "kernel ", name, " could not be launched: ", cudaGetErrorString(error));
}

}  // namespace trireme::kernels::exec_cuda
