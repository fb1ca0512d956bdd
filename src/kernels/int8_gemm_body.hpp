// The decode GEMM over weights in 8 bits and what makes them, written once for every instruction
// set: included by int8_gemm_{avx512_bf16,avx512,avx2,portable}.cpp. The copy's layout needs no
// transposing: a unit (a pair of k) of a vector of outputs is one piece of memory, widened to what
// the steps of Ops take. Few rows of x, and with 32 registers of 16 lanes any number in pieces of
// 16: all sums of a panel stand in registers. Otherwise a group of two vectors of outputs is
// widened into the L1 cache once and multiplied with tiles of several rows.
#pragma once

#include "kernels/decode_gemm_body.hpp"
#include "kernels/int8_gemm_kernels.hpp"

namespace trireme::kernels {
namespace {

using simd::Int;
typedef int16_t Short __attribute__((vector_size(2 * width)));

constexpr int64_t group_units = int8_group / 2;
constexpr int64_t unit_bytes = int8_panel * 2;
constexpr int64_t scale_bytes = int8_panel * 4;
constexpr int64_t group_bytes = scale_bytes + group_units * unit_bytes;
constexpr int64_t panel_vectors = int8_panel / width;
constexpr int64_t int8_few_rows = width == 16 ? 16 : few_rows;  // at a time
constexpr int few_panels(int rows) {
  return rows == 1 ? (width == 4 ? 1 : 4) : rows == 2 && width > 4 ? 2 : 1;
}

// Steps of a pair in the order of VDPBF16PS, x widened to fp32 or in fp32 already.
template <class E>
struct Int8Wide : simd::Bf16Wide {
  using Element = E;
};

int64_t groups_of(int64_t k) { return (k + int8_group - 1) / int8_group; }

// A vector of outputs from `column` on, a multiple of `width`; those behind the last panel are the
// last one's.
struct Int8Columns {
  const std::byte* base;
  int64_t lane;

  Int8Columns(const GemmArguments& a, int64_t column)
      : base(static_cast<const std::byte*>(a.int8) +
             std::min(column / int8_panel, int8_panels(a.n) - 1) * groups_of(a.k) * group_bytes),
        lane(column % int8_panel) {}
  TRIREME_SIMD Float scale(int64_t group) const {
    return simd::load(base + group * group_bytes + lane * 4);
  }
  TRIREME_SIMD const std::byte* unit(int64_t group, int64_t i) const {
    return base + group * group_bytes + scale_bytes + i * unit_bytes + lane * 2;
  }
};

// Integers up to 127 are exact in bf16.
template <class Ops>
TRIREME_SIMD void widen_unit(const std::byte* from, Word steps[Ops::steps]) {
#if defined(__AVX512BF16__)
  if constexpr (Ops::steps == 1) {
    const auto* bytes = reinterpret_cast<const __m128i*>(from);
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)));
    steps[0] = (Word)_mm512_cvtne2ps_pbh(high, low);
    return;
  }
#endif
  if constexpr (Ops::steps == 2) {
    const Int pairs = __builtin_convertvector(simd::load<Short>(from), Int);
    for (int64_t s = 0; s < 2; ++s) {
      steps[s] = (Word) __builtin_convertvector(
          Ops::element(s) == 1 ? pairs >> 8 : (pairs << 24) >> 24, Float);
    }
  }
}

template <class Ops>
XRows int8_x_rows(const GemmArguments& a, int64_t row, int64_t rows, const GemmScratch& scratch) {
  if constexpr (sizeof(typename Ops::Element) == 4) {
    return {reinterpret_cast<const char*>(static_cast<const float*>(a.x) + row * a.ldx), a.ldx * 4};
  } else {
    return x_rows<Ops>(a, row, rows, scratch);
  }
}

