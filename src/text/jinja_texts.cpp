#include "text/jinja_texts.hpp"

#include <algorithm>

#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

std::string stripped(const Arguments& arguments, std::string_view text, Side side) {
  arguments.place.charge_text(text.size());
  if (arguments.at(0) == nullptr || arguments.value(0).is_none()) {
    if (side != Side::right) text.remove_prefix(leading_space(text, is_python_space));
    if (side != Side::left) text.remove_suffix(trailing_space(text, is_python_space));
    return std::string(text);
  }
  arguments.place.charge_text(arguments.text(0).size());
  std::u32string drop = code_points(arguments.text(0));
  std::ranges::sort(drop);
  const auto dropped = [&drop](char32_t c) { return std::ranges::binary_search(drop, c); };
  const std::u32string all = code_points(text);
  std::u32string_view rest = all;
  while (side != Side::right && !rest.empty() && dropped(rest.front())) rest.remove_prefix(1);
  while (side != Side::left && !rest.empty() && dropped(rest.back())) rest.remove_suffix(1);
  return from_code_points(rest);
}

namespace {

// An empty text is between all characters.
std::string put_between(const Arguments& arguments, const std::string& text, const std::string& to,
                        int64_t count) {
  if (count == 0) return text;
  arguments.place.charge_text(text.size() + (text.size() + 1) * to.size());
  std::string out;
  for (std::string_view rest = text;;) {
    out += to;
    if (rest.empty()) return out;
    const size_t length = utf8_step(rest).length;
    out += rest.substr(0, length);
    rest.remove_prefix(length);
    if (--count == 0) return out += rest;
  }
}

}  // namespace

std::string replaced(const Arguments& arguments, const std::string& text, const std::string& from,
                     const std::string& to, int64_t count) {
  if (from.empty()) return put_between(arguments, text, to, count);
  arguments.place.charge_text(text.size());
  int64_t hits = 0;
  for (size_t at = find_text(text, from); at != std::string::npos && hits != count;
       at = find_text(text, from, at + from.size()))
    ++hits;
  const auto found = static_cast<size_t>(hits);
  arguments.place.charge_text(text.size() - found * from.size() +
                              found * to.size());  // of texts <= 64 MiB: no overflow
  std::string out;
  size_t done = 0;
  for (; hits > 0; --hits) {
    const size_t at = find_text(text, from, done);
    out.append(text, done, at - done);
    out += to;
    done = at + from.size();
  }
  return out.append(text, done);
}

List words_of(const Arguments& arguments, std::string_view text, int64_t most) {
  List words;
  for (;;) {
    text.remove_prefix(leading_space(text, is_python_space));
    if (text.empty()) return words;
    arguments.place.charge();
    if (most-- == 0) {
      words.emplace_back(std::string(text));
      return words;
    }
    size_t end = 0;
    while (end < text.size() && !is_python_space(utf8_step(text.substr(end)).character))
      end += utf8_step(text.substr(end)).length;
    words.emplace_back(std::string(text.substr(0, end)));
    text.remove_prefix(end);
  }
}

namespace {

// The bytes of the line break at the start of a text; 0 without one.
size_t line_break(std::string_view text) {
  if (text.empty()) return 0;
  if (text.starts_with("\r\n")) return 2;
  const Utf8Step step = utf8_step(text);
  const char32_t c = step.character;
  const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
  return breaks ? step.length : 0;
}

}  // namespace

List lines_of(const Arguments& arguments, std::string_view text, bool keep) {
  arguments.place.charge_text(text.size());
  List lines;
  while (!text.empty()) {
    size_t end = 0;
    while (end < text.size() && line_break(text.substr(end)) == 0)
      end += utf8_step(text.substr(end)).length;
    const size_t next = end + line_break(text.substr(end));
    arguments.place.charge();
    lines.emplace_back(std::string(text.substr(0, keep ? next : end)));
    text.remove_prefix(next);
  }
  return lines;
}

std::string padded(const Arguments& arguments, const std::string& text, int64_t width,
                   const std::string& fill, Side filled) {
  const auto length = static_cast<int64_t>(code_points(text).size());
  if (code_points(fill).size() != 1) arguments.fail("the filling must be one character");
  const int64_t missing = std::max<int64_t>(width - length, 0);
  arguments.place.charge_text(text.size());
  if (missing > static_cast<int64_t>(longest_text)) arguments.place.check_length(longest_text + 1);
  arguments.place.charge_text(static_cast<uint64_t>(missing) * fill.size());
  // Python's center puts the odd one on the left where the width is odd.
  const int64_t left = filled == Side::left    ? missing
                       : filled == Side::right ? 0
                                               : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

}  // namespace trireme::text::jinja
