#include "trireme/kernels/decode_gemm.hpp"

#include <algorithm>
#include <vector>

#include "kernels/decode_gemm_kernels.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::kernels {
namespace {

using Function = void (*)(const GemmArguments&, int64_t, int64_t, const GemmScratch&);

Function function_for(ElementType type, base::Isa isa) {
  const bool f32 = type == ElementType::f32;
#if defined(__x86_64__)
  if (isa == base::Isa::avx512_bf16 && !f32) return gemm_bf16_avx512_bf16;
  if (isa >= base::Isa::avx512) return f32 ? gemm_f32_avx512 : gemm_bf16_avx512;
  if (isa == base::Isa::avx2) return f32 ? gemm_f32_avx2 : gemm_bf16_avx2;
#endif
  return f32 ? gemm_f32_portable : gemm_bf16_portable;
}

// Kept by each thread, as large as the largest product so far. In this file, so that no code for a newer CPU gets into
// std::vector's functions.
GemmScratch scratch_of_thread(const GemmArguments& a, base::Isa isa) {
  struct alignas(64) Line {
    float values[16];
  };
  thread_local std::vector<Line> memory;
  const int64_t rows = std::min(a.m, gemm_row_block);
  const bool widens = a.type == ElementType::bf16 && isa != base::Isa::avx512_bf16;
  const int64_t x = widens ? rows * gemm_padded(a.k) : 0, packed = gemm_piece_steps * gemm_panel_columns, sums = rows * gemm_panel_columns;
  const auto lines = static_cast<size_t>((x + packed + 2 * sums) / 16);  // each part is a multiple of 16
  if (memory.size() < lines) memory.resize(lines);
  float* const begin = memory.data()->values;
  return {begin + packed + 2 * sums, reinterpret_cast<char*>(begin), begin + packed, begin + packed + sums};
}

}  // namespace

bool products_are_fused() { return base::active_isa() > base::Isa::portable || gemm_portable_is_fused(); }

void gemm_columns(const GemmArguments& arguments, int64_t first, int64_t last) {
  EXPECT(arguments.ldx >= gemm_padded(arguments.k) && arguments.order.block > 0);
  EXPECT(arguments.order.block >= arguments.k || arguments.order.block % (64 / static_cast<int64_t>(size_of(arguments.type))) == 0);
  if (first >= last || arguments.m <= 0) return;
  const base::Isa isa = base::active_isa();
  function_for(arguments.type, isa)(arguments, first, last, scratch_of_thread(arguments, isa));
}

}  // namespace trireme::kernels
