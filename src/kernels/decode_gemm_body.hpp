// The decode GEMM, written once for every instruction set: included by
// decode_gemm_{avx512_bf16,avx512,avx2,portable}.cpp. As many rows of the weight as a vector has
// lanes are read in their stored layout and transposed in registers, so that one vector holds one
// unit of k of that many outputs; each row of x then adds its products in order of k. Few rows of
// x: the transposed vectors are used straight from registers. Many rows: a panel of two vectors of
// outputs is written to the L1/L2 cache once and multiplied with tiles of several rows. Legend: a
// unit is 4 bytes of k: one fp32 or a pair of bf16; Ops say in how many steps it is added
// (simd.hpp).
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/decode_gemm_kernels.hpp"
#include "kernels/simd_transpose.hpp"

namespace trireme::kernels {
namespace {

using simd::column_units;
using simd::Float;
using simd::width;
using simd::Word;

constexpr int64_t line_units = 16;  // 64 bytes: what K is padded to, at least
constexpr int64_t panel_columns = 2 * width;
constexpr int tile_rows = width == 16 ? 12
                          : width == 8
                              ? 6
                              : 4;  // 2 accumulators each, 2 weights and 1 value of x beside them
constexpr int64_t few_rows =
    width == 16 ? 8 : 4;  // with sums in registers beside the transposed weights
constexpr int few_vectors(int rows) {
  return rows > 2 ? 1 : rows == 2 && width == 16 ? 1 : rows == 2 || width == 16 ? 2 : 4;
}

// Rows of x as 4-byte steps: stored units, or bf16 widened to fp32.
struct XRows {
  const char* data;
  int64_t stride;  // bytes
};

template <class Ops>
XRows x_rows(const GemmArguments& a, int64_t row, int64_t rows, const GemmScratch& scratch) {
  const auto* x = static_cast<const typename Ops::Element*>(a.x) + row * a.ldx;
  if constexpr (Ops::steps == 1) {
    return {reinterpret_cast<const char*>(x),
            a.ldx * static_cast<int64_t>(sizeof(typename Ops::Element))};
  } else {
    const int64_t padded = gemm_padded(a.k);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < padded; k += width)
        simd::put(scratch.x + r * padded + k, simd::widen(x + r * a.ldx + k));
    }
    return {reinterpret_cast<const char*>(scratch.x), padded * 4};
  }
}

// `width` rows of the weight from `column` on; rows beyond the matrix repeat the last one and are
// never stored.
template <class Ops>
struct WeightRows {
  const char* base;
  int64_t row_bytes;
  int64_t rows_left;
  const char* ahead;  // the rows to come, read as one stream: `width` rows are one piece of memory

  WeightRows(const GemmArguments& a, int64_t column, int64_t ahead_rows)
      : base(static_cast<const char*>(a.weight) + column * row_length(a)),
        row_bytes(row_length(a)),
        rows_left(a.n - column),
        ahead(base + ahead_rows * row_bytes) {}
  static int64_t row_length(const GemmArguments& a) {
    return a.k * static_cast<int64_t>(sizeof(typename Ops::Element));
  }

  // Units [unit, unit + column_units), transposed.
  TRIREME_SIMD void load(int64_t unit, Word w[column_units]) const {
    const char* from = base + unit * 4;
    int64_t stride = row_bytes;
    alignas(64) char edge[width * column_units * 4];
    if ((unit + column_units) * 4 > row_bytes || rows_left < width) [[unlikely]] {
      copy_edge(unit, edge);
      from = edge;
      stride = column_units * 4;
    }
    simd::load_columns(from, stride, w);
#pragma GCC unroll 16
    for (int64_t line = 0; line < width * column_units / line_units; ++line) {
      __builtin_prefetch(ahead + unit * 4 * width + line * 64, 0, 2);
    }
  }

  __attribute__((noinline)) void copy_edge(int64_t unit, char* edge) const {
    const int64_t bytes = std::clamp<int64_t>(row_bytes - unit * 4, 0,
                                              column_units * 4);  // 0: padding of x alone is left
    std::memset(edge, 0, width * column_units * 4);
    for (int64_t i = 0; i < width; ++i) {
      std::memcpy(edge + i * column_units * 4,
                  base + std::min(i, rows_left - 1) * row_bytes + unit * 4,
                  static_cast<size_t>(bytes));
    }
  }
};

