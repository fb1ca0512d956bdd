// Element types of weights in files, and their conversion to and from fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "trireme/base/element_type.hpp"

namespace trireme::model {

// The types of the safetensors format. Floats of 8 bits and more can be weights; the others are
// recognised so that a file with them opens and a read of such a tensor is refused by name.
enum class StoredType : uint8_t {
  boolean,
  u8,
  i8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  f16,
  bf16,
  f32,
  f64,
  complex64,
  f4,
  f6_e2m3,
  f6_e3m2,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0
};

std::string_view name_of(StoredType type);  // as in safetensors headers: "BF16"
std::optional<StoredType> stored_type_of(std::string_view name);
constexpr StoredType stored_type_of(base::ElementType type) {
  switch (type) {
    case base::ElementType::f32: return StoredType::f32;
    case base::ElementType::bf16: return StoredType::bf16;
  }
  return StoredType::boolean;
}
int bits_of(StoredType type);
bool is_weight_type(StoredType type);  // f64, f32, f16, bf16, f8 of all kinds
inline uint64_t bytes_of(StoredType type) {
  return static_cast<uint64_t>(bits_of(type)) / 8;
}  // of whole-byte types

// `count` elements at `from` (any alignment) to fp32. Precondition: is_weight_type(type).
void to_float(StoredType type, const std::byte* from, size_t count, float* out);

// fp32 to f32, bf16 or f16 with round to nearest even; NaN stays NaN. Precondition: one of these
// three.
void from_float(StoredType type, const float* from, size_t count, std::byte* out);

float f16_to_float(uint16_t bits);

}  // namespace trireme::model
