// Causal attention of one sequence and one KV group on a CPU, fp32 or bf16 (as uint16_t) in memory:
// scores, softmax and all sums in fp32, probabilities rounded to the type in memory before they
// meet V. A query's result does not depend on what follows it: keys are added in order from the
// first, and masked ones add exact zeros. The order of additions is described in
// decode_attention.hpp, which gives the same bits. Between instruction sets bits agree as in
// decode_gemm.hpp. Legend: S tokens of the sequence, H heads, K KV heads, G = H / K heads of a
// group, hd head size.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::kernels {

// Several threads at one sequence and group: all call attention_forward (or attention_backward)
// with the same arguments, and each takes blocks of queries of the group's heads, in order, until
// none is left; a block's share of the gradients of keys and values waits for those before it, so
// the bits are those of one thread. A thread that has taken a block never waits for one that nobody
// has taken. For one call of each thread.
class AttentionTeam {
 public:
  AttentionTeam(int64_t tokens, int64_t heads_of_group);  // of a forward pass
  AttentionTeam(int64_t tokens, int64_t heads_of_group,
                int64_t head_dim);  // of a backward pass: with the sums
  struct Shared {
    int64_t* next;   // block that is taken next; atomic
    int64_t* added;  // [blocks] keys whose gradients have a block's share; atomic
    float *dk, *dv;  // [S rounded up to a block][hd rounded up to 16], zeros
  };
  Shared shared();

 private:
  int64_t next_ = 0;
  std::vector<int64_t> added_;
  std::vector<float> dk_, dv_;
};

template <class T>
struct AttentionForward {
  const T *q, *k,
      *v;  // first token of the sequence, first head of the group: q [S, H, hd], k and v [S, K, hd]
  T* out;  // like q
  float* log_sum_exp;  // [S, H], first head of the group
  int64_t tokens, heads, kv_heads, head_dim;
  float scale;
  AttentionTeam* team =
      nullptr;         // of the threads that do this together; null: the calling one alone
  int64_t window = 0;  // keys that a query sees, its own included; 0: all before it
  float cap = 0;       // of scores, as in attention_softmax.hpp; 0: none
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
