// UTF-8 by the Unicode standard's table 3-7, and character classes that PCRE2 and C do not give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::text {

enum class Utf8 { valid, invalid, incomplete };

// What stands at the start of a text: a character, or a maximal invalid part of `length` bytes.
// `incomplete` is an invalid part that reaches the end of the text and that more bytes could
// complete.
struct Utf8Step {
  Utf8 kind = Utf8::valid;
  char32_t character = 0;
  size_t length = 0;
};
Utf8Step utf8_step(std::string_view text);  // text not empty

void append_utf8(std::string& out, char32_t character);
// Position of the first byte that is not UTF-8; npos when all is valid.
size_t first_invalid_utf8(std::string_view text);
// Each maximal invalid part becomes U+FFFD.
std::string utf8_lossy(std::string_view text);

// The Unicode property White_Space: what `\s` means to Oniguruma and to Rust.
bool is_white_space(char32_t character);
// What Python's str.strip() removes: White_Space and the separators U+001C..U+001F.
bool is_python_space(char32_t character);
// Bytes of leading and trailing characters for which `is_space` holds.
size_t leading_space(std::string_view text, bool (*is_space)(char32_t));
size_t trailing_space(std::string_view text, bool (*is_space)(char32_t));

}  // namespace trireme::text
