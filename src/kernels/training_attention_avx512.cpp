#include "kernels/training_attention_body.hpp"

namespace trireme::kernels {
const TrainingAttention<float> attention_f32_avx512{forward<simd::Fp32>, backward<simd::Fp32>};
const TrainingAttention<uint16_t> attention_bf16_avx512{forward<simd::Bf16Wide>,
                                                        backward<simd::Bf16Wide>};
}  // namespace trireme::kernels
