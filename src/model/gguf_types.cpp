// Block formats of ggml (ggml/src/ggml-common.h): 32 elements with one or two fp16 scales.
#include <array>
#include <cstring>

#include "gguf_parser.hpp"
#include "trireme/base/error.hpp"
#include "trireme/model/stored_type.hpp"

namespace trireme::model {
namespace {

enum Type : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  bf16 = 30
};

constexpr std::string_view type_names[] = {
    "F32",     "F16",    "Q4_0",    "Q4_1",  "Q4_2",   "Q4_3",  "Q5_0",  "Q5_1",
    "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16"};
constexpr int half_block = 16;

uint16_t half_at(const std::byte* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}
float scale_at(const std::byte* from) { return f16_to_float(half_at(from)); }

// Element j of a block is the low nibble of byte j, element j + 16 its high nibble.
void nibbles(const std::byte* packed, float scale, float shift, float* out) {
  for (int j = 0; j < half_block; ++j) {
    const auto byte = static_cast<unsigned>(packed[j]);
    out[j] = static_cast<float>(byte & 15u) * scale + shift;
    out[j + half_block] = static_cast<float>(byte >> 4) * scale + shift;
  }
}

// As nibbles, with a fifth bit from `high`: bit j for element j, bit j + 16 for element j + 16.
// `offset` is subtracted before scaling.
void five_bits(const std::byte* packed, uint32_t high, int offset, float scale, float shift,
               float* out) {
  for (int j = 0; j < half_block; ++j) {
    const auto byte = static_cast<unsigned>(packed[j]);
    const int low_value = static_cast<int>((byte & 15u) | (high >> j & 1u) << 4) - offset;
    const int high_value =
        static_cast<int>(byte >> 4 | (high >> (j + half_block) & 1u) << 4) - offset;
    out[j] = static_cast<float>(low_value) * scale + shift;
    out[j + half_block] = static_cast<float>(high_value) * scale + shift;
  }
}

uint32_t word_at(const std::byte* from) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

void dequantise_block(uint32_t type, const std::byte* from, float* out) {
  const float scale = scale_at(from);
  switch (type) {
    case q4_0:
      for (int j = 0; j < half_block; ++j) {
        const auto byte = static_cast<unsigned>(from[2 + j]);
        out[j] = static_cast<float>(static_cast<int>(byte & 15u) - 8) * scale;
        out[j + half_block] = static_cast<float>(static_cast<int>(byte >> 4) - 8) * scale;
      }
      return;
    case q4_1: nibbles(from + 4, scale, scale_at(from + 2), out); return;
    case q5_0: five_bits(from + 6, word_at(from + 2), 16, scale, 0, out); return;
    case q5_1: five_bits(from + 8, word_at(from + 4), 0, scale, scale_at(from + 2), out); return;
    case q8_0:
      for (int j = 0; j < 2 * half_block; ++j)
        out[j] = static_cast<float>(static_cast<int8_t>(from[2 + j])) * scale;
      return;
    default: throw InternalError(base::text("dequantise of ", gguf_type_name(type)));
  }
}

}  // namespace

namespace {

constexpr std::array<std::pair<uint32_t, GgufType>, 8> readable{{{f32, {"F32", 1, 4}},
                                                                 {f16, {"F16", 1, 2}},
                                                                 {bf16, {"BF16", 1, 2}},
                                                                 {q4_0, {"Q4_0", 32, 18}},
                                                                 {q4_1, {"Q4_1", 32, 20}},
                                                                 {q5_0, {"Q5_0", 32, 22}},
                                                                 {q5_1, {"Q5_1", 32, 24}},
                                                                 {q8_0, {"Q8_0", 32, 34}}}};

}  // namespace

std::vector<std::string> readable_gguf_types() {
  std::vector<std::string> out;
  for (const auto& [id, row] : readable) out.emplace_back(row.name);
  return out;
}

const GgufType* find_gguf_type(uint32_t type) {
  for (const auto& [id, row] : readable) {
    if (id == type) return &row;
  }
  return nullptr;
}

std::string gguf_type_name(uint32_t type) {
  return type < std::size(type_names) ? std::string(type_names[type]) : base::text("number ", type);
}

void dequantise(uint32_t type, const std::byte* from, uint64_t blocks, float* out) {
  switch (type) {
    case f32: to_float(StoredType::f32, from, blocks, out); return;
    case f16: to_float(StoredType::f16, from, blocks, out); return;
    case bf16: to_float(StoredType::bf16, from, blocks, out); return;
    default: break;
  }
  const GgufType* format = find_gguf_type(type);
  for (uint64_t i = 0; i < blocks; ++i)
    dequantise_block(type, from + i * format->bytes, out + i * format->elements);
}

}  // namespace trireme::model