// Columns [column, min(column + width, last)) of one row.
template <class Ops>
void store_result(const GemmArguments& a, int64_t row, int64_t column, int64_t last, Float sum) {
  using Element = typename Ops::Element;
  const int64_t left = last - column, at = row * a.ldy + column;
  if (a.bias != nullptr && Ops::per_unit == 2)
    sum += simd::widen(static_cast<const Element*>(a.bias) + column, left);
  if (a.output == GemmOutput::f32) {
    simd::put(static_cast<float*>(a.y) + at, sum, left);
  } else {
    simd::put(static_cast<Element*>(a.y) + at, sum, left);
  }
}

// fp32 sums start from the bias.
template <class Ops>
Float first_total(const GemmArguments& a, int64_t column, int64_t last) {
  if (a.bias == nullptr || Ops::per_unit == 2) return Float{};
  return simd::widen(static_cast<const typename Ops::Element*>(a.bias) + column, last - column);
}

// sums[r] += the products of transposed units, in order.
template <class Ops, int rows>
TRIREME_SIMD void add_units(const Word* w, const char* const* x, int64_t unit, Float* sums) {
#pragma GCC unroll 16
  for (int64_t j = 0; j < column_units; ++j) {
#pragma GCC unroll 2
    for (int64_t s = 0; s < Ops::steps; ++s) {
      const Word weight = Ops::left(w[j], s);
      const int64_t at = ((unit + j) * Ops::steps + Ops::element(s)) * 4;
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
        sums[r] = Ops::add(sums[r], weight, simd::broadcast(x[r] + at));
    }
  }
}

// All `rows` rows of x against `vectors` times `width` outputs, weights transposed in registers.
template <class Ops, int rows, int vectors>
void few_rows_columns(const GemmArguments& a, const XRows& from, int64_t column, int64_t last) {
  const int64_t units = gemm_padded(a.k) / Ops::per_unit;
  const int64_t block = std::min(a.order.block / Ops::per_unit, units);
  const char* x[rows];
  for (int r = 0; r < rows; ++r) x[r] = from.data + r * from.stride;
  Float total[vectors][rows];
  for (int v = 0; v < vectors; ++v) {
    for (int r = 0; r < rows; ++r) total[v][r] = first_total<Ops>(a, column + v * width, last);
  }
  for (int64_t begin = 0; begin < units; begin += block) {
    const int64_t end = std::min(begin + block, units);
    Float sum[vectors][rows] = {};
    for (int64_t unit = begin; unit < end; unit += column_units) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        Word w[column_units];
        WeightRows<Ops>(a, column + v * width, vectors * width).load(unit, w);
        add_units<Ops, rows>(w, x, unit, sum[v]);
      }
    }
    for (int v = 0; v < vectors; ++v) {
      for (int r = 0; r < rows; ++r) total[v][r] += sum[v][r];
    }
  }
  for (int v = 0; v < vectors; ++v) {
    for (int r = 0; r < rows; ++r) store_result<Ops>(a, r, column + v * width, last, total[v][r]);
  }
}

template <class Ops, int rows>
void few_rows_range(const GemmArguments& a, const XRows& x, int64_t first, int64_t last) {
  constexpr int vectors = few_vectors(rows);
  int64_t column = first;
  for (; column + vectors * width <= last; column += vectors * width)
    few_rows_columns<Ops, rows, vectors>(a, x, column, last);
  for (; column < last; column += width) few_rows_columns<Ops, rows, 1>(a, x, column, last);
}

template <class Ops, int... n>
void few_rows_dispatch(const GemmArguments& a, const XRows& x, int64_t first, int64_t last,
                       std::integer_sequence<int, n...>) {
  using Function = void (*)(const GemmArguments&, const XRows&, int64_t, int64_t);
  constexpr Function table[] = {few_rows_range<Ops, n + 1>...};
  table[a.m - 1](a, x, first, last);
}

// Units [begin, end) of a panel, as [step][panel columns].
template <class Ops>
void pack_piece(const GemmArguments& a, int64_t column, int64_t begin, int64_t end, char* packed) {
  for (int64_t v = 0; v < 2; ++v) {
    if (column + v * width >= a.n) break;
    const WeightRows<Ops> rows(a, column + v * width, panel_columns);
    for (int64_t unit = begin; unit < end; unit += column_units) {
      Word w[column_units];
      rows.load(unit, w);
#pragma GCC unroll 16
      for (int64_t j = 0; j < column_units; ++j) {
        for (int64_t s = 0; s < Ops::steps; ++s) {
          const Word step = Ops::left(w[j], s);
          std::memcpy(
              packed + (((unit - begin + j) * Ops::steps + s) * panel_columns + v * width) * 4,
              &step, sizeof step);
        }
      }
    }
  }
}

