#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "unit/weightsync/whole_delta.hpp"

namespace trireme::weightsync {
namespace {

struct Case {
  int element_bytes;
  int64_t elements;
  double density;
};

class Delta : public testing::TestWithParam<Case> {
 protected:
  Delta() {
    const Case c = GetParam();
    before.resize(static_cast<size_t>(c.elements * c.element_bytes));
    changed.resize(static_cast<size_t>(c.elements / 64 + 1));
    for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<std::byte>(i * 131 >> 3);
    now = before;
    for (int64_t e = 0; e < c.elements; ++e) {
      const float u = base::uniform(5, base::Stream::test, static_cast<uint64_t>(e), 0);
      if (u >= c.density) continue;
      now[static_cast<size_t>(e * c.element_bytes + e % c.element_bytes)] ^=
          std::byte{0x5a};  // any one of its bytes
      changed[static_cast<size_t>(e / 64)] |= uint64_t{1} << (e % 64);
      ++count;
    }
  }
  std::vector<std::byte> before, now;
  std::vector<uint64_t> changed;
  int64_t count = 0;
};

TEST_P(Delta, IsExactFromBothSources) {
  const Case c = GetParam();
  for (const bool from_bitmap : {false, true}) {
    std::vector<std::byte> out(now.size() * 2 + 1024);
    const size_t bytes =
        from_bitmap ? encode_delta(now, std::span<const uint64_t>(changed), c.element_bytes, out)
                    : encode_delta(now, std::span<const std::byte>(before), c.element_bytes, out);
    const int64_t blocks = (c.elements + delta_block - 1) / delta_block;
    EXPECT_EQ(static_cast<int64_t>(bytes), 4 * blocks + count * (2 + c.element_bytes));
    std::vector<std::byte> values = before;
    EXPECT_EQ(decode_delta(std::span(out).first(bytes), c.element_bytes, values), count);
    EXPECT_TRUE(values == now);
  }
}

TEST_P(Delta, SaysWhenFullIsShorter) {
  const Case c = GetParam();
  std::vector<std::byte> out(now.size());
  const int64_t blocks = (c.elements + delta_block - 1) / delta_block;
  const bool fits = 4 * blocks + count * (2 + c.element_bytes) <= static_cast<int64_t>(out.size());
  EXPECT_EQ(encode_delta(now, std::span<const std::byte>(before), c.element_bytes, out) > 0, fits);
}

// Cut short or changed, a delta is refused or harmless; never a write outside of the values.
TEST_P(Delta, MalformedOnesWriteNothingOutside) {
  const Case c = GetParam();
  std::vector<std::byte> out(now.size() * 2 + 1024);
  const size_t bytes = encode_delta(now, std::span<const std::byte>(before), c.element_bytes, out);
  for (uint64_t i = 0; i < 200; ++i) {
    std::vector<std::byte> guarded(before.size() + 128, std::byte{0x77});
    const std::span values = std::span(guarded).subspan(64, before.size());
    std::vector<std::byte> bad(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(bytes));
    if (i % 2 == 0) {
      bad.resize(static_cast<size_t>(base::uniform(9, base::Stream::test, i, 0) *
                                     static_cast<float>(bytes)));
    } else {
      bad[static_cast<size_t>(base::uniform(9, base::Stream::test, i, 1) *
                              static_cast<float>(bytes))] ^= std::byte{0x80};
    }
    try {
      decode_delta(bad, c.element_bytes, values);
    } catch (const UserError& error) { EXPECT_EQ(error.code(), ExitCode::bad_data); }
    for (size_t g = 0; g < 64; ++g) {
      ASSERT_EQ(guarded[g], std::byte{0x77});
      ASSERT_EQ(guarded[guarded.size() - 1 - g], std::byte{0x77});
    }
  }
}

// Each way in which the words of the format can be wrong.
TEST(DeltaFormat, RefusesWhatItCannotMean) {
  const auto refused = [](std::vector<uint16_t> words, size_t elements, const char* why) {
    std::vector<uint16_t> values(elements, 7);
    try {
      decode_delta(std::as_bytes(std::span(words)), 2, std::as_writable_bytes(std::span(values)));
      ADD_FAILURE() << "accepted, expected: " << why;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  std::vector<uint16_t> good{2, 0, 1, 3, 50, 60};  // count (two words), indices, values
  std::vector<uint16_t> values(4, 7);
  EXPECT_EQ(
      decode_delta(std::as_bytes(std::span(good)), 2, std::as_writable_bytes(std::span(values))),
      2);
  EXPECT_EQ(values, (std::vector<uint16_t>{7, 50, 7, 60}));
  refused({}, 4, "ends early");
  refused({1}, 4, "ends early");
  refused({2, 0, 1, 3, 50}, 4, "a block of 2 changes");
  refused({5, 0, 0, 1, 2, 3, 4, 1, 1, 1, 1, 1}, 4, "a block of 5 changes");
  refused({0xffff, 0xffff}, 4, "a block of 4294967295 changes");
  refused({2, 0, 3, 1, 50, 60}, 4, "out of order");
  refused({2, 0, 1, 1, 50, 60}, 4, "out of order");
  refused({2, 0, 1, 4, 50, 60}, 4, "out of order or range");
  refused({2, 0, 1, 3, 50, 60, 0}, 4, "bytes after its end");
  refused({0, 0, 0, 0}, 4, "bytes after its end");
  refused({0, 0}, 65537, "ends early");         // the second block is missing
  refused({0, 0, 1, 0, 1, 9}, 65537, "range");  // which has one element
}

INSTANTIATE_TEST_SUITE_P(Shapes, Delta,
                         testing::Values(Case{2, 1, 0.0}, Case{2, 1000, 0.01}, Case{2, 65536, 0.5},
                                         Case{2, 65536, 1.1}, Case{2, 200001, 0.01},
                                         Case{4, 131072, 0.03}, Case{4, 65537, 0.9},
                                         Case{2, 70000, 0.0}));

}  // namespace
}  // namespace trireme::weightsync
