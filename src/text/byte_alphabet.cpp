#include "text/byte_alphabet.hpp"

#include <array>

#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

constexpr bool prints_as_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<int16_t, 0x144> bytes{};  // the alphabet ends at U+0143
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = prints_as_itself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.characters[static_cast<size_t>(byte)] = character;
    alphabet.bytes[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet alphabet = make_alphabet();

}  // namespace

char32_t byte_to_char(uint8_t byte) { return alphabet.characters[byte]; }

int char_to_byte(char32_t character) {
  return character < alphabet.bytes.size() ? alphabet.bytes[character] : -1;
}

bool token_to_bytes(std::string_view token, std::string& bytes) {
  bytes.clear();
  while (!token.empty()) {
    const Utf8Step step = utf8_step(token);
    const int byte = step.kind == Utf8::valid ? char_to_byte(step.character) : -1;
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
    token.remove_prefix(step.length);
  }
  return true;
}

std::string token_to_bytes(std::string_view token) {
  std::string bytes;
  return token_to_bytes(token, bytes) ? bytes : std::string(token);
}

}  // namespace trireme::text
