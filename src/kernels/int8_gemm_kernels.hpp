// Implemented by the instruction-set files of the decode GEMM over weights in 8 bits. Internal to
// kernels.
#pragma once

#include "kernels/decode_gemm_kernels.hpp"
#include "trireme/kernels/int8_gemm.hpp"

namespace trireme::kernels {

void int8_f32_portable(const GemmArguments& arguments, int64_t first, int64_t last,
                       const GemmScratch& scratch);
void int8_bf16_portable(const GemmArguments& arguments, int64_t first, int64_t last,
                        const GemmScratch& scratch);
void quantise_portable(const Int8Source& source, std::byte* to, int64_t first, int64_t last);
#if defined(__x86_64__)
void int8_f32_avx2(const GemmArguments& arguments, int64_t first, int64_t last,
                   const GemmScratch& scratch);
void int8_bf16_avx2(const GemmArguments& arguments, int64_t first, int64_t last,
                    const GemmScratch& scratch);
void quantise_avx2(const Int8Source& source, std::byte* to, int64_t first, int64_t last);
void int8_f32_avx512(const GemmArguments& arguments, int64_t first, int64_t last,
                     const GemmScratch& scratch);
void int8_bf16_avx512(const GemmArguments& arguments, int64_t first, int64_t last,
                      const GemmScratch& scratch);
void quantise_avx512(const Int8Source& source, std::byte* to, int64_t first, int64_t last);
void int8_bf16_avx512_bf16(const GemmArguments& arguments, int64_t first, int64_t last,
                           const GemmScratch& scratch);
#endif

}  // namespace trireme::kernels