// `rows` rows of x, from `row` on, against `panels` panels.
template <class Ops, int rows, int panels>
void int8_few_columns(const GemmArguments& a, const XRows& from, int64_t row, int64_t column,
                      int64_t last) {
  constexpr int vectors = panels * static_cast<int>(panel_vectors);
  const int64_t units = gemm_padded(a.k) / 2, ahead = panels * groups_of(a.k) * group_bytes;
  const char* x[rows];
  for (int r = 0; r < rows; ++r) x[r] = from.data + r * from.stride;
  Float total[vectors][rows] = {};
  for (int64_t group = 0; group * group_units < units; ++group) {
    const int64_t count = std::min(group_units, units - group * group_units);
    Float sum[vectors][rows] = {};
#pragma GCC unroll 2
    for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        const std::byte* unit = Int8Columns(a, column + v * width).unit(group, i);
        Word w[Ops::steps];
        widen_unit<Ops>(unit, w);
        if (v % panel_vectors == 0) __builtin_prefetch(unit + ahead, 0, 2);
#pragma GCC unroll 2
        for (int64_t s = 0; s < Ops::steps; ++s) {
          const int64_t at = ((group * group_units + i) * Ops::steps + Ops::element(s)) * 4;
#pragma GCC unroll 16
          for (int r = 0; r < rows; ++r)
            sum[v][r] = Ops::add(sum[v][r], w[s], simd::broadcast(x[r] + at));
        }
      }
    }
    for (int v = 0; v < vectors; ++v) {
      const Float scale = Int8Columns(a, column + v * width).scale(group);
      for (int r = 0; r < rows; ++r) total[v][r] += sum[v][r] * scale;
    }
  }
  for (int v = 0; v < vectors; ++v) {
    for (int r = 0; r < rows; ++r)
      store_result<Ops>(a, row + r, column + v * width, last, total[v][r]);
  }
}

template <class Ops, int rows>
void int8_few_range(const GemmArguments& a, const XRows& x, int64_t row, int64_t first,
                    int64_t last) {
  constexpr int panels = few_panels(rows);
  int64_t column = first;
  for (; column + panels * int8_panel <= last; column += panels * int8_panel)
    int8_few_columns<Ops, rows, panels>(a, x, row, column, last);
  for (; column < last; column += int8_panel)
    int8_few_columns<Ops, rows, 1>(a, x, row, column, last);
}

using FewFunction = void (*)(const GemmArguments&, const XRows&, int64_t, int64_t, int64_t);
template <class Ops, int... n>
FewFunction few_function(int64_t rows, std::integer_sequence<int, n...>) {
  constexpr FewFunction table[] = {int8_few_range<Ops, n + 1>...};
  return table[rows - 1];
}

// All rows of x in pieces of about equal size; with several a panel stays in the L1 cache for all
// of them.
template <class Ops>
void int8_pieces(const GemmArguments& a, const XRows& x, int64_t row, int64_t rows, int64_t first,
                 int64_t last) {
  const int64_t pieces = (rows + int8_few_rows - 1) / int8_few_rows,
                size = (rows + pieces - 1) / pieces;
  const int64_t columns = pieces == 1 ? last - first : int8_panel;
  for (int64_t column = first; column < last; column += columns) {
    for (int64_t r = 0; r < rows; r += size) {
      const auto few = few_function<Ops>(std::min(size, rows - r),
                                         std::make_integer_sequence<int, int8_few_rows>{});
      few(a, {x.data + r * x.stride, x.stride}, row + r, column, std::min(column + columns, last));
    }
  }
}

// total += a group's sums times its scales.
template <class Ops, int rows>
void scaled_tile(const char* x, int64_t x_stride, const char* packed, int64_t units, float* total,
                 const Float* scale) {
  Float sum[rows][2] = {};
  add_packed<Ops, rows>(x, x_stride, packed, units, sum);
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < 2; ++v) {
      float* to = total + r * panel_columns + v * width;
      simd::put(to, simd::load(to) + sum[r][v] * scale[v]);
    }
  }
}

using ScaledTile = void (*)(const char*, int64_t, const char*, int64_t, float*, const Float*);
template <class Ops, int... n>
ScaledTile scaled_tile_function(int64_t rows, std::integer_sequence<int, n...>) {
  constexpr ScaledTile table[] = {scaled_tile<Ops, n + 1>...};
  return table[rows - 1];
}

