// The decode attention in plain C++: the same order of additions as the vector kernels, for any processor.
#include "kernels/decode_attention_body.hpp"

// With FMA in hardware std::fma is one instruction; elsewhere the C library's exact one is called.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define TRIREME_FMA_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TRIREME_FMA_CLONES
#endif

namespace trireme::kernels {
namespace {

TRIREME_LANES_INLINE Float fused(Word words, uint32_t x, Float sum) {
  float w[lanes::count], s[lanes::count], factor;
  std::memcpy(w, &words, sizeof w);
  std::memcpy(s, &sum, sizeof s);
  std::memcpy(&factor, &x, sizeof factor);
  for (int i = 0; i < lanes::count; ++i) s[i] = __builtin_fmaf(w[i], factor, s[i]);
  return lanes::load(s);
}

struct Fp32 {
  using Element = float;
  static constexpr int64_t per_word = 1;
  static TRIREME_LANES_INLINE Float add_product(Float sum, Word words, uint32_t x) { return fused(words, x, sum); }
};

struct Bf16 {  // as VDPBF16PS: the odd element first
  using Element = uint16_t;
  static constexpr int64_t per_word = 2;
  static TRIREME_LANES_INLINE Float add_product(Float sum, Word words, uint32_t x) {
    return fused(words << 16, x << 16, fused(words & 0xffff0000u, x & 0xffff0000u, sum));
  }
};

}  // namespace

TRIREME_FMA_CLONES void attend_portable(const AttentionArguments& a, const AttentionRows& rows) {
  if (a.type == ElementType::f32) {
    attend_all<Fp32>(a, rows);
  } else {
    attend_all<Bf16>(a, rows);
  }
}

}  // namespace trireme::kernels
