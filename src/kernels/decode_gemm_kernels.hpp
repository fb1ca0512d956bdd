// Implemented by the instruction-set files of the decode GEMM. Internal to kernels.
#pragma once

#include <algorithm>

#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::kernels {

inline constexpr int64_t gemm_row_block =
    240;  // rows of x per packed panel: x and sums stay in the L2 cache
inline constexpr int64_t gemm_panel_columns = 32;  // at most, of a packed panel
inline constexpr int64_t gemm_piece_steps = 128;   // of a packed panel: 16 KiB at most
// Rows of x that matrix units take at a time, a multiple of 32: packed 1 MiB at most, so that it
// stays in the L2 cache.
constexpr int64_t gemm_tile_rows(int64_t k) {
  return std::clamp<int64_t>((int64_t{1} << 19) / gemm_padded(k) / 32 * 32, 32, 256);
}

// Memory of one thread, 64-byte aligned.
struct GemmScratch {
  float* x = nullptr;      // [min(M, row block)][padded K], where bf16 is widened to fp32; or rows
                           // packed for matrix units
  char* packed = nullptr;  // [piece steps][panel columns] of 4 bytes
  float* block = nullptr;  // [row block][panel columns]: sums of the running block of K
  float* total = nullptr;  // and of those before it
};

// Columns [first, last). bf16 with VDPBF16PS, or widened to fp32 in its order: the same bits.
void gemm_f32_portable(const GemmArguments& arguments, int64_t first, int64_t last,
                       const GemmScratch& scratch);
void gemm_bf16_portable(const GemmArguments& arguments, int64_t first, int64_t last,
                        const GemmScratch& scratch);
void gemm_bf16_ascending_portable(const GemmArguments& arguments, int64_t first, int64_t last,
                                  const GemmScratch& scratch);
bool gemm_portable_is_fused();
#if defined(__x86_64__)
void gemm_f32_avx2(const GemmArguments& arguments, int64_t first, int64_t last,
                   const GemmScratch& scratch);
void gemm_bf16_avx2(const GemmArguments& arguments, int64_t first, int64_t last,
                    const GemmScratch& scratch);
void gemm_bf16_ascending_avx2(const GemmArguments& arguments, int64_t first, int64_t last,
                              const GemmScratch& scratch);
void gemm_f32_avx512(const GemmArguments& arguments, int64_t first, int64_t last,
                     const GemmScratch& scratch);
void gemm_bf16_avx512(const GemmArguments& arguments, int64_t first, int64_t last,
                      const GemmScratch& scratch);
void gemm_bf16_ascending_avx512(const GemmArguments& arguments, int64_t first, int64_t last,
                                const GemmScratch& scratch);
void gemm_bf16_avx512_bf16(const GemmArguments& arguments, int64_t first, int64_t last,
                           const GemmScratch& scratch);
// order.tiles: on the units; and for one row, with the same bits, by VDPBF16PS, which reads weights
// faster.
void gemm_bf16_amx(const GemmArguments& arguments, int64_t first, int64_t last,
                   const GemmScratch& scratch);
void gemm_row_in_tile_order_avx512_bf16(const GemmArguments& arguments, int64_t first, int64_t last,
                                        const GemmScratch& scratch);
#endif

}  // namespace trireme::kernels
