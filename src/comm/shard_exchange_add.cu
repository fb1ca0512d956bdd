#include <cuda_runtime.h>

#include <cstdint>

namespace trireme::comm {
namespace {

__global__ void add(float* into, const float* values, int64_t count) {
  const int64_t stride = int64_t{blockDim.x} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) into[i] += values[i];
}

}  // namespace

cudaError_t launch_add(float* into, const float* values, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  constexpr int kThreads = 256;
  constexpr int64_t kMostBlocks = 2048;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, add, into, values, count);
}

}  // namespace trireme::comm