// Many rows of x: two vectors of outputs.
template <class Ops>
void int8_panel_columns(const GemmArguments& a, const XRows& x, int64_t row, int64_t rows,
                        int64_t column, int64_t last, const GemmScratch& scratch) {
  const Int8Columns columns[] = {{a, column}, {a, column + width}};
  const int64_t units = gemm_padded(a.k) / 2, tiles = (rows + tile_rows - 1) / tile_rows,
                size = (rows + tiles - 1) / tiles;
  std::fill_n(scratch.total, rows * panel_columns, 0.f);
  for (int64_t group = 0; group * group_units < units; ++group) {
    const int64_t begin = group * group_units, count = std::min(group_units, units - begin);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t v = 0; v < 2; ++v) {
        Word w[Ops::steps];
        widen_unit<Ops>(columns[v].unit(group, i), w);
        for (int64_t s = 0; s < Ops::steps; ++s)
          std::memcpy(scratch.packed + ((i * Ops::steps + s) * panel_columns + v * width) * 4,
                      &w[s], sizeof w[s]);
      }
    }
    const Float scales[] = {columns[0].scale(group), columns[1].scale(group)};
    for (int64_t r = 0; r < rows; r += size) {
      const auto tile = scaled_tile_function<Ops>(std::min(size, rows - r),
                                                  std::make_integer_sequence<int, tile_rows>{});
      tile(x.data + r * x.stride + begin * Ops::steps * 4, x.stride, scratch.packed, count,
           scratch.total + r * panel_columns, scales);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* total = scratch.total + r * panel_columns;
    store_result<Ops>(a, row + r, column, last, simd::load(total));
    if (column + width < last)
      store_result<Ops>(a, row + r, column + width, last, simd::load(total + width));
  }
}

template <class Ops>
TRIREME_SIMD void int8_range(const GemmArguments& a, int64_t first, int64_t last,
                             const GemmScratch& scratch) {
  for (int64_t row = 0; row < a.m; row += gemm_row_block) {
    const int64_t rows = std::min(gemm_row_block, a.m - row);
    const XRows x = int8_x_rows<Ops>(a, row, rows, scratch);
    if constexpr (width == 16) {
      int8_pieces<Ops>(a, x, row, rows, first, last);
    } else if (rows <= int8_few_rows) {
      int8_pieces<Ops>(a, x, row, rows, first, last);
    } else {
      for (int64_t column = first; column < last; column += panel_columns)
        int8_panel_columns<Ops>(a, x, row, rows, column, last, scratch);
    }
  }
}

// One group of one output: `count` values, none for outputs behind the last one.
template <class Element>
void quantise_group(const Element* from, int64_t count, float* scale, std::byte* pairs) {
  Float values[int8_group / width];
  Word top = {};
  for (int64_t i = 0; i < int8_group / width; ++i) {
    values[i] = count > i * width ? simd::widen(from + i * width, count - i * width) : Float{};
    const Word magnitude = (Word)values[i] & 0x7fffffffu;  // ordered as the numbers, NaN above all
    top = magnitude > top ? magnitude : top;
  }
  uint32_t most = 0;
  for (int64_t i = 0; i < width; ++i) most = std::max(most, top[i]);
  float largest = 0;
  std::memcpy(&largest, &most, sizeof largest);
  const bool zeros = largest < 1e-30f;
  const float inverse = zeros ? 0.f : 127 / largest;
  *scale = zeros ? 0.f : largest / 127;
  int32_t integers[int8_group];
  for (int64_t i = 0; i < int8_group / width; ++i) {
    const Int rounded = (Int)(values[i] * inverse + 12582912.f) -
                        0x4b400000;  // 1.5 * 2^23: to nearest, the integer in the low bits
    std::memcpy(integers + i * width, &rounded, sizeof rounded);
  }
  for (int64_t i = 0; i < int8_group; ++i)
    pairs[i / 2 * unit_bytes + i % 2] = static_cast<std::byte>(integers[i]);
}

template <class Element>
void quantise_panels(const Int8Source& source, std::byte* to, int64_t first, int64_t last) {
  const int64_t groups = groups_of(source.k);
  for (int64_t output = first * int8_panel; output < last * int8_panel; ++output) {
    const auto* row =
        static_cast<const Element*>(source.weight) + std::min(output, source.n - 1) * source.k;
    for (int64_t group = 0; group < groups; ++group) {
      std::byte* const base = to + (output / int8_panel * groups + group) * group_bytes;
      const int64_t lane = output % int8_panel,
                    count = output < source.n ? source.k - group * int8_group : 0;
      float scale = 0;
      quantise_group(row + group * int8_group, count, &scale, base + scale_bytes + lane * 2);
      std::memcpy(base + lane * 4, &scale, sizeof scale);
    }
  }
}

inline void quantise_source(const Int8Source& source, std::byte* to, int64_t first, int64_t last) {
  if (source.type == ElementType::f32) {
    quantise_panels<float>(source, to, first, last);
  } else {
    quantise_panels<uint16_t>(source, to, first, last);
  }
}

}  // namespace
}  // namespace trireme::kernels
