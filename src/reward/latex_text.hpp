// Steps on LaTeX texts that several graders of answers take.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::reward {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string lower(std::string_view text);  // ASCII letters
void replace_all(std::string& text, std::string_view part, std::string_view by);
// The pieces between the separators: one more than there are separators.
std::vector<std::string_view> split(std::string_view text, std::string_view separator);
// The bytes of the first character (UTF-8); of a broken one its first byte.
std::string_view first_character(std::string_view text);
// "3/4", two whole numbers as Python writes them, as \frac{3}{4}; other texts as they are.
std::string with_frac_for_slash(const std::string& text);

}  // namespace trireme::reward
