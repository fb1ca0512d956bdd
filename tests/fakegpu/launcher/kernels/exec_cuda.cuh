// Stands before src/kernels/exec_cuda.cuh where device_kernels.cu is compiled for the made-up GPU: a kernel is an operation of the legacy default
// stream, a team one thread.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "fakegpu/fake_gpu.hpp"
#include "kernels/exec.hpp"

namespace trireme::kernels::exec {

template <class Functor>
cudaError_t start_teams(int64_t teams, int, const Functor& functor) {
  if (teams == 0) return cudaSuccess;
  return fakegpu::launch(nullptr, {}, [=] {
    for (int64_t team = 0; team < teams; ++team) functor(OneThread{}, team);
  });
}

}  // namespace trireme::kernels::exec
