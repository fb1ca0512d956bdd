#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

struct Lead {
  size_t length;      // of the character; 0 = no lead byte
  uint8_t low, high;  // range of the second byte
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // nothing beyond U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 1) return {Utf8::valid, byte(0), 1};
  if (lead.length == 0) return {Utf8::invalid, 0, 1};
  char32_t character = byte(0) & (0x7Fu >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8::incomplete, 0, i};
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8::invalid, 0, i};
    character = character << 6 | (byte(i) & 0x3Fu);
  }
  return {Utf8::valid, character, lead.length};
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t first_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.kind != Utf8::valid) return i;
    i += step.length;
  }
  return std::string_view::npos;
}

std::string utf8_lossy(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.kind == Utf8::valid) {
      out += text.substr(0, step.length);
    } else {
      append_utf8(out, 0xFFFD);
    }
    text.remove_prefix(step.length);
  }
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

size_t leading_space(std::string_view text, bool (*is_space)(char32_t)) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = utf8_step(text.substr(length));
    if (step.kind != Utf8::valid || !is_space(step.character)) break;
    length += step.length;
  }
  return length;
}

size_t trailing_space(std::string_view text, bool (*is_space)(char32_t)) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && end - start < 4 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80)
      --start;
    const Utf8Step step = utf8_step(text.substr(start, end - start));
    if (step.kind != Utf8::valid || step.length != end - start || !is_space(step.character)) break;
    end = start;
  }
  return text.size() - end;
}

}  // namespace trireme::text
