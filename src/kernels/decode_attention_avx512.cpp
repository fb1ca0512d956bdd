// The decode attention in AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/decode_attention_kernels.hpp"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 on its own _mm512_undefined_epi32
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")

#include "kernels/decode_attention_body.hpp"

namespace trireme::kernels {
namespace {

TRIREME_LANES_INLINE __m512 broadcast(uint32_t bits) { return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits))); }

struct Fp32 {
  using Element = float;
  static constexpr int64_t per_word = 1;
  static TRIREME_LANES_INLINE Float add_product(Float sum, Word words, uint32_t x) {
    return (Float)_mm512_fmadd_ps((__m512)words, broadcast(x), (__m512)sum);
  }
};

struct Bf16Dot {
  using Element = uint16_t;
  static constexpr int64_t per_word = 2;
  static TRIREME_LANES_INLINE Float add_product(Float sum, Word words, uint32_t x) {
    return (Float)_mm512_dpbf16_ps((__m512)sum, (__m512bh)words, (__m512bh)broadcast(x));
  }
};

struct Bf16Fma {  // the order of VDPBF16PS: the odd element first
  using Element = uint16_t;
  static constexpr int64_t per_word = 2;
  static TRIREME_LANES_INLINE Float add_product(Float sum, Word words, uint32_t x) {
    const __m512 first = _mm512_fmadd_ps((__m512)(words & 0xffff0000u), broadcast(x & 0xffff0000u), (__m512)sum);
    return (Float)_mm512_fmadd_ps((__m512)(words << 16), broadcast(x << 16), first);
  }
};

}  // namespace

void attend_avx512(const AttentionArguments& a, const AttentionRows& rows, bool bf16_products) {
  if (a.type == ElementType::f32) {
    attend_all<Fp32>(a, rows);
  } else if (bf16_products) {
    attend_all<Bf16Dot>(a, rows);
  } else {
    attend_all<Bf16Fma>(a, rows);
  }
}

}  // namespace trireme::kernels
#endif
