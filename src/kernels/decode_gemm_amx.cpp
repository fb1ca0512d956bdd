// The decode GEMM on the processor's matrix units (AMX), bf16: y^T = W x^T in tiles of 16 outputs
// by 16 rows. A tile of the weight is 16 of its rows in their stored layout, 32 elements of k; rows
// of x, which are few, are packed in pairs of k. The unit adds even and odd elements of a step of
// 32 apart, then their sum to what was there: no other instruction adds so, and LibTorch's library
// uses it too.
#include "kernels/decode_gemm_body.hpp"

namespace trireme::kernels {
namespace {

constexpr int64_t lines = 16, line_bytes = 64, tile_bytes = lines * line_bytes;
constexpr int64_t step_elements = line_bytes / 2;  // of k
constexpr int panels = 2;                          // of 16 outputs at a time
static_assert(width == lines && column_units == lines && gemm_padding == step_elements);

// All eight tiles of 16 lines.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t lines[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);

// Stores must be complete before tiles are loaded: the compiler's loads do not say that
// they read.
TRIREME_SIMD void settle() { __asm__ volatile("" ::: "memory"); }

// Up to 16 rows and 64 bytes, zeros beyond.
__attribute__((noinline)) void copy_edge(const char* from, int64_t stride, int64_t rows,
                                         int64_t bytes, char* edge) {
  std::memset(edge, 0, tile_bytes);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(edge + r * line_bytes, from + r * stride, static_cast<size_t>(bytes));
  settle();
}

// Rows of x as tiles [ceil(rows / 16)][steps] of [16 pairs of k][16 rows].
void pack_rows(const GemmArguments& a, int64_t row, int64_t rows, int64_t steps, char* packed) {
  alignas(64) char edge[tile_bytes];
  const int64_t stride = a.ldx * 2;
  for (int64_t r = 0; r < rows; r += lines) {
    const char* const x = static_cast<const char*>(a.x) + (row + r) * stride;
    for (int64_t s = 0; s < steps; ++s, packed += tile_bytes) {
      const int64_t bytes = std::min(line_bytes, a.k * 2 - s * line_bytes),
                    count = std::min(lines, rows - r);
      const bool whole = bytes == line_bytes && count == lines;
      if (!whole) copy_edge(x + s * line_bytes, stride, count, bytes, edge);
      Word w[column_units];
      simd::load_columns(whole ? x + s * line_bytes : edge, whole ? stride : line_bytes, w);
#pragma GCC unroll 16
      for (int64_t i = 0; i < lines; ++i) std::memcpy(packed + i * line_bytes, &w[i], sizeof w[i]);
    }
  }
}

// 16 rows of the weight from `column` on; those beyond the matrix are zeros.
struct WeightTiles {
  const char* base;
  int64_t stride, rows;

