#include "trireme/kernels/decode_gemm.hpp"

#include <algorithm>
#include <vector>

#include "kernels/int8_gemm_kernels.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::kernels {
namespace {

using GemmFunction = void (*)(const GemmArguments&, int64_t, int64_t, const GemmScratch&);

using QuantiseFunction = void (*)(const Int8Source&, std::byte*, int64_t, int64_t);

// The functions of one instruction set; bf16: pair by pair, and element after element; then over
// weights in 8 bits.
struct GemmKernels {
  GemmFunction f32, bf16, bf16_ascending, int8_f32, int8_bf16;
  QuantiseFunction quantise;
};

GemmKernels gemm_kernels([[maybe_unused]] base::Isa isa) {
#if defined(__x86_64__)
  if (isa == base::Isa::avx512_bf16) {
    return {gemm_f32_avx512, gemm_bf16_avx512_bf16, gemm_bf16_ascending_avx512,
            int8_f32_avx512, int8_bf16_avx512_bf16, quantise_avx512};
  }
  if (isa == base::Isa::avx512)
    return {gemm_f32_avx512, gemm_bf16_avx512, gemm_bf16_ascending_avx512,
            int8_f32_avx512, int8_bf16_avx512, quantise_avx512};
  if (isa == base::Isa::avx2)
    return {gemm_f32_avx2, gemm_bf16_avx2, gemm_bf16_ascending_avx2,
            int8_f32_avx2, int8_bf16_avx2, quantise_avx2};
#endif
  return {gemm_f32_portable, gemm_bf16_portable, gemm_bf16_ascending_portable,
          int8_f32_portable, int8_bf16_portable, quantise_portable};
}

bool in_tiles(const GemmArguments& a) {
  return a.order.tiles && a.int8 == nullptr && a.type == ElementType::bf16;
}

GemmFunction gemm_function(const GemmArguments& a, base::Isa isa) {
  const GemmKernels all = gemm_kernels(isa);
  if (a.int8 != nullptr) return a.type == ElementType::f32 ? all.int8_f32 : all.int8_bf16;
#if defined(__x86_64__)
  if (in_tiles(a)) return a.m == 1 ? gemm_row_in_tile_order_avx512_bf16 : gemm_bf16_amx;
#endif
  return a.type == ElementType::f32 ? all.f32 : a.order.ascending ? all.bf16_ascending : all.bf16;
}

// Kept by each thread, as large as the largest product so far. In this file, so that no code for a
// newer CPU gets into std::vector's functions.
GemmScratch gemm_scratch(const GemmArguments& a, base::Isa isa) {
  struct alignas(64) Line {
    float values[16];
  };
  thread_local std::vector<Line> memory;
  const int64_t rows = std::min(a.m, gemm_row_block);
  const bool widens =
      a.type == ElementType::bf16 && (isa != base::Isa::avx512_bf16 || a.order.ascending);
  const int64_t packed_rows = (std::min(a.m, gemm_tile_rows(a.k)) + 15) / 16 * 16;  // of pairs
  const int64_t x = in_tiles(a) ? packed_rows * gemm_padded(a.k) / 2
                    : widens    ? rows * gemm_padded(a.k)
                                : 0,
                packed = gemm_piece_steps * gemm_panel_columns, sums = rows * gemm_panel_columns;
  const auto lines =
      static_cast<size_t>((x + packed + 2 * sums) / 16);  // each part is a multiple of 16
  if (memory.size() < lines) memory.resize(lines);
  float* const begin = memory.data()->values;
  return {begin + packed + 2 * sums, reinterpret_cast<char*>(begin), begin + packed,
          begin + packed + sums};
}

}  // namespace

bool products_are_fused() {
  return base::active_isa() > base::Isa::portable || gemm_portable_is_fused();
}

void gemm_columns(const GemmArguments& arguments, int64_t first, int64_t last) {
  EXPECT(arguments.ldx >= (in_tiles(arguments) ? arguments.k : gemm_padded(arguments.k)) &&
         arguments.order.block > 0);
  EXPECT(!in_tiles(arguments) ||
         (base::has_matrix_units() && arguments.order.block >= arguments.k));
  EXPECT(arguments.order.block >= arguments.k ||
         arguments.order.block % (64 / static_cast<int64_t>(size_of(arguments.type))) == 0);
  EXPECT(arguments.int8 == nullptr || first % int8_panel == 0);
  if (first >= last || arguments.m <= 0) return;
  const base::Isa isa = base::active_isa();
  gemm_function(arguments, isa)(arguments, first, last, gemm_scratch(arguments, isa));
}

void quantise(const Int8Source& source, std::byte* to, int64_t first, int64_t last) {
  EXPECT(source.k > 0 && source.n > 0 && first >= 0 && last <= int8_panels(source.n));
  gemm_kernels(base::active_isa()).quantise(source, to, first, last);
}

}  // namespace trireme::kernels
