#include "trireme/kernels/scan_cuda.hpp"

#include "kernels/exec_cuda.cuh"
#include "kernels/scan_functors.hpp"

namespace trireme::kernels {

void gae_cuda(const Ragged& sequences, const float* values, const float* rewards, const uint8_t* mask, float gamma, float lambda,
              float* advantages, float* returns, void* stream) {
  exec_cuda::for_each_team("gae", sequences.sequences,
                           GaeScan{sequences.cu_seqlens, values, rewards, mask, gamma, lambda, advantages, returns},
                           static_cast<cudaStream_t>(stream));
}

void discounted_returns_cuda(const Ragged& sequences, const float* rewards, const uint8_t* mask, float gamma, float* returns,
                             void* stream) {
  exec_cuda::for_each_team("returns", sequences.sequences,
                           ReturnScan{sequences.cu_seqlens, rewards, mask, gamma, returns}, static_cast<cudaStream_t>(stream));
}

}  // namespace trireme::kernels
