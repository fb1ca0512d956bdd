// Linear layers with results that do not depend on the number of rows: row i of y is a function of
// row i of x alone, bit for bit, on CPUs. fp32, and bf16 where the processor does not multiply it
// natively: by sequential products of whole blocks of rows (products.hpp). bf16 on matrix units: by
// our own kernel. Other native bf16: by the library's own products, which keep that only from a
// number of rows on (not at one row). Short inputs are padded. Legend: M rows, K inputs, N outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trireme::kernels {

// Rows from which on products are row by row the same; with the current number of threads.
int64_t invariant_rows();

// x [M, K], zero rows appended up to invariant_rows(); x itself when it has as many or is not on a
// CPU. Differentiable.
at::Tensor pad_rows(const at::Tensor& x);

// x [M, K] weight [N, K]^T + bias [N]: [M, N]. Differentiable: the gradient of a leaf weight that
// has an fp32 grad() already is added there within the backward pass, and autograd gets none
// (backward() sees the same sum, torch::autograd::grad() nothing). N below 16 is not covered in
// fp32.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias);

}  // namespace trireme::kernels
