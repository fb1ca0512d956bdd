#include "torch/torch.hpp"

#include "trireme/model/stored_type.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace trireme::model {
namespace {

TEST(StoredType, names_round_trip) {
  for (int i = 0; i <= static_cast<int>(StoredType::f8_e8m0); ++i) {
    const auto type = static_cast<StoredType>(i);
    EXPECT_EQ(stored_type_of(name_of(type)), type);
  }
  EXPECT_FALSE(stored_type_of("F31"));
}

TEST(StoredType, every_half_converts_as_libtorch_does) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float want = static_cast<float>(c10::Half(narrow, c10::Half::from_bits()));
    const float got = f16_to_float(narrow);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    ASSERT_EQ(std::memcmp(&got, &want, sizeof got), 0) << bits;
    uint16_t back = 0;
    from_float(StoredType::f16, &got, 1, reinterpret_cast<std::byte*>(&back));
    ASSERT_EQ(back, narrow);
  }
}

template <class Theirs>
void expect_libtorchs_bytes(StoredType type) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::byte>(bits);
    const auto want = static_cast<float>(Theirs(static_cast<uint8_t>(bits), Theirs::from_bits()));
    float got = 0;
    to_float(type, &byte, 1, &got);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      EXPECT_EQ(std::memcmp(&got, &want, sizeof got), 0) << name_of(type) << " " << bits;
    }
  }
}

TEST(StoredType, every_byte_converts_as_libtorch_does) {
  expect_libtorchs_bytes<c10::Float8_e4m3fn>(StoredType::f8_e4m3);
  expect_libtorchs_bytes<c10::Float8_e5m2>(StoredType::f8_e5m2);
  expect_libtorchs_bytes<c10::Float8_e8m0fnu>(StoredType::f8_e8m0);
}

TEST(StoredType, rounds_as_libtorch_does) {
  at::Tensor values = at::randn({100000}, at::TensorOptions().dtype(at::kFloat));
  values = at::cat({values, values.mul(1e-5), values.mul(1e-7), values.mul(1e4),
                    at::tensor({65519.f, 65520.f, 1e30f, 3.4e38f, 0.f, -0.f}),
                    at::full({2}, std::numeric_limits<float>::infinity())});
  for (const auto& [type, torch] :
       {std::pair(StoredType::bf16, at::kBFloat16), std::pair(StoredType::f16, at::kHalf)}) {
    at::Tensor got = at::empty(values.sizes(), at::TensorOptions().dtype(torch));
    from_float(type, values.const_data_ptr<float>(), static_cast<size_t>(values.numel()),
               static_cast<std::byte*>(got.mutable_data_ptr()));
    EXPECT_TRUE(at::equal(got, values.to(torch))) << name_of(type);
    at::Tensor wide = at::empty_like(values);
    to_float(type, static_cast<const std::byte*>(got.const_data_ptr()),
             static_cast<size_t>(values.numel()), wide.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(wide, got.to(at::kFloat))) << name_of(type);
  }
}

TEST(StoredType, nan_stays_nan) {
  for (const auto type : {StoredType::bf16, StoredType::f16}) {
    const uint32_t payload = 0x7F800001u;  // rounding this to 16 bits must not give infinity
    float value = 0, back = 0;
    std::memcpy(&value, &payload, sizeof value);
    std::byte stored[2];
    from_float(type, &value, 1, stored);
    to_float(type, stored, 1, &back);
    EXPECT_TRUE(std::isnan(back));
  }
}

}  // namespace
}  // namespace trireme::model
