// The decode attention by instruction set.
#pragma once

#include "trireme/kernels/decode_attention.hpp"

namespace trireme::kernels {

inline constexpr int64_t max_head_dim = 512;
inline constexpr int max_group = 4;  // query heads that share one pass over the keys

// Room for the scores and probabilities of a group of heads: [max_group][stride], stride >= the keys rounded up to two tiles.
struct AttentionRows {
  float* scores = nullptr;
  uint32_t* probabilities = nullptr;  // fp32, or pairs of bf16 where VDPBF16PS multiplies them
  int64_t stride = 0;
};

// bf16 with VDPBF16PS, or widened to fp32 in its order: the same bits.
void attend_f32_portable(const AttentionArguments& arguments, const AttentionRows& rows);
void attend_bf16_portable(const AttentionArguments& arguments, const AttentionRows& rows);
#if defined(__x86_64__)
void attend_f32_avx2(const AttentionArguments& arguments, const AttentionRows& rows);
void attend_bf16_avx2(const AttentionArguments& arguments, const AttentionRows& rows);
void attend_f32_avx512(const AttentionArguments& arguments, const AttentionRows& rows);
void attend_bf16_avx512(const AttentionArguments& arguments, const AttentionRows& rows);
void attend_bf16_avx512_bf16(const AttentionArguments& arguments, const AttentionRows& rows);
#endif

}  // namespace trireme::kernels
