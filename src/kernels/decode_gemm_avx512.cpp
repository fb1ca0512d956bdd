// The decode GEMM in AVX-512. 16 rows of the weight are read 64 bytes at a time and transposed in registers, so that one
// vector holds one k (fp32) or one pair of k (bf16) of 16 outputs; each row of x then adds its products in order of k.
// Few rows of x: the transposed vectors are used straight from registers. Many rows: a panel of 32 outputs is written to
// the L1/L2 cache once and multiplied with tiles of 12 rows.
// Legend: a unit is 4 bytes of k: one fp32 or a pair of bf16.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/decode_gemm_kernels.hpp"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 on its own _mm512_undefined_epi32
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")

namespace trireme::kernels {
namespace {

constexpr int64_t lanes = 16;         // outputs of one vector, and units of one 64-byte load
constexpr int64_t panel_columns = 32; // outputs of a packed panel
constexpr int64_t piece_units = 128;  // of a packed panel: 16 KiB
constexpr int64_t row_block = 240;    // rows of x per packed panel: x and sums stay in the L2 cache
constexpr int tile_rows = 12;         // 24 accumulators, 2 weights, 1 value of x
constexpr int64_t few_rows = 8;       // with sums in registers beside the 16 transposed weights
constexpr int64_t some_rows = 32;     // up to here transposing once per 8 rows costs less than a packed panel

struct Fp32 {
  static constexpr int64_t elements_per_unit = 1;
  static constexpr bool bias_first = true;
  static __m512i load_tail(const char* from, int64_t elements) {
    return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << elements) - 1), from);
  }
  static __m512 add_product(__m512 sum, __m512i weight, __m512i x) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(weight), _mm512_castsi512_ps(x), sum);
  }
  static __m512 bias(const void* from, int64_t at, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(from) + at);
  }
};

struct Bf16Base {
  static constexpr int64_t elements_per_unit = 2;
  static constexpr bool bias_first = false;
  static __m512i load_tail(const char* from, int64_t elements) {
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << elements) - 1), from);
  }
  static __m512 bias(const void* from, int64_t at, __mmask16 mask) {
    const __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(from) + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
};
struct Bf16Dot : Bf16Base {
  static __m512 add_product(__m512 sum, __m512i weight, __m512i x) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weight), reinterpret_cast<__m512bh>(x));
  }
};
struct Bf16Fma : Bf16Base {  // the order of VDPBF16PS: the odd element first
  static __m512 add_product(__m512 sum, __m512i weight, __m512i x) {
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(weight, odd)), _mm512_castsi512_ps(_mm512_and_si512(x, odd)), sum);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(weight, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), sum);
  }
};

struct Bf16Ascending : Bf16Base {  // the order of fp32 products of widened values
  static __m512 add_product(__m512 sum, __m512i weight, __m512i x) {
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(weight, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), sum);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(weight, odd)), _mm512_castsi512_ps(_mm512_and_si512(x, odd)), sum);
  }
};

inline __m512i broadcast_unit(const char* from) {
  int bits;
  std::memcpy(&bits, from, sizeof bits);
  return _mm512_set1_epi32(bits);
}

// r[i] lane j  ->  r[j] lane i
inline __attribute__((always_inline)) void transpose(__m512i r[lanes]) {
  __m512i t[lanes];
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
    r[c] = _mm512_shuffle_i32x4(t[c], t[c + 8], 0x88);
    r[c + 8] = _mm512_shuffle_i32x4(t[c], t[c + 8], 0xdd);
    r[c + 4] = _mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0x88);
    r[c + 12] = _mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0xdd);
  }
}

// 16 rows of the weight from `column` on; rows beyond the matrix repeat the last one and are never stored.
template <class T>
struct WeightRows {
  const char* base;
  int64_t row_bytes;
  int64_t k;
  int64_t rows_left;
  const char* ahead;  // the rows to come, read as one stream: 16 rows are one piece of memory