  WeightTiles(const GemmArguments& a, int64_t column)
      : base(static_cast<const char*>(a.weight) + column * a.k * 2),
        stride(a.k * 2),
        rows(std::min(lines, a.n - column)) {}
};
struct TileSource {
  const char* from;
  int64_t stride;
};
TRIREME_SIMD TileSource source(const WeightTiles& w, int64_t step, char* edge) {
  const int64_t bytes = std::min(line_bytes, w.stride - step * line_bytes);
  if (w.rows == lines && bytes == line_bytes) [[likely]]
    return {w.base + step * line_bytes, w.stride};
  copy_edge(w.base + step * line_bytes, w.stride, w.rows, bytes, edge);
  return {edge, line_bytes};
}

// Sums of 32 outputs from `column` on and `groups` times 16 rows, [panel][group] of [16 outputs][16
// rows]. Tiles 0 to 3 are sums, 4 and 5 weights, 6 and 7 rows of x. With few rows weights come from
// memory: more outputs at a time and prefetching what comes next were slower.
template <int groups>
void multiply_tiles(const GemmArguments& a, int64_t column, const char* x, int64_t steps,
                    float* sums) {
  static_assert(groups <= 2);
  alignas(64) char edge[tile_bytes];
  const WeightTiles w0(a, column), w1(a, column + lines);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t s = 0; s < steps; ++s, x += tile_bytes) {
    _tile_loadd(6, x, line_bytes);
    if constexpr (groups > 1) _tile_loadd(7, x + steps * tile_bytes, line_bytes);
    TileSource w = source(w0, s, edge);
    _tile_loadd(4, w.from, w.stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (groups > 1) _tile_dpbf16ps(1, 4, 7);
    w = source(w1, s, edge);
    _tile_loadd(5, w.from, w.stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (groups > 1) _tile_dpbf16ps(3, 5, 7);
  }
  constexpr int64_t values = lines * lines;
  _tile_stored(0, sums, line_bytes);
  if constexpr (groups > 1) _tile_stored(1, sums + values, line_bytes);
  _tile_stored(2, sums + groups * values, line_bytes);
  if constexpr (groups > 1) _tile_stored(3, sums + 3 * values, line_bytes);
  settle();
}

// The sums of both panels, a line of 32 outputs for each row.
template <int groups>
void store_lines(const GemmArguments& a, int64_t row, int64_t rows, int64_t column,
                 const float* sums) {
  static_assert(panels == 2);
  const auto load = [&](int64_t panel, int64_t group, Word* by_row) {
    simd::load_columns(
        reinterpret_cast<const char*>(sums + (panel * groups + group) * lines * lines), line_bytes,
        by_row);
  };
  for (int64_t g = 0; g < groups; ++g) {
    Word left[column_units], right[column_units];
    load(0, g, left);
    load(1, g, right);
    auto* y = static_cast<uint16_t*>(a.y) + (row + g * lines) * a.ldy + column;
    const int64_t count = std::min(lines, rows - g * lines);
    for (int64_t r = 0; r < count; ++r, y += a.ldy) {
      const __m512bh line = _mm512_cvtne2ps_pbh((__m512)(Float)right[r], (__m512)(Float)left[r]);
      std::memcpy(y, &line, sizeof line);
    }
  }
}

// Rows [row, row + rows) of the result, of columns [column, last).
template <int groups>
void tile_columns(const GemmArguments& a, int64_t row, int64_t rows, int64_t column, int64_t last,
                  const char* x, int64_t steps) {
  alignas(64) float sums[panels * groups * lines * lines];
  const int64_t bytes = a.output == GemmOutput::f32 ? 4 : 2;
  for (int64_t r = 0; r < std::min(rows, groups * lines); ++r)
    __builtin_prefetch(static_cast<char*>(a.y) + ((row + r) * a.ldy + column) * bytes, 1);
  multiply_tiles<groups>(a, column, x, steps, sums);
  if (a.bias == nullptr && a.output == GemmOutput::element && column + panels * lines <= last)
    return store_lines<groups>(a, row, rows, column, sums);
  for (int p = 0; p < panels && column + p * lines < last; ++p) {
    for (int g = 0; g < groups; ++g) {
      Word by_row[column_units];
      simd::load_columns(reinterpret_cast<const char*>(sums + (p * groups + g) * lines * lines),
                         line_bytes, by_row);
      const int64_t count = std::min(lines, rows - g * lines);
      for (int64_t r = 0; r < count; ++r)
        store_result<simd::Bf16Dot>(a, row + g * lines + r, column + p * lines, last,
                                    (Float)by_row[r]);
    }
  }
}

void multiply_range(const GemmArguments& a, int64_t row, int64_t rows, int64_t first, int64_t last,
                    const char* x, int64_t steps) {
  for (int64_t column = first; column < last; column += 2 * lines) {
    for (int64_t r = 0; r < rows; r += 2 * lines) {
      const char* const from = x + r / lines * steps * tile_bytes;
      if (rows - r > lines) {
        tile_columns<2>(a, row + r, rows - r, column, last, from, steps);
      } else {
        tile_columns<1>(a, row + r, rows - r, column, last, from, steps);
      }
    }
  }
}

}  // namespace

void gemm_bf16_amx(const GemmArguments& a, int64_t first, int64_t last,
                   const GemmScratch& scratch) {
  const TileShapes shapes;
  settle();
  _tile_loadconfig(&shapes);
  char* const packed = reinterpret_cast<char*>(scratch.x);
  const int64_t steps = gemm_padded(a.k) / step_elements, block = gemm_tile_rows(a.k);
  for (int64_t row = 0; row < a.m; row += block) {
    const int64_t rows = std::min(block, a.m - row);
    pack_rows(a, row, rows, steps, packed);
    settle();
    multiply_range(a, row, rows, first, last, packed, steps);
  }
  _tile_release();
  simd::leave();
}

}  // namespace trireme::kernels
