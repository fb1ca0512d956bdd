// Operations of Python's str and float, for chat templates.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::text::python {

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swapcase(std::string_view text);
// Jinja's filter `title`: the first letter after blanks, dashes and opening brackets.
std::string title_words(std::string_view text);

bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_upper(char32_t c);  // or title case
bool is_lower(char32_t c);
bool is_printable(char32_t c);
// True for characters that `\w` of Python's `re` matches.
bool is_word(char32_t c);

// repr() of a text.
std::string repr(std::string_view text);
// repr() of a float: shortest digits that read back.
std::string float_text(double value);
// int(text, base) and float(text); nullopt where Python raises ValueError or the integer is beyond
// 64 bits.
std::optional<int64_t> read_integer(std::string_view text, int base = 10);
std::optional<double> read_float(std::string_view text);
// round(value, digits): of the exact binary value, half to even.
double round(double value, int64_t digits);

// html.escape as MarkupSafe writes it.
std::string html_escaped(std::string_view text);
// urllib.parse.quote; with `plus` blanks become + and slashes are quoted.
std::string url_quoted(std::string_view text, bool plus);

}  // namespace trireme::text::python
