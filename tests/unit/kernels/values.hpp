// Random values, and bf16 by the definition of rounding to nearest even: which of two neighbours is
// nearer, in double.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "trireme/base/philox.hpp"

namespace trireme::test {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

// The same `count` values in every run; each stream has its own.
inline std::vector<float> normals(uint64_t stream, int64_t count, float width = 1) {
  std::vector<float> out(static_cast<size_t>(count));
  base::normals(41, stream, 0, out);
  for (float& x : out) x *= width;
  return out;
}

inline float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// What an infinite value counts as when the finite neighbours are compared with it.
inline double reach(uint16_t bits) {
  const auto value = static_cast<double>(from_bf16(bits));
  return std::isinf(value) ? std::copysign(0x1p128, value) : value;
}

// Not for NaN.
inline uint16_t to_bf16(float value) {
  const auto toward_zero = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  if (std::isinf(value)) return toward_zero;
  const auto away = static_cast<uint16_t>(toward_zero + 1);
  const double below = std::abs(static_cast<double>(value) - reach(toward_zero));
  const double above = std::abs(reach(away) - static_cast<double>(value));
  if (below == above) return toward_zero % 2 == 0 ? toward_zero : away;
  return below < above ? toward_zero : away;
}

inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float value : values) out.push_back(to_bf16(value));
  return out;
}

}  // namespace trireme::test
