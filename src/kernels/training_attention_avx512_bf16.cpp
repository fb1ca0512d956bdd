#include "kernels/training_attention_body.hpp"

namespace trireme::kernels {
const TrainingAttention<uint16_t> attention_bf16_avx512_bf16{forward<simd::Bf16Dot>,
                                                             backward<simd::Bf16Dot>};
}  // namespace trireme::kernels
