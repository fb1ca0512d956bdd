// The byte-level alphabet of GPT-2: one printable character for each of the 256 bytes. The bytes
// that print as themselves in Latin-1 stay, the other 68 become U+0100, U+0101, ... in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::text {

char32_t byte_to_char(uint8_t byte);
// -1 when the character is not of the alphabet
int char_to_byte(char32_t character);
// The bytes that a token of the alphabet stands for; a token with any other character stands for
// its own UTF-8, as in HF's ByteLevel decoder.
std::string token_to_bytes(std::string_view token);
// Same, but false when the token has other characters.
bool token_to_bytes(std::string_view token, std::string& bytes);

}  // namespace trireme::text
