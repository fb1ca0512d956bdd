// The memory-bound parts of a block on CPUs, fp32 or bf16 (as uint16_t) in memory, fp32 inside.
// Training and decoding call the same functions, so both give the same bits. Additions and products
// are never fused and sums run in a fixed order, so the bits are also the same on AVX-512, AVX2 and
// other CPUs (the implementation is chosen at run time).
//
// Sums over a row: lane i mod 16 takes element i; the 16 lanes are then added as 8 + 8, 4 + 4, 2 +
// 2, 1 + 1.
#pragma once

#include <cstdint>

namespace trireme::model {

enum class NormKind : uint8_t {
  rms,         // y = round(w * round(x * r)), r = 1 / sqrt(mean(x^2) + epsilon) per row
  rms_offset,  // y = round((1 + w) * x * r) (Gemma)
  centred,     // y = round(w * (x - m) * r), m = mean(x), r = 1 / sqrt(mean((x - m)^2) + epsilon)
};
enum class GateKind : uint8_t {
  silu,       // gate * sigmoid(gate)
  gelu_tanh,  // gate * (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2
};
// The elements of a head that are rotated: all, or the first `dims`; pairs of them are the halves,
// or neighbours.
struct RotaryPairs {
  int64_t dims = 0;  // 0: the whole head
  bool interleaved = false;
};
// xIELU (arXiv 2411.13010): alpha_p x^2 + beta x above zero, else alpha_n (expm1(min(x, eps)) - x)
// + beta x; alpha_p and alpha_n are the softplus of what is trained, alpha_n with beta added.
struct Xielu {
  float alpha_p, alpha_n, beta, eps;
};

// Rows that a norm is taken of: x [rows, columns], with the norm's weight [columns].
template <class T>
struct NormRows {
  const T* x;
  const T* weight;
  int64_t rows, columns;
  NormKind kind = NormKind::rms;
};
// `inverse_rms` [rows] receives r (may be null). round() is to the type in memory. y [rows,
// columns] may be x.
void rms_norm_rows(const NormRows<float>& in, float epsilon, float* y, float* inverse_rms);
void rms_norm_rows(const NormRows<uint16_t>& in, float epsilon, uint16_t* y, float* inverse_rms);

// dx [rows, columns] is overwritten; dweight [columns] (fp32) is added to. dx may be dy.
void rms_norm_backward_rows(const NormRows<float>& in, const float* inverse_rms, const float* dy,
                            float* dx, float* dweight);
void rms_norm_backward_rows(const NormRows<uint16_t>& in, const float* inverse_rms,
                            const uint16_t* dy, uint16_t* dx, float* dweight);

// Elements and their gates, `count` of each.
template <class T>
struct GatedElements {
  const T* gate;
  const T* up;
  int64_t count;
  GateKind kind = GateKind::silu;
};
// y[i] = round(activation(gate[i]) * up[i]): one rounding. y may be gate or up.
void swiglu(const GatedElements<float>& in, float* y);
void swiglu(const GatedElements<uint16_t>& in, uint16_t* y);
void swiglu_backward(const GatedElements<float>& in, const float* dy, float* dgate, float* dup);
void swiglu_backward(const GatedElements<uint16_t>& in, const uint16_t* dy, uint16_t* dgate,
                     uint16_t* dup);

// y may be x.
void xielu(const float* x, float* y, int64_t count, const Xielu& numbers);
void xielu(const uint16_t* x, uint16_t* y, int64_t count, const Xielu& numbers);
// dx is overwritten; the gradients of alpha_p and alpha_n are added to slopes[0] and slopes[1].
void xielu_backward(const float* x, const float* dy, float* dx, float* slopes, int64_t count,
                    const Xielu& numbers);
void xielu_backward(const uint16_t* x, const uint16_t* dy, uint16_t* dx, float* slopes,
                    int64_t count, const Xielu& numbers);

// The shape of heads of packed tokens.
struct HeadRows {
  int64_t tokens, heads, head_dim;
};
// By which angle each pair of a head is rotated: cos and sin [max_positions, rotated elements / 2],
// row positions[token].
struct RotaryAngles {
  const int64_t* positions;
  const float* cos;
  const float* sin;
  RotaryPairs pairs = {};
};
// Rotary embedding, one rounding: (a, b) -> (a cos - b sin, b cos + a sin) for the pairs a, b of
// every head. x, y [tokens, heads, head_dim]. `direction` 1 rotates, -1 rotates back (the backward
// pass). y may be x.
void rope_rows(const float* x, float* y, const HeadRows& shape, const RotaryAngles& angles,
               float direction);
void rope_rows(const uint16_t* x, uint16_t* y, const HeadRows& shape, const RotaryAngles& angles,
               float direction);

// "avx512", "avx2" or "portable".
const char* row_kernels_target();

}  // namespace trireme::model
