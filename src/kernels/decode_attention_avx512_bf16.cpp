#include "kernels/decode_attention_body.hpp"

namespace trireme::kernels {

void attend_bf16_avx512_bf16(const AttentionArguments& a, const AttentionRows& rows) {
  attend_all<simd::Bf16Dot>(a, rows);
  simd::leave();
}

}  // namespace trireme::kernels
