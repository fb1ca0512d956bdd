#include "text/python_text.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "text/python_case_table.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::python {

namespace {

int category_of(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

const SpecialCase* special_case(char32_t c) {
  if (c < 0xDF) return nullptr;
  const auto* const found = std::ranges::lower_bound(special_cases, c, {}, &SpecialCase::character);
  return found != std::end(special_cases) && found->character == c ? found : nullptr;
}

void append_all(std::string& out, std::u32string_view characters) {
  for (const char32_t c : characters) append_utf8(out, c);
}

void append_upper(std::string& out, char32_t c) {
  if (const SpecialCase* special = special_case(c)) return append_all(out, special->upper);
  append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (const SpecialCase* special = special_case(c)) return append_all(out, special->title);
  append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

// Letters with a case, and what counts as one of them but for its own (Other_Uppercase and so on
// are letters here that utf8proc calls marks or symbols: circled and Roman ones).
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c); }

// Marks and signs between which and the next letter a final sigma is looked for.
bool is_case_ignorable(char32_t c) {
  if (std::u32string_view(U"'.:^`\u00A8\u00AD\u00AF\u00B4\u00B7\u00B8\u2018\u2019\u2024\u2027")
          .find(c) != std::u32string_view::npos)
    return true;
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: return false;
  }
}

std::u32string characters_of(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    out += step.kind == Utf8::valid ? step.character : char32_t{0xFFFD};
    text.remove_prefix(step.length);
  }
  return out;
}

// Sigma at the end of a word has a form of its own.
bool is_final_sigma(const std::u32string& text, size_t at) {
  size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string& out, const std::u32string& text, size_t at) {
  const char32_t c = text[at];
  if (c == 0x130) return append_all(out, U"i\u0307");
  if (c == 0x3A3) return append_utf8(out, is_final_sigma(text, at) ? 0x3C2 : 0x3C3);
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

// `starts(before, first)`: whether a character is written large.
template <class Starts>
std::string with_large(std::string_view text, const Starts& starts) {
  const std::u32string characters = characters_of(text);
  std::string out;
  for (size_t i = 0; i < characters.size(); ++i) {
    if (starts(i == 0 ? U'\0' : characters[i - 1], i == 0)) {
      append_title(out, characters[i]);
    } else {
      append_lower(out, characters, i);
    }
  }
  return out;
}

}  // namespace

std::string upper(std::string_view text) {
  std::string out;
  for (const char32_t c : characters_of(text)) append_upper(out, c);
  return out;
}

std::string lower(std::string_view text) {
  const std::u32string characters = characters_of(text);
  std::string out;
  for (size_t i = 0; i < characters.size(); ++i) append_lower(out, characters, i);
  return out;
}

std::string swapcase(std::string_view text) {
  const std::u32string characters = characters_of(text);
  std::string out;
  for (size_t i = 0; i < characters.size(); ++i) {
    if (is_upper(characters[i])) {
      append_lower(out, characters, i);
    } else if (is_lower(characters[i])) {
      append_upper(out, characters[i]);
    } else {
      append_utf8(out, characters[i]);
    }
  }
  return out;
}

std::string title(std::string_view text) {
  return with_large(text, [](char32_t before, bool first) { return first || !is_cased(before); });
}

std::string capitalize(std::string_view text) {
  return with_large(text, [](char32_t, bool first) { return first; });
}

std::string title_words(std::string_view text) {
  const std::u32string characters = characters_of(text);
  std::string out;
  for (size_t i = 0; i < characters.size();) {
    const auto breaks = [](char32_t c) {
      return is_python_space(c) ||
             std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
    };
    size_t end = i;
    while (end < characters.size() && breaks(characters[end]) == breaks(characters[i])) ++end;
    const std::u32string word = characters.substr(i, end - i);
    append_upper(out, word[0]);
    const std::u32string rest = word.substr(1);
    for (size_t k = 0; k < rest.size(); ++k) append_lower(out, rest, k);
    i = end;
  }
  return out;
}

