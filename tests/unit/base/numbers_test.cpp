// bf16's one rounding over all upper halves of a float, and the sums of arrays on every instruction
// set.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "support/instruction_sets.hpp"
#include "trireme/base/bf16.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/vector_add.hpp"

namespace trireme::test {
namespace {

constexpr uint32_t lower_halves[] = {0, 1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xa5a5, 0xffff};

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : lower_halves) {
      const float value = std::bit_cast<float>(high << 16 | low);
      if (std::isnan(value)) continue;
      uint32_t want = high + (low > 0x8000 || (low == 0x8000 && high % 2 == 1) ? 1 : 0);
      if (std::isinf(value)) want = high;
      ASSERT_EQ(base::float_to_bf16(value), want) << std::hex << (high << 16 | low);
    }
  }
}

TEST(Bf16, ANanKeepsItsSignAndBecomesQuiet) {
  for (const uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu,
                              0xffffffffu, 0x7fa50000u}) {
    EXPECT_EQ(base::float_to_bf16(std::bit_cast<float>(bits)), bits >> 16 | 0x40u)
        << std::hex << bits;
  }
}

TEST(Bf16, EveryValueComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = base::bf16_to_float(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) { ASSERT_EQ(base::float_to_bf16(value), bits); }
  }
}

std::vector<float> normal_values(uint64_t stream, size_t count) {
  std::vector<float> out(count);
  base::normals(17, stream, 0, out);
  return out;
}

TEST(VectorAdd, SameBitsAsOneAdditionAfterAnotherOnEveryInstructionSet) {
  constexpr size_t most = 100;
  const auto into = normal_values(1, most), a = normal_values(2, most), b = normal_values(3, most);
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (size_t n = 0; n < most; ++n) {
      std::vector<float> sum = into, pair = into;
      base::add(sum.data() + 1, a.data(), static_cast<int64_t>(n));
      base::add_pair(pair.data() + 1, a.data(), b.data(), static_cast<int64_t>(n));
      for (size_t i = 0; i < most; ++i) {
        const bool inside = i >= 1 && i < n + 1;
        ASSERT_EQ(sum[i], inside ? into[i] + a[i - 1] : into[i])
            << base::to_string(isa) << ", " << i << " of " << n;
        ASSERT_EQ(pair[i], inside ? into[i] + (a[i - 1] + b[i - 1]) : into[i])
            << base::to_string(isa) << ", " << i << " of " << n;
      }
    }
  }
}

TEST(VectorAdd, HalfPrecisionIsWidenedAndRoundedAlikeOnEveryInstructionSet) {
  constexpr size_t most = 100;
  const auto into = normal_values(1, most);
  auto values = normal_values(2, most);
  values[7] = std::numeric_limits<float>::quiet_NaN();
  values[8] = std::numeric_limits<float>::infinity();
  values[9] = std::bit_cast<float>(0x3f808000u);  // to even
  std::vector<uint16_t> half(most);
  for (size_t i = 0; i < most; ++i) half[i] = base::float_to_bf16(values[i]);
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (size_t n = 0; n < most; ++n) {
      std::vector<float> sum = into, wide = into;
      std::vector<uint16_t> rounded(most, 1);
      base::add(sum.data() + 1, half.data(), static_cast<int64_t>(n));
      base::widen(wide.data() + 1, half.data(), static_cast<int64_t>(n));
      base::round(rounded.data() + 1, values.data(), static_cast<int64_t>(n));
      for (size_t i = 0; i < most; ++i) {
        const bool inside = i >= 1 && i < n + 1;
        const float value = inside ? base::bf16_to_float(half[i - 1]) : 0;
        if (!std::isnan(value)) {
          ASSERT_EQ(bits(sum[i]), bits(inside ? into[i] + value : into[i]))
              << base::to_string(isa) << ", " << i << " of " << n;
        }
        ASSERT_EQ(bits(wide[i]), bits(inside ? value : into[i]))
            << base::to_string(isa) << ", " << i << " of " << n;
        ASSERT_EQ(rounded[i], inside ? half[i - 1] : 1)
            << base::to_string(isa) << ", " << i << " of " << n;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
