#include "kernels/decode_attention_body.hpp"

namespace trireme::kernels {

const DecodeAttention decode_bf16_avx512_bf16 = decode_attention<simd::Bf16Dot>;

}  // namespace trireme::kernels
