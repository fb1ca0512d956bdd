// Attention over a paged KV cache for one query position and one KV head, the same code and the same order of additions
// in prefill and decode: keys in chunks of attention_chunk from position 0, online softmax over chunks, all in fp32, one
// rounding at the end. So results do not depend on how a prompt was cut, shared or recomputed.
//
// A cache tile holds 16 consecutive positions of one KV head of one layer: keys transposed [hd, 16], then values
// [16, hd_padded] (hd rounded up to 16). A page of P tokens has P / 16 such tiles one after another.
// Legend: hd head size, G query heads that share a KV head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::kernels {

inline constexpr int64_t tile_tokens = 16;
inline constexpr int64_t attention_chunk = 256;

constexpr int64_t padded_head(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
// Elements of one tile.
constexpr int64_t tile_elements(int64_t head_dim) { return tile_tokens * (head_dim + padded_head(head_dim)); }

// Stores k and v [hd] of position `position` into its tile.
void store_kv(ElementType type, void* tile, int64_t position, const void* k, const void* v, int64_t head_dim);

struct AttentionArguments {
  ElementType type = ElementType::f32;
  const std::byte* const* pages = nullptr;  // start of each page of the sequence, in order of positions
  int64_t offset = 0;                       // bytes from there to the tiles of this layer and KV head
  int64_t tiles_per_page = 1;
  int64_t keys = 0;                    // positions 0 .. keys - 1 are seen
  const void* q = nullptr;             // [G, hd] dense, after RoPE
  void* out = nullptr;                 // [G, hd] dense
  int64_t group = 0;                   // G
  int64_t head_dim = 0;
  float scale = 1;
};
void attend(const AttentionArguments& arguments);
// Head sizes beyond this are not served.
int64_t largest_head_dim();

}  // namespace trireme::kernels
