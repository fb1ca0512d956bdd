#include "kernels/decode_attention_body.hpp"

namespace trireme::kernels {

const DecodeAttention decode_f32_portable = decode_attention<simd::Fp32>;
const DecodeAttention decode_bf16_portable = decode_attention<simd::Bf16Wide>;

}  // namespace trireme::kernels
