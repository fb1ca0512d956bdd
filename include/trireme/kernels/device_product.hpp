// The product that adds bf16 operands into an fp32 matrix on a GPU. The host's code calls it by a
// pointer, so that only programs for GPUs load cuBLAS.
#pragma once

#include <cstdint>

namespace trireme::kernels {

// A matrix in device memory as BLAS has it: `stride` elements from row to row, or, transposed, from
// column to column.
struct ProductOperand {
  const uint16_t* values = nullptr;  // bf16, not owned
  bool transposed = false;
  int stride = 0;
};

// c [M, N] = a [M, K] b [K, N] or c += a b, added in fp32 and never rounded to bf16. No extent is
// 0.
struct DeviceProduct {
  int m = 0, n = 0, k = 0;
  ProductOperand a, b;
  float* c = nullptr;  // rows, c_stride from one to the next
  int c_stride = 0;
  bool add = false;
};

// Queued on LibTorch's current stream of the current device. Throws std::runtime_error where the
// library refuses.
using MultiplyOnDevice = void (*)(const DeviceProduct& product);

// Process-wide; null at first, and then LibTorch multiplies: rounded to bf16, in a matrix of its
// own, and added. Not to be set while kernels run.
MultiplyOnDevice device_product();
void set_device_product(MultiplyOnDevice product);

// Sets cuBLAS' with the handle, stream and workspace that LibTorch has (trireme_products_cuda).
void enable_device_product();

}  // namespace trireme::kernels
