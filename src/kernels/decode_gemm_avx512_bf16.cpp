#include "kernels/decode_gemm_body.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {
namespace {

static_assert(simd::Bf16Dot::per_unit * column_units ==
              32);  // a step of the matrix units: both sums begin anew behind it

// Flushes numbers below 2^-126, in and out, as matrix units and VDPBF16PS do.
class FlushedSubnormals {
 public:
  FlushedSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  ~FlushedSubnormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

// One row of x as pairs of k, padded, twice: [even, odd][units], the other element of each pair
// zero. VDPBF16PS then adds one of them only (the other adds zero, where the weight is finite; NaN
// where the units may give an infinity).
void split_pairs(const GemmArguments& a, int64_t units, uint32_t* even) {
  const auto* const x = static_cast<const uint16_t*>(a.x);
  uint32_t* const odd = even + units;
  for (int64_t u = 0; u < units; ++u) {
    even[u] = 2 * u < a.k ? x[2 * u] : 0;
    odd[u] = 2 * u + 1 < a.k ? static_cast<uint32_t>(x[2 * u + 1]) << 16 : 0;
  }
}

template <int vectors>
void tile_order_columns(const GemmArguments& a, const char* pairs, int64_t units, int64_t column,
                        int64_t last) {
  Float total[vectors] = {};
  for (int64_t unit = 0; unit < units; unit += column_units) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      Word w[column_units];
      WeightRows<simd::Bf16Dot>(a, column + v * width, vectors * width).load(unit, w);
      Float even{}, odd{};
#pragma GCC unroll 16
      for (int64_t j = 0; j < column_units; ++j) {
        even = simd::Bf16Dot::add(even, w[j], simd::broadcast(pairs + (unit + j) * 4));
        odd = simd::Bf16Dot::add(odd, w[j], simd::broadcast(pairs + (units + unit + j) * 4));
      }
      total[v] += even + odd;
    }
  }
  for (int v = 0; v < vectors; ++v)
    store_result<simd::Bf16Dot>(a, 0, column + v * width, last, total[v]);
}

}  // namespace

void gemm_bf16_avx512_bf16(const GemmArguments& a, int64_t first, int64_t last,
                           const GemmScratch& scratch) {
  gemm_range<simd::Bf16Dot>(a, first, last, scratch);
  simd::leave();
}

void gemm_row_in_tile_order_avx512_bf16(const GemmArguments& a, int64_t first, int64_t last,
                                        const GemmScratch& scratch) {
  EXPECT(a.m == 1);
  const FlushedSubnormals flushed;
  const int64_t units = gemm_padded(a.k) / simd::Bf16Dot::per_unit;
  split_pairs(a, units, reinterpret_cast<uint32_t*>(scratch.x));
  const auto* const pairs = reinterpret_cast<const char*>(scratch.x);
  int64_t column = first;
  for (; column + 2 * width <= last; column += 2 * width)
    tile_order_columns<2>(a, pairs, units, column, last);
  for (; column < last; column += width) tile_order_columns<1>(a, pairs, units, column, last);
  simd::leave();
}

}  // namespace trireme::kernels
