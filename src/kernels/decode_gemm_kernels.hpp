// What the instruction-set files of the decode GEMM implement. Internal to kernels.
#pragma once

#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::kernels {

void gemm_columns_portable(const GemmArguments& arguments, int64_t first, int64_t last);
#if defined(__x86_64__)
// `bf16_products`: VDPBF16PS may be used; otherwise two FMAs in its order give the same bits.
void gemm_columns_avx512(const GemmArguments& arguments, int64_t first, int64_t last, bool bf16_products);
#endif

}  // namespace trireme::kernels
