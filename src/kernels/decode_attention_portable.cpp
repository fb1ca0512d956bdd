#include "kernels/decode_attention_body.hpp"

namespace trireme::kernels {

void attend_f32_portable(const AttentionArguments& a, const AttentionRows& rows) {
  attend_all<simd::Fp32>(a, rows);
  simd::leave();
}
void attend_bf16_portable(const AttentionArguments& a, const AttentionRows& rows) {
  attend_all<simd::Bf16Wide>(a, rows);
  simd::leave();
}

}  // namespace trireme::kernels
