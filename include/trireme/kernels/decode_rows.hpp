// Residual sums of a decoder block for generation. Norm, RoPE and SwiGLU are the model's own
// (model/row_kernels.hpp), so that trainer and generator round alike.
#pragma once

#include <cstdint>

#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::kernels {

// x[i] = round(x[i] + y[i]), both of the element type.
void add_row(ElementType type, void* x, const void* y, int64_t n);
// y[i] = round(sum of partials[r * stride + i] over r = 0 .. parts - 1, in that order).
void reduce_row(ElementType type, const float* partials, int64_t parts, int64_t stride, void* y,
                int64_t n);

}  // namespace trireme::kernels