// sum[r] += the products of the packed units with row r of x, in order.
template <class Ops, int rows>
TRIREME_SIMD void add_packed(const char* x, int64_t x_stride, const char* packed, int64_t units,
                             Float sum[rows][2]) {
  for (int64_t unit = 0; unit < units; ++unit) {
#pragma GCC unroll 2
    for (int64_t s = 0; s < Ops::steps; ++s) {
      const char* step = packed + (unit * Ops::steps + s) * panel_columns * 4;
      const Word w0 = simd::load<Word>(step), w1 = simd::load<Word>(step + width * 4);
#pragma GCC unroll 12
      for (int r = 0; r < rows; ++r) {
        const Word value =
            simd::broadcast(x + r * x_stride + (unit * Ops::steps + Ops::element(s)) * 4);
        sum[r][0] = Ops::add(sum[r][0], w0, value);
        sum[r][1] = Ops::add(sum[r][1], w1, value);
      }
    }
  }
}

template <class Ops, int rows>
void multiply_tile(const char* x, int64_t x_stride, const char* packed, int64_t units, float* sums,
                   bool start) {
  Float sum[rows][2];
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    sum[r][0] = start ? Float{} : simd::load(sums + r * panel_columns);
    sum[r][1] = start ? Float{} : simd::load(sums + r * panel_columns + width);
  }
  add_packed<Ops, rows>(x, x_stride, packed, units, sum);
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    simd::put(sums + r * panel_columns, sum[r][0]);
    simd::put(sums + r * panel_columns + width, sum[r][1]);
  }
}

using TileFunction = void (*)(const char*, int64_t, const char*, int64_t, float*, bool);
template <class Ops, int... n>
TileFunction tile_function(int64_t rows, std::integer_sequence<int, n...>) {
  constexpr TileFunction table[] = {multiply_tile<Ops, n + 1>...};
  return table[rows - 1];
}

// The rows in tiles of about equal size.
template <class Ops>
void multiply_rows(const XRows& x, int64_t rows, int64_t begin, int64_t end, bool start,
                   const GemmScratch& scratch) {
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows, size = (rows + tiles - 1) / tiles;
  for (int64_t r = 0; r < rows; r += size) {
    const auto tile =
        tile_function<Ops>(std::min(size, rows - r), std::make_integer_sequence<int, tile_rows>{});
    tile(x.data + r * x.stride + begin * Ops::steps * 4, x.stride, scratch.packed, end - begin,
         scratch.block + r * panel_columns, start);
  }
}

template <class Ops>
void start_totals(const GemmArguments& a, int64_t column, int64_t last, int64_t rows,
                  float* total) {
  const Float low = first_total<Ops>(a, column, last);
  const Float high = column + width < last ? first_total<Ops>(a, column + width, last) : Float{};
  for (int64_t r = 0; r < rows; ++r) {
    simd::put(total + r * panel_columns, low);
    simd::put(total + r * panel_columns + width, high);
  }
}

// Many rows of x: one panel.
template <class Ops>
void panel(const GemmArguments& a, const XRows& x, int64_t row, int64_t rows, int64_t column,
           int64_t last, const GemmScratch& scratch) {
  constexpr int64_t piece = gemm_piece_steps / Ops::steps;
  const int64_t units = gemm_padded(a.k) / Ops::per_unit;
  const int64_t block = std::min(a.order.block / Ops::per_unit, units);
  start_totals<Ops>(a, column, last, rows, scratch.total);
  for (int64_t block_begin = 0; block_begin < units; block_begin += block) {
    const int64_t block_end = std::min(block_begin + block, units);
    for (int64_t begin = block_begin; begin < block_end; begin += piece) {
      const int64_t end = std::min(begin + piece, block_end);
      pack_piece<Ops>(a, column, begin, end, scratch.packed);
      multiply_rows<Ops>(x, rows, begin, end, begin == block_begin, scratch);
    }
    for (int64_t i = 0; i < rows * panel_columns; i += width) {
      simd::put(scratch.total + i, simd::load(scratch.total + i) + simd::load(scratch.block + i));
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
TRIREME_SIMD void gemm_range(const GemmArguments& a, int64_t first, int64_t last,
                             const GemmScratch& scratch) {
  if (a.m <= few_rows) {
    few_rows_dispatch<Ops>(a, x_rows<Ops>(a, 0, a.m, scratch), first, last,
                           std::make_integer_sequence<int, few_rows>{});
    return;
  }
  for (int64_t row = 0; row < a.m; row += gemm_row_block) {
    const int64_t rows = std::min(gemm_row_block, a.m - row);
    const XRows x = x_rows<Ops>(a, row, rows, scratch);
    for (int64_t column = first; column < last; column += panel_columns)
      panel<Ops>(a, x, row, rows, column, last, scratch);
  }
}

}  // namespace
}  // namespace trireme::kernels
