// Attention of single positions over a paged cache, read where its pages lie: needed by a step of
// decoding needs on a GPU. A query sees the positions of its sequence up to its own one. These are
// taken in chunks of a fixed number, each added up by itself in one order, and the chunks are
// joined in theirs: the bits of a query's result depend on what it sees alone, not on the batch
// beside it, on where its pages lie or on how many threads work on it. Scores, exponentials and
// sums are fp32; the result is rounded once. Legend: M rows, H query heads, K KV heads, hd head
// size.
#pragma once

#include <cstdint>

#include "trireme/base/kernel_function.hpp"

namespace trireme::kernels {

inline constexpr int64_t attention_chunk = 128;  // positions
TRIREME_KERNEL inline int64_t attention_chunks(int64_t keys) {
  return (keys + attention_chunk - 1) / attention_chunk;
}
// Consecutive positions that always lie in one page.
inline constexpr int64_t attention_tile = 16;

// One row's query, as it goes to the device.
struct PagedQuery {
  int64_t keys = 1;  // positions 0 .. keys - 1 are seen
  int64_t row = 0;   // of q and out
  int64_t first_page =
      0;  // in PagedAttention::pages: that of position 0, the following ones behind it
  int64_t first_chunk = 0;  // in PagedAttention::chunks, its others behind it
};

struct PagedChunk {
  int32_t query = 0;
  int32_t number = 0;  // among the query's, from 0
};
// Behind the end of every query: there is nothing to see, and nobody joins the result.
inline constexpr PagedChunk chunk_of_nobody{0, 1 << 20};

// Pointers to the device's memory.
struct PagedAttention {
  const void* q;       // [M, H, hd] fp32, or bf16 as its bits
  const void* keys;    // [pages, page size, K, hd]
  const void* values;  // the same
  void* out;           // [M, H, hd]: the rows of the queries are written
  bool bf16;
  int64_t heads, kv_heads;
  int64_t head_dim;   // even
  int64_t page_size;  // a multiple of attention_tile
  float scale;
  int64_t queries, chunks;
  const PagedQuery* query;  // [queries]
  const PagedChunk*
      chunk;  // [chunks]: attention_chunks(keys) of each query, then any number of nobody
  const int32_t* pages;
  float* sums;     // scratch [chunks, H, hd]
  float* weights;  // scratch [chunks, H, 2]: the largest score, and the sum of the exponentials
};

}  // namespace trireme::kernels
