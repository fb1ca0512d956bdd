// Attention over a paged KV cache for neighbouring query positions and one KV head, the same code
// in prefill and decode. The order of additions is that of the training kernel
// (training_attention.hpp), so both give the same bits, and results do not depend on how a prompt
// was cut, shared or recomputed, nor on which positions or threads share the work. Keys go in
// chunks of 512:
//   scores     q . k in order of d (fp32: fma per d; bf16: per pair of d, the odd one first, as
//   VDPBF16PS does) softmax    over the keys of a chunk: exp(scale * score - max), summed in fp32
//   by lane j mod 16, lanes then as 8 + 8, 4 + 4, ... values     probabilities rounded to the
//   element type, times v in order of the position (bf16: pairs of positions) chunks     one after
//   another: both sums times exp(their max - the larger max), each product rounded, added result
//   times 1 / sum, one rounding
//
// A cache tile holds 16 consecutive positions of one KV head of one layer: keys transposed [hd,
// 16], then values [16, hd_padded] (hd rounded up to 16); in bf16 pairs of d (keys) and of
// positions (values) lie together in 4 bytes. A page of P tokens has P / 16 such tiles one after
// another. Legend: hd head size, G query heads that share a KV head, R neighbouring positions.
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
constexpr int64_t tile_elements(int64_t head_dim) {
  return tile_tokens * (padded_keys(head_dim) + padded_head(head_dim));
}

// Stores k and v [hd] of position `position` into its tile.
void store_kv(ElementType type, void* tile, int64_t position, const void* k, const void* v,
              int64_t head_dim);

// Keys whose softmax is taken together.
inline constexpr int64_t key_chunk = 512;
constexpr int64_t key_chunks(int64_t keys) { return (keys + key_chunk - 1) / key_chunk; }

struct AttentionArguments {
  ElementType type = ElementType::f32;
  const std::byte* const* pages =
      nullptr;         // start of each page of the sequence, in order of positions
  int64_t offset = 0;  // bytes from there to the tiles of this layer and KV head
  int64_t tiles_per_page = 1;
  int64_t keys = 0;  // positions 0 .. keys - 1 are seen by the first query position, one more by
                     // each that follows
  int64_t rows = 1;  // R
  int64_t row_stride = 0;   // elements of q and out from one query position to the next
  const void* q = nullptr;  // [R][G, hd] heads dense, after RoPE
  void* out = nullptr;      // like q
  int64_t group = 0;        // G
  int64_t head_dim = 0;
  float scale = 1;
  int64_t window = 0;  // keys that a query position sees, its own included; 0: all before it
  float cap = 0;       // above 0: scores are cap * tanh(scale * product / cap)

  int64_t chunks() const { return key_chunks(keys + rows - 1); }
  // The first key that query position `row` sees; what lies before the first one's is not read.
  int64_t first_seen(int64_t row) const {
    return window > 0 && keys + row > window ? keys + row - window : 0;
  }
  // Chunks before this one are not seen at all.
  int64_t first_chunk() const { return first_seen(0) / key_chunk; }
};
void attend(const AttentionArguments& arguments);

// The same in parts, so that several threads can take part: attend_chunk() for each of chunks()
// chunks of keys, in any order (of those that a window leaves out it does nothing), and then
// merge_chunks() once. `parts` [chunks()][part_floats()].
constexpr int64_t part_floats(int64_t rows, int64_t group, int64_t head_dim) {
  return rows * group * (padded_head(head_dim) + 16);
}
void attend_chunk(const AttentionArguments& arguments, int64_t chunk, float* parts);
void merge_chunks(const AttentionArguments& arguments, float* parts);
// Head sizes beyond this are not served.
int64_t largest_head_dim();

}  // namespace trireme::kernels
