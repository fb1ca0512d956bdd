#include "reward/math_verl.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "reward/latex_text.hpp"

namespace trireme::reward {
namespace {

// Where Python's normalisation raises an exception: the texts are compared as they are.
struct NotNormalised {};

void remove_all(std::string& text, std::string_view part) { replace_all(text, part, ""); }

// Counted in characters, as Python does.
size_t characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string without_units(const std::string& text) {
  const auto parts = split(text, "\\text{ ");
  if (parts.size() == 1) return text;
  if (parts.size() != 2) throw NotNormalised{};
  return std::string(parts[0]);
}

std::string with_braces_after_sqrt(const std::string& text) {
  const auto parts = split(text, "\\sqrt");
  std::string out(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].empty()) throw NotNormalised{};
    const auto first = first_character(parts[i]);
    out += "\\sqrt";
    if (first == "{") {
      out += parts[i];
    } else {
      out.append("{").append(first).append("}").append(parts[i].substr(first.size()));
    }
  }
  return out;
}

// \frac12 and \frac1{72} with braces; \frac{72}1 stays as it is.
std::string with_braces_after_frac(const std::string& text) {
  const auto parts = split(text, "\\frac");
  std::string out(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].empty()) throw NotNormalised{};
    out += "\\frac";
    const auto top = first_character(parts[i]);
    if (top == "{") {
      out += parts[i];
      continue;
    }
    const std::string_view rest = parts[i].substr(top.size());
    if (rest.empty()) return text;
    const auto bottom = first_character(rest);
    out.append("{").append(top).append("}");
    if (bottom == "{") {
      out += rest;
    } else {
      out.append("{").append(bottom).append("}").append(rest.substr(bottom.size()));
    }
  }
  return out;
}

// In the order of verl's strip_string(), each step with its side effects.
std::string normalised(std::string text) {
  remove_all(text, "\n");
  remove_all(text, "\\!");
  replace_all(text, "\\\\", "\\");
  replace_all(text, "tfrac", "frac");
  replace_all(text, "dfrac", "frac");
  for (const char* part : {"\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"})
    remove_all(text, part);
  text = without_units(text);
  remove_all(text, "\\\\%");
  remove_all(text, "\\%");
  replace_all(text, " .", " 0.");
  replace_all(text, "{.", "{0.");
  if (text.empty()) return text;
  if (text.front() == '.') text.insert(0, "0");
  const auto sides = split(text, "=");
  if (sides.size() == 2 && characters(sides[0]) <= 2) text = std::string(sides[1]);
  text = with_braces_after_sqrt(text);
  remove_all(text, " ");
  text = with_braces_after_frac(text);
  if (text == "0.5") text = "\\frac{1}{2}";
  return with_frac_for_slash(text);
}

bool equivalent(const std::string& answer, const std::string& label) {
  try {
    return normalised(answer) == normalised(label);
  } catch (const NotNormalised&) { return answer == label; }
}

// verl's last_boxed_only_string() and remove_boxed() in one.
std::optional<std::string> last_boxed(std::string_view text) {
  constexpr std::string_view spaced = "\\boxed ";
  if (const size_t at = text.rfind(spaced); at != std::string_view::npos) {
    const std::string_view rest = text.substr(at + spaced.size());
    return std::string(rest.substr(0, rest.find('$')));
  }
  const size_t begin = text.rfind("\\boxed");
  if (begin == std::string_view::npos) return std::nullopt;  // of an \fbox it removes nothing
  int64_t depth = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] != '}' || --depth != 0) continue;
    constexpr std::string_view open = "\\boxed{";
    if (!text.substr(begin).starts_with(open)) return std::nullopt;
    return std::string(text.substr(begin + open.size(), i - begin - open.size()));
  }
  return std::nullopt;
}

constexpr std::string_view gsm8k_mark = "#### ";

// The number after the last mark: digits, full stops and commas, which are taken out.
std::optional<std::string> after_mark(std::string_view text) {
  for (size_t at = text.rfind(gsm8k_mark); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : text.rfind(gsm8k_mark, at - 1)) {
    std::string_view rest = text.substr(at + gsm8k_mark.size());
    size_t end = rest.starts_with('-') ? 1 : 0;
    const size_t digits = end;
    while (end < rest.size() && (is_digit(rest[end]) || rest[end] == '.' || rest[end] == ','))
      ++end;
    if (end == digits) continue;
    std::string found(rest.substr(0, end));
    std::erase(found, ',');
    return found;
  }
  return std::nullopt;
}

std::string_view last_characters(std::string_view text, size_t count) {
  size_t begin = text.size();
  while (begin > 0 && count > 0) {
    if ((static_cast<unsigned char>(text[--begin]) & 0xC0) != 0x80) --count;
  }
  return text.substr(begin);
}

}  // namespace

bool equal_by_verl(std::string_view response, std::string_view label) {
  const auto marked_label = after_mark(label);
  const bool boxed = response.find("\\boxed") != std::string_view::npos ||
                     response.find("\\fbox") != std::string_view::npos;
  if (marked_label || (!boxed && response.find(gsm8k_mark) != std::string_view::npos)) {
    const auto answer = after_mark(last_characters(response, 300));
    return answer && *answer == marked_label.value_or(std::string(label));
  }
  const auto answer = last_boxed(response);
  return answer && equivalent(*answer, last_boxed(label).value_or(std::string(label)));
}

}  // namespace trireme::reward
