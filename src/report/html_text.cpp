#include "report/html_text.hpp"

#include <array>
#include <cmath>
#include <cstdio>

#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::report {
namespace {

std::string printed(const char* format, double value) {
  std::array<char, 48> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

// Characters that turn the order of what follows around.
bool turns_text(char32_t character) {
  return (character >= 0x202A && character <= 0x202E) ||
         (character >= 0x2066 && character <= 0x2069);
}

void append_visible(std::string& out, char32_t character) {
  if (turns_text(character)) {
    std::array<char, 16> name{};
    std::snprintf(name.data(), name.size(), "<U+%04X>", static_cast<unsigned>(character));
    out += name.data();
    return;
  }
  const bool line = character == U'\n' || character == U'\t';
  const bool control = character < 0x20 && !line;
  const bool forbidden =
      (character >= 0x80 && character < 0xA0) || character == 0xFFFE || character == 0xFFFF;
  text::append_utf8(out, control             ? char32_t{0x2400} + character
                         : character == 0x7F ? U'\u2421'
                         : forbidden         ? U'\uFFFD'
                                             : character);
}

}  // namespace

std::string visible(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const text::Utf8Step step = text::utf8_step(text);
    append_visible(out, step.kind == text::Utf8::valid ? step.character : U'\uFFFD');
    text.remove_prefix(step.length);
  }
  return out;
}

std::string html(std::string_view text) {
  std::string out;
  for (const char c : visible(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string link_target(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '/' || c == '.' || c == '-' || c == '_' || c == '~';
    std::array<char, 8> coded{};
    std::snprintf(coded.data(), coded.size(), "%%%02X", static_cast<unsigned char>(c));
    out += plain ? std::string(1, c) : std::string(coded.data());
  }
  return out;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "–" : value > 0 ? "∞" : "−∞";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 1e9) return printed("%.3g", value / 1e9) + "G";
  if (size >= 1e6) return printed("%.3g", value / 1e6) + "M";
  if (size >= 1e4) return printed("%.3g", value / 1e3) + "k";
  if (size < 1e-3) return printed("%.1e", value);
  if (size >= 100 || value == std::round(value)) return printed("%.0f", value);
  if (size >= 10) return printed("%.1f", value);
  return printed(size >= 1 ? "%.2f" : "%.3f", value);
}

std::string with_unit(double value, Unit unit) {
  switch (unit) {
    case Unit::share: return printed(std::abs(value) < 0.1 ? "%.1f" : "%.0f", 100 * value) + " %";
    case Unit::seconds: return base::human_seconds(value);
    case Unit::bytes: return base::human_bytes(value);
    case Unit::tokens: return short_number(value) + " tokens";
    case Unit::number: break;
  }
  return short_number(value);
}

}  // namespace trireme::report
