#include "kernels/int8_gemm_body.hpp"

namespace trireme::kernels {

void int8_bf16_avx512_bf16(const GemmArguments& a, int64_t first, int64_t last,
                           const GemmScratch& scratch) {
  int8_range<simd::Bf16Dot>(a, first, last, scratch);
  simd::leave();
}

}  // namespace trireme::kernels
