// lanes::exp (vector16.hpp) of one lane: the same bits on hosts and devices.
#pragma once

#include <cstdint>

#include "trireme/base/kernel_function.hpp"

namespace trireme::kernels {

TRIREME_KERNEL inline float exp_of_lane(float x) {
  constexpr float magic = 12582912.f;
  float u = x < -87.3f ? -87.3f : x;
  u = u > 88.f ? 88.f : u;
  const float shifted = u * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (u - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const uint32_t exponent =
      __builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, magic) + 127u;
  const float y = p * __builtin_bit_cast(float, exponent << 23);
  return x < -87.3f ? 0.f : y;
}

}  // namespace trireme::kernels
