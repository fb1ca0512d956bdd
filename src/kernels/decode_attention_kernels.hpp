// The decode attention by instruction set.
#pragma once

#include "trireme/kernels/decode_attention.hpp"

namespace trireme::kernels {

inline constexpr int64_t max_head_dim = 512;
inline constexpr int max_group = 4;  // query heads that share one pass over the keys

// Room for the scores and probabilities of a group of heads: [max_group][stride], stride >= the keys rounded up to two tiles.
struct AttentionRows {
  float* scores = nullptr;
  uint32_t* probabilities = nullptr;  // of the element type: two bf16 in each
  int64_t stride = 0;
};

void attend_portable(const AttentionArguments& arguments, const AttentionRows& rows);
#if defined(__x86_64__)
// `bf16_products`: VDPBF16PS may be used; otherwise two FMAs in its order give the same bits.
void attend_avx512(const AttentionArguments& arguments, const AttentionRows& rows, bool bf16_products);
#endif

}  // namespace trireme::kernels
