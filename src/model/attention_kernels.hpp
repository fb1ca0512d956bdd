// Causal attention of one sequence and one KV group on a CPU with AVX-512, fp32 or bf16 (as uint16_t) in memory: scores,
// softmax and all sums in fp32, probabilities rounded to the type in memory before they meet V. A query's result does not
// depend on what follows it: keys are added in order from the first, and masked ones add exact zeros.
// LibTorch's own kernel needs twice the time in bf16 (it converts to fp32).
// Legend: S tokens of the sequence, H heads, K KV heads, G = H / K heads of a group, hd head size (a multiple of 16).
#pragma once

#include <cstdint>

namespace trireme::model {

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

// bf16 needs AVX512-BF16 as well.
bool has_attention_kernels(bool bf16, int64_t head_dim);

void attention_forward(const AttentionForward<float>& a);
void attention_forward(const AttentionForward<uint16_t>& a);
void attention_backward(const AttentionBackward<float>& a);
void attention_backward(const AttentionBackward<uint16_t>& a);

[[noreturn]] void attention_out_of_memory();  // std::bad_alloc

}  // namespace trireme::model
