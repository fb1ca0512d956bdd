// bf16 as its bits, and the one rounding to it: to nearest even; a NaN keeps its sign and the upper
// part of its payload and becomes quiet, as in VCVTNEPS2BF16 and BFCVT. Always inlined: files that
// are compiled for one instruction set may use it.
#pragma once

#include <cstdint>

#include "trireme/base/kernel_function.hpp"

namespace trireme::base {

[[gnu::always_inline]] TRIREME_KERNEL inline float bf16_to_float(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

[[gnu::always_inline]] TRIREME_KERNEL inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

}  // namespace trireme::base