  WeightRows(const GemmArguments& a, int64_t column, int64_t ahead_rows)
      : base(static_cast<const char*>(a.weight) + column * a.k * 4 / T::elements_per_unit),
        row_bytes(a.k * 4 / T::elements_per_unit), k(a.k), rows_left(a.n - column), ahead(base + ahead_rows * row_bytes) {}

  // Units [unit, unit + 16), transposed.
  inline __attribute__((always_inline)) void load(int64_t unit, __m512i w[lanes]) const {
    const int64_t left = std::max<int64_t>(k - unit * T::elements_per_unit, 0);  // 0: padding of x alone is left
    const char* from = base + unit * 4;
    if (left >= lanes * T::elements_per_unit && rows_left >= lanes) [[likely]] {
#pragma GCC unroll 16
      for (int64_t i = 0; i < lanes; ++i) {
        w[i] = _mm512_loadu_si512(from + i * row_bytes);
        _mm_prefetch(ahead + unit * 64 + i * 64, _MM_HINT_T1);
      }
    } else {
      for (int64_t i = 0; i < lanes; ++i) {
        const char* row = from + std::min(i, rows_left - 1) * row_bytes;
        w[i] = left >= lanes * T::elements_per_unit ? _mm512_loadu_si512(row) : T::load_tail(row, left);
      }
    }
    transpose(w);
  }
};

inline __m256i round_bf16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), lsb), 16);
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
  return _mm512_cvtepi32_epi16(rounded);
}

template <class T>
void store_result(const GemmArguments& a, int64_t row, int64_t column, __m512 sum) {
  const int64_t left = std::min(a.n - column, lanes);
  const auto mask = static_cast<__mmask16>((1u << left) - 1);
  if (a.bias != nullptr && !T::bias_first) sum = _mm512_add_ps(sum, T::bias(a.bias, column, mask));
  const int64_t at = row * a.ldy + column;
  if (a.output == GemmOutput::f32 || T::elements_per_unit == 1) {
    _mm512_mask_storeu_ps(static_cast<float*>(a.y) + at, mask, sum);
  } else {
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(a.y) + at, mask, round_bf16(sum));
  }
}

template <class T>
__m512 first_total(const GemmArguments& a, int64_t column) {
  if (a.bias == nullptr || !T::bias_first) return _mm512_setzero_ps();
  return T::bias(a.bias, column, static_cast<__mmask16>((1u << std::min(a.n - column, lanes)) - 1));
}

// `rows` rows of x against `panels` times 16 outputs, weights transposed in registers.
template <class T, int rows, int panels>
void few_rows_columns(const GemmArguments& a, int64_t row, int64_t column) {
  const int64_t units = gemm_padded(a.k) / T::elements_per_unit;
  const int64_t block = std::min(a.order.block / T::elements_per_unit, units);
  const char* x[rows];
  for (int r = 0; r < rows; ++r) x[r] = static_cast<const char*>(a.x) + (row + r) * a.ldx * 4 / T::elements_per_unit;
  __m512 total[panels][rows];
  for (int p = 0; p < panels; ++p) {
    for (int r = 0; r < rows; ++r) total[p][r] = first_total<T>(a, column + p * lanes);
  }
  for (int64_t begin = 0; begin < units; begin += block) {
    const int64_t end = std::min(begin + block, units);
    __m512 sum[panels][rows];
    for (int p = 0; p < panels; ++p) {
      for (int r = 0; r < rows; ++r) sum[p][r] = _mm512_setzero_ps();
    }
    for (int64_t unit = begin; unit < end; unit += lanes) {
#pragma GCC unroll 2
      for (int p = 0; p < panels; ++p) {
        __m512i w[lanes];
        WeightRows<T>(a, column + p * lanes, panels * lanes).load(unit, w);
#pragma GCC unroll 16
        for (int64_t j = 0; j < lanes; ++j) {
#pragma GCC unroll 8
          for (int r = 0; r < rows; ++r) sum[p][r] = T::add_product(sum[p][r], w[j], broadcast_unit(x[r] + (unit + j) * 4));
        }
      }
    }
    for (int p = 0; p < panels; ++p) {
      for (int r = 0; r < rows; ++r) total[p][r] = _mm512_add_ps(total[p][r], sum[p][r]);
    }
  }
  for (int p = 0; p < panels; ++p) {
    for (int r = 0; r < rows; ++r) store_result<T>(a, row + r, column + p * lanes, total[p][r]);
  }
}

