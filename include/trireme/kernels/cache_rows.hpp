// New rows of a layer's KV cache, and their queries. Legend: M rows, H query heads, K KV heads, hd
// head size, S slots of the cache.
#pragma once

#include <cstdint>

namespace trireme::kernels {

// T: float, or uint16_t for bf16 as its bits. Rows of q [M, H, hd], k and v [M, K, hd] lie
// `.._stride` elements apart, each of them dense. q and k are rotated by cos and sin [positions, hd
// / 2], hd even; k and v go to their rows' slots. Strides count elements. Device memory, which the
// caller keeps until the stream has come behind the kernel. Rows of one slot must be equal: which
// is last is not said.
template <class T>
struct CacheRows {
  const T *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
  const int64_t *positions, *slots;  // [M]
  const float *cos, *sin;
  T* rotated;        // q, [M, H, hd]
  T *keys, *values;  // [S, K, hd]
  int64_t rows, heads, kv_heads, head_dim;
};

}  // namespace trireme::kernels
