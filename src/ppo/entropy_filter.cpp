#include "trireme/ppo/entropy_filter.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace trireme::ppo {
namespace {

using Sum = std::function<void(std::span<double>)>;

// Numbers in the order of the floats, and back.
uint32_t place_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}
float value_at(uint32_t place) {
  return std::bit_cast<float>((place >> 31) != 0 ? place & 0x7FFFFFFFU : ~place);
}

// The value at `index` of all ranks' values in ascending order: byte by byte, the highest first.
float order_statistic(std::span<const float> values, double index, const Sum& sum) {
  uint32_t found = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<double, 256> counts{};
    for (const float value : values) {
      const uint32_t place = place_of(value);
      const bool same = shift == 24 || place >> (shift + 8) == found >> (shift + 8);
      if (same) counts[place >> shift & 0xFF] += 1;
    }
    sum(counts);
    size_t byte = 0;
    while (byte < 255 && index >= counts[byte]) index -= counts[byte++];
    found |= static_cast<uint32_t>(byte) << shift;
  }
  return value_at(found);
}

}  // namespace

double top_entropy_threshold(std::span<const float> entropies, double top, const Sum& sum) {
  std::array<double, 1> count{static_cast<double>(entropies.size())};
  sum(count);
  if (count[0] < 1) return -std::numeric_limits<double>::infinity();
  const double position = (1 - top) * (count[0] - 1);
  const double below = std::floor(position);
  const auto low = static_cast<double>(order_statistic(entropies, below, sum));
  if (position == below) return low;
  const auto high = static_cast<double>(order_statistic(entropies, below + 1, sum));
  return low + (high - low) * (position - below);
}

}  // namespace trireme::ppo