template <class T, int rows>
void few_rows_range(const GemmArguments& a, int64_t row, int64_t first, int64_t last) {
  int64_t column = first;
  if constexpr (rows == 1) {
    for (; column + 2 * lanes <= last; column += 2 * lanes) few_rows_columns<T, rows, 2>(a, row, column);
  }
  for (; column < last; column += lanes) few_rows_columns<T, rows, 1>(a, row, column);
}

// Sums of a panel: [rows][32] of the running block and of the blocks before it.
struct PanelSums {
  std::vector<float> block, total;
  std::vector<char> packed;
  PanelSums() : block(row_block * panel_columns), total(row_block * panel_columns), packed(piece_units * panel_columns * 4) {}
};

template <class T>
void pack_piece(const GemmArguments& a, int64_t column, int64_t begin, int64_t end, char* packed) {
  for (int p = 0; p < 2; ++p) {
    if (column + p * lanes >= a.n) break;
    const WeightRows<T> rows(a, column + p * lanes, panel_columns);
    for (int64_t unit = begin; unit < end; unit += lanes) {
      __m512i w[lanes];
      rows.load(unit, w);
#pragma GCC unroll 16
      for (int64_t j = 0; j < lanes; ++j) _mm512_storeu_si512(packed + ((unit - begin + j) * panel_columns + p * lanes) * 4, w[j]);
    }
  }
}

template <class T, int rows>
void multiply_tile(const char* x, int64_t x_stride, const char* packed, int64_t units, float* sums, bool start) {
  __m512 sum[rows][2];
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    sum[r][0] = start ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + r * panel_columns);
    sum[r][1] = start ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + r * panel_columns + lanes);
  }
  for (int64_t unit = 0; unit < units; ++unit) {
    const __m512i w0 = _mm512_loadu_si512(packed + unit * panel_columns * 4);
    const __m512i w1 = _mm512_loadu_si512(packed + unit * panel_columns * 4 + 64);
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      const __m512i value = broadcast_unit(x + r * x_stride + unit * 4);
      sum[r][0] = T::add_product(sum[r][0], w0, value);
      sum[r][1] = T::add_product(sum[r][1], w1, value);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    _mm512_storeu_ps(sums + r * panel_columns, sum[r][0]);
    _mm512_storeu_ps(sums + r * panel_columns + lanes, sum[r][1]);
  }
}

using TileFunction = void (*)(const char*, int64_t, const char*, int64_t, float*, bool);
template <class T, int... n>
constexpr TileFunction tile_function(int rows, std::integer_sequence<int, n...>) {
  constexpr TileFunction table[] = {multiply_tile<T, n + 1>...};
  return table[rows - 1];
}

template <class T>
void multiply_rows(const GemmArguments& a, int64_t row, int64_t rows, int64_t begin, int64_t end, bool start, PanelSums& sums) {
  const int64_t stride = a.ldx * 4 / T::elements_per_unit;
  const char* x = static_cast<const char*>(a.x) + row * stride + begin * 4;
  for (int64_t r = 0; r < rows; r += tile_rows) {
    const int count = static_cast<int>(std::min<int64_t>(tile_rows, rows - r));
    const auto tile = tile_function<T>(count, std::make_integer_sequence<int, tile_rows>{});
    tile(x + r * stride, stride, sums.packed.data(), end - begin, sums.block.data() + r * panel_columns, start);
  }
}

