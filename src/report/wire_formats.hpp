// The two formats that event files are made of: Protocol Buffers (writing only) and CRC-32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::report {

// A message: fields in the order in which they are added.
class ProtoMessage {
 public:
  ProtoMessage& add_integer(int field, int64_t value);
  ProtoMessage& add_double(int field, double value);
  ProtoMessage& add_float(int field, float value);
  ProtoMessage& add_bytes(int field, std::string_view value);  // texts, too
  ProtoMessage& add_message(int field, const ProtoMessage& message) {
    return add_bytes(field, message.bytes());
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void append_varint(uint64_t value);
  void append_tag(int field, int wire_type);
  std::string bytes_;
};

// The lowest byte first, as all these formats store numbers.
std::string little_endian(uint64_t value, int bytes);

// CRC-32 by the reversed polynomial: that of zip and PNG, and Castagnoli's (CRC-32C).
enum class Crc : uint32_t { ieee = 0xEDB88320, castagnoli = 0x82F63B78 };
uint32_t crc32(Crc polynomial, std::string_view bytes);

}  // namespace trireme::report
