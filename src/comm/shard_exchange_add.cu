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
  constexpr int threads_per_block = 256;
  constexpr int64_t most_blocks = 2048;
  const int64_t blocks = (count + threads_per_block - 1) / threads_per_block;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks));
  config.blockDim = dim3(threads_per_block);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, add, into, values, count);
}

}  // namespace trireme::comm
