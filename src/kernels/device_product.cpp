#include "trireme/kernels/device_product.hpp"

#include <ATen/cuda/CUDAContextLight.h>

#include <stdexcept>
#include <string>

namespace trireme::kernels {
namespace {

// cuBLAS counts columns first: c^T = b^T a^T, where rows of ours are columns of its.
void multiply_by_cublas(const DeviceProduct& p) {
  const float alpha = 1, beta = p.add ? 1 : 0;
  const auto operation = [](const ProductOperand& x) {
    return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  const cublasStatus_t status = cublasGemmEx(
      at::cuda::getCurrentCUDABlasHandle(), operation(p.b), operation(p.a), p.n, p.m, p.k, &alpha,
      p.b.values, CUDA_R_16BF, p.b.stride, p.a.values, CUDA_R_16BF, p.a.stride, &beta, p.c,
      CUDA_R_32F, p.c_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error("cuBLAS refused the product " + std::to_string(p.m) + " x " +
                             std::to_string(p.k) + " x " + std::to_string(p.n) + ": " +
                             cublasGetStatusString(status));
  }
}

}  // namespace

void enable_device_product() { set_device_product(&multiply_by_cublas); }

}  // namespace trireme::kernels
