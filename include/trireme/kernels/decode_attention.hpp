// Attention over a paged KV cache for one query position and one KV head, the same code in prefill and decode. The order of
// additions is that of the training kernel (training_attention.hpp), so both give the same bits, and results do not
// depend on how a prompt was cut, shared or recomputed:
//   scores     q . k in order of d (fp32: fma per d; bf16: per pair of d, the odd one first, as VDPBF16PS does)
//   softmax    over all keys at once: exp(scale * score - max), summed in fp32 by lane j mod 16, lanes then as 8 + 8, 4 + 4, ...
//   values     probabilities rounded to the element type, times v in order of the position (bf16: pairs of positions)
//   result     times 1 / sum, one rounding
//
// A cache tile holds 16 consecutive positions of one KV head of one layer: keys transposed [hd, 16], then values
// [16, hd_padded] (hd rounded up to 16); in bf16 pairs of d (keys) and of positions (values) lie together in 4 bytes. A page of
// P tokens has P / 16 such tiles one after another.
// Legend: hd head size, G query heads that share a KV head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::kernels {

inline constexpr int64_t tile_tokens = 16;

constexpr int64_t padded_head(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
// Keys of odd head sizes have one more element, a zero.
constexpr int64_t padded_keys(int64_t head_dim) { return (head_dim + 1) / 2 * 2; }
// Elements of one tile.
constexpr int64_t tile_elements(int64_t head_dim) { return tile_tokens * (padded_keys(head_dim) + padded_head(head_dim)); }

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
