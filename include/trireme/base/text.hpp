// Text from parts, for messages: text("row ", 3, " of '", name, "'"). Here instead of fmt, because LibTorch's wheel
// ships another fmt than the system's and the two must not meet in one translation unit.
#pragma once

#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::base {

// Concatenates the parts as operator<< prints them.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// "a, b, c"
std::string join(std::span<const std::string> parts, std::string_view separator = ", ");

// 1536 -> "1.5 KiB"; 0 -> "0 B"
std::string human_bytes(double bytes);

// 75.2 -> "1 min 15 s"; 0.0031 -> "3.1 ms"
std::string human_seconds(double seconds);

// Fixed number of decimals: fixed(1.23456, 2) -> "1.23"
std::string fixed(double value, int decimals);

// The candidate with the smallest edit distance to `word`, or "" when none is within a third of its length.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace trireme::base
