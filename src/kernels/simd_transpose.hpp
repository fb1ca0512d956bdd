// Rows to columns in registers: w[i] lane j = unit i of row j, for `width` rows and column_units
// units.
#pragma once

#include "kernels/simd.hpp"

namespace trireme::kernels::simd {
namespace {

// As few as cost no more: the processor has more sums under way at a time.
constexpr int64_t column_units = width == 8 ? 4 : width;

#if defined(__AVX512F__)

TRIREME_SIMD void load_columns(const char* from, int64_t row_bytes, Word w[column_units]) {
  __m512i r[width], t[width];
#pragma GCC unroll 16
  for (int64_t i = 0; i < width; ++i) r[i] = _mm512_loadu_si512(from + i * row_bytes);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // r[i + c]: column c of each 128-bit part, rows i .. i + 3
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88);
    t[c + 4] = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
    t[c + 8] = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
    t[c + 12] = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    w[c] = (Word)_mm512_shuffle_i32x4(t[c], t[c + 8], 0x88);
    w[c + 8] = (Word)_mm512_shuffle_i32x4(t[c], t[c + 8], 0xdd);
    w[c + 4] = (Word)_mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0x88);
    w[c + 12] = (Word)_mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0xdd);
  }
}

#elif defined(__AVX2__)

// The 128-bit parts are put in place by the loads, which costs no shuffle.
TRIREME_SIMD void load_columns(const char* from, int64_t row_bytes, Word w[column_units]) {
  __m256 r[4];
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    const auto* low = reinterpret_cast<const float*>(from + i * row_bytes);
    const auto* high = reinterpret_cast<const float*>(from + (i + 4) * row_bytes);
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
  }
  const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1])),
                b = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
  const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3])),
                d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
  w[0] = (Word)_mm256_unpacklo_pd(a, c);
  w[1] = (Word)_mm256_unpackhi_pd(a, c);
  w[2] = (Word)_mm256_unpacklo_pd(b, d);
  w[3] = (Word)_mm256_unpackhi_pd(b, d);
}

#else

TRIREME_SIMD void load_columns(const char* from, int64_t row_bytes, Word w[column_units]) {
  const Word r0 = load<Word>(from), r1 = load<Word>(from + row_bytes);
  const Word r2 = load<Word>(from + 2 * row_bytes), r3 = load<Word>(from + 3 * row_bytes);
  const Word a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
             b = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Word c = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
             d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  w[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  w[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  w[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  w[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

#endif

}  // namespace
}  // namespace trireme::kernels::simd
