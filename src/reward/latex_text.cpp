#include "reward/latex_text.hpp"

#include <algorithm>

#include "trireme/base/text.hpp"

namespace trireme::reward {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

void replace_all(std::string& text, std::string_view part, std::string_view by) {
  std::string out;
  size_t begin = 0;
  for (size_t found; (found = text.find(part, begin)) != std::string::npos;
       begin = found + part.size()) {
    out.append(text, begin, found - begin).append(by);
  }
  if (begin > 0) text = out.append(text, begin);
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t found; (found = text.find(separator, begin)) != std::string_view::npos;
       begin = found + separator.size()) {
    parts.push_back(text.substr(begin, found - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string_view first_character(std::string_view text) {
  size_t size = std::min<size_t>(1, text.size());
  while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) ++size;
  return text.substr(0, size);
}

namespace {

bool is_python_integer(std::string_view text) {
  if (text == "0") return true;
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.front() != '0' && std::ranges::all_of(text, is_digit);
}

}  // namespace

std::string with_frac_for_slash(const std::string& text) {
  const auto parts = split(text, "/");
  if (parts.size() != 2 || !is_python_integer(parts[0]) || !is_python_integer(parts[1]))
    return text;
  return base::text("\\frac{", parts[0], "}{", parts[1], "}");
}

}  // namespace trireme::reward