bool is_alpha(char32_t c) {
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return true;
    default: return false;
  }
}
bool is_decimal(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468);
}
bool is_numeric(char32_t c) {
  const int category = category_of(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}
bool is_upper(char32_t c) {
  const int category = category_of(c);
  if (category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT) return true;
  return (c >= 0x2160 && c <= 0x216F) || (c >= 0x24B6 && c <= 0x24CF);
}
bool is_lower(char32_t c) {
  if (category_of(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA) return true;
  return (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9);
}
bool is_printable(char32_t c) {
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
  }
}
bool is_word(char32_t c) { return is_alpha(c) || is_numeric(c) || c == '_'; }

std::string repr(std::string_view text) {
  const bool doubled =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = doubled ? '"' : '\'';
  std::string out(1, quote);
  for (size_t length; !text.empty(); text.remove_prefix(length)) {
    const Utf8Step step = utf8_step(text);
    length = step.length;
    const char32_t c = step.character;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.append("\\").append(text.substr(0, 1));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      out += text.substr(0, length);
    } else {
      std::array<char, 16> buffer{};
      const char* const format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer.data(), buffer.size(), format, static_cast<unsigned>(c));
      out += buffer.data();
    }
  }
  return out + quote;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer{};
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format);
  std::string out(buffer.data(), end);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

namespace {

// Without blanks around it and the underscores between digits; nullopt where those are elsewhere.
std::optional<std::string> plain_number(std::string_view text) {
  text.remove_prefix(leading_space(text, is_python_space));
  text.remove_suffix(trailing_space(text, is_python_space));
  const auto alphanumeric = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !alphanumeric(i - 1) || !alphanumeric(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace

std::optional<int64_t> read_integer(std::string_view text, int base) {
  const auto plain = plain_number(text);
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const auto prefix = [&](char small, int of) {
    const bool has = digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == small;
    if (has && (base == of || base == 0)) {
      digits.remove_prefix(2);
      base = of;
    }
  };
  prefix('x', 16);
  prefix('o', 8);
  prefix('b', 2);
  const std::string number = (negative ? "-" : "") + std::string(digits);
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  int64_t value = 0;
  const char* const end = number.data() + number.size();
  const auto read = std::from_chars(number.data(), end, value, base == 0 ? 10 : base);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

std::optional<double> read_float(std::string_view text) {
  const auto plain = plain_number(text);
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view digits = *plain;
  if (digits.starts_with('+') || digits.starts_with('-')) digits.remove_prefix(1);
  const bool number =
      !digits.empty() && ((digits[0] >= '0' && digits[0] <= '9') || digits[0] == '.');
  std::string word(digits);
  for (char& c : word) c = static_cast<char>(c | 0x20);
  if (!number && word != "inf" && word != "infinity" && word != "nan") return std::nullopt;
  if (number && digits.find_first_of("xXpP") != std::string_view::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain->c_str(), &end);
  if (end != plain->c_str() + plain->size()) return std::nullopt;
  return value;
}

double round(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -300) return 0.0;
  if (digits >= 0) {
    std::array<char, 700> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%.*f", static_cast<int>(digits), value);
    return std::strtod(buffer.data(), nullptr);
  }
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / unit) * unit;
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string url_quoted(std::string_view text, bool plus) {
  std::string out;
  for (const char c : text) {
    const bool kept = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      std::string_view("_.-~").find(c) != std::string_view::npos ||
                      (c == '/' && !plus);
    if (kept) {
      out += c;
    } else if (c == ' ' && plus) {
      out += '+';
    } else {
      std::array<char, 4> buffer{};
      std::snprintf(buffer.data(), buffer.size(), "%%%02X", static_cast<unsigned char>(c));
      out += buffer.data();
    }
  }
  return out;
}

}  // namespace trireme::text::python