template <class T>
void start_totals(const GemmArguments& a, int64_t column, int64_t rows, PanelSums& sums) {
  const __m512 low = first_total<T>(a, column);
  const __m512 high = column + lanes < a.n ? first_total<T>(a, column + lanes) : _mm512_setzero_ps();
  for (int64_t r = 0; r < rows; ++r) {
    _mm512_storeu_ps(sums.total.data() + r * panel_columns, low);
    _mm512_storeu_ps(sums.total.data() + r * panel_columns + lanes, high);
  }
}

void add_block(int64_t rows, PanelSums& sums) {
  for (int64_t i = 0; i < rows * panel_columns; i += lanes) {
    const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(sums.total.data() + i), _mm512_loadu_ps(sums.block.data() + i));
    _mm512_storeu_ps(sums.total.data() + i, sum);
  }
}

// Many rows of x: one panel of 32 outputs.
template <class T>
void panel(const GemmArguments& a, int64_t row, int64_t rows, int64_t column, int64_t last, PanelSums& sums) {
  const int64_t units = gemm_padded(a.k) / T::elements_per_unit;
  const int64_t block = std::min(a.order.block / T::elements_per_unit, units);
  start_totals<T>(a, column, rows, sums);
  for (int64_t block_begin = 0; block_begin < units; block_begin += block) {
    const int64_t block_end = std::min(block_begin + block, units);
    for (int64_t begin = block_begin; begin < block_end; begin += piece_units) {
      const int64_t end = std::min(begin + piece_units, block_end);
      pack_piece<T>(a, column, begin, end, sums.packed.data());
      multiply_rows<T>(a, row, rows, begin, end, begin == block_begin, sums);
    }
    add_block(rows, sums);
  }
  for (int64_t r = 0; r < rows; ++r) {
    store_result<T>(a, row + r, column, _mm512_loadu_ps(sums.total.data() + r * panel_columns));
    if (column + lanes < last) {
      store_result<T>(a, row + r, column + lanes, _mm512_loadu_ps(sums.total.data() + r * panel_columns + lanes));
    }
  }
}

template <class T, int... n>
void few_rows_dispatch(const GemmArguments& a, int64_t row, int64_t rows, int64_t first, int64_t last, std::integer_sequence<int, n...>) {
  using Function = void (*)(const GemmArguments&, int64_t, int64_t, int64_t);
  constexpr Function table[] = {few_rows_range<T, n + 1>...};
  table[rows - 1](a, row, first, last);
}

template <class T>
void columns(const GemmArguments& a, int64_t first, int64_t last) {
  if (a.m <= few_rows) {
    if (a.m > 0) few_rows_dispatch<T>(a, 0, a.m, first, last, std::make_integer_sequence<int, few_rows>{});
    return;
  }
  if (a.m <= some_rows) {
    const int64_t groups = (a.m + few_rows - 1) / few_rows, size = (a.m + groups - 1) / groups;
    for (int64_t column = first; column < last; column += lanes) {
      for (int64_t row = 0; row < a.m; row += size) {
        few_rows_dispatch<T>(a, row, std::min(size, a.m - row), column, std::min(column + lanes, last), std::make_integer_sequence<int, few_rows>{});
      }
    }
    return;
  }
  thread_local PanelSums sums;
  for (int64_t row = 0; row < a.m; row += row_block) {
    const int64_t rows = std::min(row_block, a.m - row);
    for (int64_t column = first; column < last; column += panel_columns) panel<T>(a, row, rows, column, last, sums);
  }
}

}  // namespace

void gemm_columns_avx512(const GemmArguments& a, int64_t first, int64_t last, bool bf16_products) {
  if (a.type == ElementType::f32) {
    columns<Fp32>(a, first, last);
  } else if (a.order.ascending) {
    columns<Bf16Ascending>(a, first, last);
  } else if (bf16_products) {
    columns<Bf16Dot>(a, first, last);
  } else {
    columns<Bf16Fma>(a, first, last);
  }
}

}  // namespace trireme::kernels
#endif
