// Text from parts, for messages: text("row ", 3, " of '", name, "'"). Here instead of fmt, because
// LibTorch's wheel ships another fmt than the system's and the two must not meet in one translation
// unit.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace trireme::base {

// One part of a text. text() only lists them: a stream per call would be most of the code of a file
// with messages.
struct TextPart {
  enum class Kind : uint8_t { characters, character, natural, integer, real };
  Kind kind = Kind::characters;
  std::string_view characters;  // lives as long as the argument of text()
  union {
    char character;
    uint64_t natural = 0;
    int64_t integer;
    double real;
  };
};

template <class T>
TextPart text_part(const T& value) {
  TextPart part;
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    part.characters = value;
  } else if constexpr (std::same_as<T, char> || std::same_as<T, signed char> ||
                       std::same_as<T, unsigned char>) {
    part.kind = TextPart::Kind::character;
    part.character = static_cast<char>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    part.kind = TextPart::Kind::real;
    part.real = static_cast<double>(value);
  } else if constexpr (std::is_unsigned_v<T>) {
    part.kind = TextPart::Kind::natural;
    part.natural = value;
  } else {
    static_assert(std::is_convertible_v<T, int64_t>, "text() takes texts, characters and numbers");
    part.kind = TextPart::Kind::integer;
    part.integer = value;
  }
  return part;
}

std::string concatenated(std::span<const TextPart> parts);

// Concatenates texts, characters and numbers; numbers as operator<< prints them: six digits of a
// double, 0 or 1 for a bool.
template <class... Parts>
std::string text(const Parts&... parts) {
  const TextPart list[] = {text_part(parts)...};
  return concatenated(list);
}

// "a, b, c"
std::string join(std::span<const std::string> parts, std::string_view separator = ", ");

// 1536 -> "1.5 KiB"; 0 -> "0 B"
std::string human_bytes(double bytes);

// 75.2 -> "1 min 15 s"; 0.0031 -> "3.1 ms"
std::string human_seconds(double seconds);

// Fixed number of decimals: fixed(1.23456, 2) -> "1.23"
std::string fixed(double value, int decimals);

// The candidate with the smallest edit distance to `word`, or "" when none is within a third of its
// length.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace trireme::base
