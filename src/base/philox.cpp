#include "trireme/base/philox.hpp"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::base {
namespace {

PhiloxKey key_of(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

PhiloxCounter counter_of(Stream stream, uint64_t a, uint32_t b) {
  return {static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), b,
          static_cast<uint32_t>(stream)};
}

}  // namespace

float uniform(uint64_t seed, Stream stream, uint64_t a, uint32_t b) {
  return unit_float(philox(counter_of(stream, a, b), key_of(seed))[0]);
}

std::vector<int64_t> permutation(uint64_t seed, uint64_t epoch, int64_t n) {
  EXPECT(n >= 0);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = n - 1; i > 0;
       --i) {  // Fisher-Yates; 64 random bits make the modulo's bias irrelevant
    const auto bits = philox(
        {static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(epoch),
         static_cast<uint32_t>(Stream::shuffle) | static_cast<uint32_t>(epoch >> 32) << 8},
        key_of(seed));
    const uint64_t wide = uint64_t{bits[0]} << 32 | bits[1];
    std::swap(order[static_cast<size_t>(i)],
              order[static_cast<size_t>(wide % static_cast<uint64_t>(i + 1))]);
  }
  return order;
}

void normals(uint64_t seed, uint64_t a, uint64_t first, std::span<float> out) {
  // Box-Muller on pairs of 32-bit words: counter index i / 4 gives four normals.
  const auto key = key_of(seed ^ a * 0x9E3779B97F4A7C15ull);
  std::array<float, 4> block{};
  uint64_t have = ~uint64_t{0};
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t element = first + i;
    if (element / 4 != have) {
      have = element / 4;
      const auto bits = philox({static_cast<uint32_t>(have), static_cast<uint32_t>(have >> 32),
                                static_cast<uint32_t>(a), static_cast<uint32_t>(Stream::init)},
                               key);
      for (size_t pair = 0; pair < 2; ++pair) {
        const double radius = std::sqrt(-2.0 * std::log((bits[2 * pair] + 1.0) * 0x1.0p-32));
        const double angle = 2.0 * std::numbers::pi * bits[2 * pair + 1] * 0x1.0p-32;
        block[2 * pair] = static_cast<float>(radius * std::cos(angle));
        block[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
      }
    }
    out[i] = block[element % 4];
  }
}

}  // namespace trireme::base
