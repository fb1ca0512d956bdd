// The decode attention by instruction set.
#pragma once

#include "trireme/kernels/decode_attention.hpp"

namespace trireme::kernels {

inline constexpr int64_t max_head_dim = 512;
inline constexpr int max_group = 4;  // queries that share one pass over the keys

// Memory of a thread. Sums of a query: padded_head(hd) of exponentials times values, and behind
// them the softmax; part_floats() of all.
struct DecodeScratch {
  float* scores = nullptr;  // [max_group][key_chunk]
  uint32_t* probabilities =
      nullptr;  // [max_group][key_chunk] fp32, or pairs of bf16 where VDPBF16PS multiplies them
  float *sums = nullptr, *chunk = nullptr;  // of all chunks so far, and of another one
};

struct DecodeAttention {
  void (*attend)(const AttentionArguments&, const DecodeScratch&);
  void (*chunk)(const AttentionArguments&, int64_t chunk, float* parts, const DecodeScratch&);
  void (*merge)(const AttentionArguments&, float* parts);
};

// bf16 with VDPBF16PS, or widened to fp32 in its order: the same bits.
extern const DecodeAttention decode_f32_portable, decode_bf16_portable;
#if defined(__x86_64__)
extern const DecodeAttention decode_f32_avx2, decode_bf16_avx2, decode_f32_avx512,
    decode_bf16_avx512, decode_bf16_avx512_bf16;
#endif

}  // namespace trireme::kernels
