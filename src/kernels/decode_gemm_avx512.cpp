#include "kernels/decode_gemm_body.hpp"

namespace trireme::kernels {

void gemm_f32_avx512(const GemmArguments& a, int64_t first, int64_t last,
                     const GemmScratch& scratch) {
  gemm_range<simd::Fp32>(a, first, last, scratch);
  simd::leave();
}
void gemm_bf16_avx512(const GemmArguments& a, int64_t first, int64_t last,
                      const GemmScratch& scratch) {
  gemm_range<simd::Bf16Wide>(a, first, last, scratch);
  simd::leave();
}
void gemm_bf16_ascending_avx512(const GemmArguments& a, int64_t first, int64_t last,
                                const GemmScratch& scratch) {
  gemm_range<simd::Bf16Ascending>(a, first, last, scratch);
  simd::leave();
}

}  // namespace trireme::kernels
