// The scans of scan.hpp on a GPU: all pointers, cu_seqlens included, are device memory; `stream` is a cudaStream_t. They return
// before the work is done. Only in builds with TRIREME_WITH_CUDA (library trireme_kernels_cuda).
#pragma once

#include "trireme/kernels/scan.hpp"

namespace trireme::kernels {

void gae_cuda(const Ragged& sequences, const float* values, const float* rewards, const uint8_t* mask, float gamma, float lambda,
              float* advantages, float* returns, void* stream);
void discounted_returns_cuda(const Ragged& sequences, const float* rewards, const uint8_t* mask, float gamma, float* returns,
                             void* stream);

}  // namespace trireme::kernels
