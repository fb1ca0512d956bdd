#include "kernels/decode_gemm_body.hpp"

namespace trireme::kernels {

void gemm_f32_portable(const GemmArguments& a, int64_t first, int64_t last,
                       const GemmScratch& scratch) {
  gemm_range<simd::Fp32>(a, first, last, scratch);
  simd::leave();
}
void gemm_bf16_portable(const GemmArguments& a, int64_t first, int64_t last,
                        const GemmScratch& scratch) {
  gemm_range<simd::Bf16Wide>(a, first, last, scratch);
  simd::leave();
}
void gemm_bf16_ascending_portable(const GemmArguments& a, int64_t first, int64_t last,
                                  const GemmScratch& scratch) {
  gemm_range<simd::Bf16Ascending>(a, first, last, scratch);
  simd::leave();
}

bool gemm_portable_is_fused() { return simd::fused; }

}  // namespace trireme::kernels
