#include "kernels/int8_gemm_body.hpp"

namespace trireme::kernels {

void int8_f32_avx2(const GemmArguments& a, int64_t first, int64_t last,
                   const GemmScratch& scratch) {
  int8_range<Int8Wide<float>>(a, first, last, scratch);
  simd::leave();
}
void int8_bf16_avx2(const GemmArguments& a, int64_t first, int64_t last,
                    const GemmScratch& scratch) {
  int8_range<Int8Wide<uint16_t>>(a, first, last, scratch);
  simd::leave();
}
void quantise_avx2(const Int8Source& source, std::byte* to, int64_t first, int64_t last) {
  quantise_source(source, to, first, last);
  simd::leave();
}

}  // namespace trireme::kernels
