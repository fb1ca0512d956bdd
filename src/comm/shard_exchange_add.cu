#include <cuda_runtime.h>

#include <cstdint>

#include "trireme/base/bf16.hpp"
#include "trireme/comm/device_copies.hpp"

namespace trireme::comm {
namespace {

struct Add {
  __device__ static void at(float* into, const float* values, int64_t i) { into[i] += values[i]; }
  __device__ static void at(float* into, const uint16_t* values, int64_t i) {
    into[i] += base::bf16_to_float(values[i]);
  }
};

struct Round {
  __device__ static void at(uint16_t* to, const float* from, int64_t i) {
    to[i] = base::float_to_bf16(from[i]);
  }
};

template <class Step, class To, class From>
__global__ void for_each(To* to, const From* from, int64_t count) {
  const int64_t stride = int64_t{blockDim.x} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    Step::at(to, from, i);
}

template <class Step, class To, class From>
cudaError_t launch(To* to, const From* from, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  constexpr int threads_per_block = 256;
  constexpr int64_t most_blocks = 2048;
  const int64_t blocks = (count + threads_per_block - 1) / threads_per_block;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks));
  config.blockDim = dim3(threads_per_block);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, for_each<Step, To, From>, to, from, count);
}

constexpr int summing_threads = 256;

// One block each.
__global__ void sum_each(uint64_t* sums, const DeviceRows* all) {
  __shared__ uint64_t of_warps[summing_threads / 32];
  const DeviceRows rows = all[blockIdx.x];
  const int64_t words = rows.bytes / summed_word, count = rows.rows * words;
  uint64_t sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const std::byte* row = rows.from + i / words * rows.stride;
    const uint64_t word = reinterpret_cast<const uint16_t*>(row)[i % words];
    sum += word * static_cast<uint64_t>(2 * (rows.first + i) + 1);
  }
  for (unsigned by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < summing_threads / 32; ++warp) sum += of_warps[warp];
  sums[blockIdx.x] = sum;
}

}  // namespace

cudaError_t launch_sum_rows(uint64_t* sums, const DeviceRows* rows, const DeviceRows* /*on_host*/,
                            int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(count));
  config.blockDim = dim3(summing_threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, sum_each, sums, rows);
}

cudaError_t launch_add(float* into, const float* values, int64_t count, cudaStream_t stream) {
  return launch<Add>(into, values, count, stream);
}
cudaError_t launch_add(float* into, const uint16_t* values, int64_t count, cudaStream_t stream) {
  return launch<Add>(into, values, count, stream);
}
cudaError_t launch_round(uint16_t* to, const float* from, int64_t count, cudaStream_t stream) {
  return launch<Round>(to, from, count, stream);
}

}  // namespace trireme::comm
