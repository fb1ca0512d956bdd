// The row-wise operations of a decoder block for generation: RMS norm, rotary embedding, SwiGLU, residual sums. They
// round where model/forward.hpp says: norm, RoPE and SwiGLU compute in fp32; the norm rounds before it multiplies by the
// weight; silu rounds before it multiplies. One fixed order of additions, the same on every instruction set.
#pragma once

#include <cstdint>

#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::kernels {

// out[d] = round(round(x[d] * rsqrt(mean(x^2) + epsilon)) * weight[d]); one row of `n` elements; out may be x.
void rms_norm_row(ElementType type, const void* x, const void* weight, void* out, int64_t n, float epsilon);

// Rotates one head in place: pairs (i, i + n/2) by the angle whose cosine and sine are given (fp32 [n / 2]).
void rope_head(ElementType type, void* x, const float* cosine, const float* sine, int64_t n);

// out[i] = round(round(silu(gate[i])) * up[i]); out may be gate.
void swiglu_row(ElementType type, const void* gate, const void* up, void* out, int64_t n);

// x[i] = round(x[i] + y[i]), y of the element type.
void add_row(ElementType type, void* x, const void* y, int64_t n);
// y = round(sum over r of partials[r * stride + i], r = 0 .. parts - 1 in order, plus bias[i] where bias is given).
void reduce_row(ElementType type, const float* partials, int64_t parts, int64_t stride, const void* bias, void* y, int64_t n);

}  // namespace trireme::kernels
