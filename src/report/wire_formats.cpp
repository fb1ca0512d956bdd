#include "report/wire_formats.hpp"

#include <array>
#include <bit>

namespace trireme::report {
namespace {

constexpr int varint = 0, fixed64 = 1, delimited = 2, fixed32 = 5;  // wire types

std::array<uint32_t, 256> table_of(Crc polynomial) {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value & 1) != 0 ? value >> 1 ^ static_cast<uint32_t>(polynomial) : value >> 1;
    table[i] = value;
  }
  return table;
}

}  // namespace

std::string little_endian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 0xFF);
  return out;
}

void ProtoMessage::append_varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(0x80 | (value & 0x7F));
  bytes_ += static_cast<char>(value);
}

void ProtoMessage::append_tag(int field, int wire_type) {
  append_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type));
}

ProtoMessage& ProtoMessage::add_integer(int field, int64_t value) {
  append_tag(field, varint);
  append_varint(static_cast<uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_double(int field, double value) {
  append_tag(field, fixed64);
  bytes_ += little_endian(std::bit_cast<uint64_t>(value), 8);
  return *this;
}

ProtoMessage& ProtoMessage::add_float(int field, float value) {
  append_tag(field, fixed32);
  bytes_ += little_endian(std::bit_cast<uint32_t>(value), 4);
  return *this;
}

ProtoMessage& ProtoMessage::add_bytes(int field, std::string_view value) {
  append_tag(field, delimited);
  append_varint(value.size());
  bytes_ += value;
  return *this;
}

uint32_t crc32(Crc polynomial, std::string_view bytes) {
  static const std::array tables{table_of(Crc::ieee), table_of(Crc::castagnoli)};
  const auto& table = tables[polynomial == Crc::ieee ? 0 : 1];
  uint32_t value = ~uint32_t{0};
  for (const char c : bytes)
    value = table[(value ^ static_cast<unsigned char>(c)) & 0xFF] ^ value >> 8;
  return ~value;
}

}  // namespace trireme::report
