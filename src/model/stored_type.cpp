#include "trireme/model/stored_type.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "trireme/base/bf16.hpp"
#include "trireme/base/error.hpp"

namespace trireme::model {
namespace {

struct TypeRow {
  StoredType type;
  std::string_view name;
  int bits;
};

constexpr std::array<TypeRow, 20> type_table{{
    {StoredType::boolean, "BOOL", 8},    {StoredType::u8, "U8", 8},
    {StoredType::i8, "I8", 8},           {StoredType::i16, "I16", 16},
    {StoredType::u16, "U16", 16},        {StoredType::i32, "I32", 32},
    {StoredType::u32, "U32", 32},        {StoredType::i64, "I64", 64},
    {StoredType::u64, "U64", 64},        {StoredType::f16, "F16", 16},
    {StoredType::bf16, "BF16", 16},      {StoredType::f32, "F32", 32},
    {StoredType::f64, "F64", 64},        {StoredType::complex64, "C64", 64},
    {StoredType::f4, "F4", 4},           {StoredType::f6_e2m3, "F6_E2M3", 6},
    {StoredType::f6_e3m2, "F6_E3M2", 6}, {StoredType::f8_e5m2, "F8_E5M2", 8},
    {StoredType::f8_e4m3, "F8_E4M3", 8}, {StoredType::f8_e8m0, "F8_E8M0", 8},
}};

const TypeRow& row_of(StoredType type) { return type_table[static_cast<size_t>(type)]; }

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {  // subnormal: a multiple of 2^-24; the addition rounds to even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace

std::string_view name_of(StoredType type) { return row_of(type).name; }
int bits_of(StoredType type) { return row_of(type).bits; }

std::optional<StoredType> stored_type_of(std::string_view name) {
  for (const auto& row : type_table) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

bool is_weight_type(StoredType type) {
  switch (type) {
    case StoredType::f64:
    case StoredType::f32:
    case StoredType::f16:
    case StoredType::bf16:
    case StoredType::f8_e5m2:
    case StoredType::f8_e4m3:
    case StoredType::f8_e8m0: return true;
    default: return false;
  }
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits} << 16 & 0x80000000u;
  const uint32_t exponent = bits >> 10 & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0)
    return std::copysign(static_cast<float>(mantissa) * 0x1.0p-24f,
                         std::bit_cast<float>(sign | 1u));
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

namespace {

// Sign, 4 bits of exponent, 3 of mantissa; no infinity, and NaN where all seven are set.
float e4m3_to_float(uint8_t bits) {
  const float sign = (bits & 0x80u) != 0 ? -1.0f : 1.0f;
  const int exponent = bits >> 3 & 0xF, mantissa = bits & 7;
  if ((bits & 0x7Fu) == 0x7Fu) return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1.0p-9f;
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

// 2 to the power of the byte - 127; 255 is NaN.
float e8m0_to_float(uint8_t bits) {
  return bits == 255 ? std::numeric_limits<float>::quiet_NaN()
                     : std::ldexp(1.0f, static_cast<int>(bits) - 127);
}

template <class Convert>
std::array<float, 256> table_of(Convert convert) {
  std::array<float, 256> out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = convert(static_cast<uint8_t>(i));
  return out;
}

void bytes_to_float(const std::array<float, 256>& table, const std::byte* from, size_t count,
                    float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = table[std::to_integer<uint8_t>(from[i])];
}

}  // namespace

void to_float(StoredType type, const std::byte* from, size_t count, float* out) {
  switch (type) {
    case StoredType::f32: std::memcpy(out, from, count * sizeof(float)); return;
    case StoredType::bf16:
      for (size_t i = 0; i < count; ++i) out[i] = base::bf16_to_float(load<uint16_t>(from + 2 * i));
      return;
    case StoredType::f16:
      for (size_t i = 0; i < count; ++i) out[i] = f16_to_float(load<uint16_t>(from + 2 * i));
      return;
    case StoredType::f64:
      for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(load<double>(from + 8 * i));
      return;
    case StoredType::f8_e4m3: {
      static const auto table = table_of(e4m3_to_float);
      return bytes_to_float(table, from, count, out);
    }
    case StoredType::f8_e5m2: {  // the upper half of an f16
      static const auto table =
          table_of([](uint8_t b) { return f16_to_float(static_cast<uint16_t>(b << 8)); });
      return bytes_to_float(table, from, count, out);
    }
    case StoredType::f8_e8m0: {
      static const auto table = table_of(e8m0_to_float);
      return bytes_to_float(table, from, count, out);
    }
    default: throw InternalError(base::text("to_float of type ", name_of(type)));
  }
}

void from_float(StoredType type, const float* from, size_t count, std::byte* out) {
  const auto store = [out](size_t i, uint16_t bits) {
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  };
  switch (type) {
    case StoredType::f32: std::memcpy(out, from, count * sizeof(float)); return;
    case StoredType::bf16:
      for (size_t i = 0; i < count; ++i) store(i, base::float_to_bf16(from[i]));
      return;
    case StoredType::f16:
      for (size_t i = 0; i < count; ++i) store(i, float_to_f16(from[i]));
      return;
    default: throw InternalError(base::text("from_float to type ", name_of(type)));
  }
}

}  // namespace trireme::model
