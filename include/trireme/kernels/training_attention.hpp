// Causal attention of one sequence and one KV group on a CPU, fp32 or bf16 (as uint16_t) in memory: scores, softmax and all sums in
// fp32, probabilities rounded to the type in memory before they meet V. A query's result does not depend on what follows it:
// keys are added in order from the first, and masked ones add exact zeros. The order of additions is described in
// decode_attention.hpp, which gives the same bits. Between instruction sets bits agree as in decode_gemm.hpp.
// Legend: S tokens of the sequence, H heads, K KV heads, G = H / K heads of a group, hd head size.
#pragma once

#include <cstdint>

namespace trireme::kernels {

template <class T>
struct AttentionForward {
  const T *q, *k, *v;  // first token of the sequence, first head of the group: q [S, H, hd], k and v [S, K, hd]
  T* out;              // like q
  float* log_sum_exp;  // [S, H], first head of the group
  int64_t tokens, heads, kv_heads, head_dim;
  float scale;
};

template <class T>
struct AttentionBackward {
  AttentionForward<T> forward;  // with out and log_sum_exp as the forward pass left them
  const T* dout;                // like q
  T *dq, *dk, *dv;              // like q, k, v; overwritten
};

// By the instruction set in use (base/isa.hpp). Throw std::bad_alloc.
void attention_forward(const AttentionForward<float>& a);
void attention_forward(const AttentionForward<uint16_t>& a);
void attention_backward(const AttentionBackward<float>& a);
void attention_backward(const AttentionBackward<uint16_t>& a);

}  // namespace trireme::kernels
