// The methods of Python's texts.
#include <algorithm>

#include "text/jinja_call.hpp"
#include "text/jinja_texts.hpp"
#include "text/python_text.hpp"
#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace method {
namespace {

List last_words_of(const Arguments& arguments, std::string_view text, int64_t most) {
  List words;
  for (;;) {
    text.remove_suffix(trailing_space(text, is_python_space));
    if (text.empty()) break;
    arguments.place.charge();
    if (most-- == 0) {
      words.emplace_back(std::string(text));
      break;
    }
    const std::u32string characters = code_points(text);
    size_t start = characters.size();
    while (start > 0 && !is_python_space(characters[start - 1])) --start;
    arguments.place.charge_text(text.size());
    const std::string word = from_code_points(std::u32string_view(characters).substr(start));
    words.emplace_back(word);
    text.remove_suffix(word.size());
  }
  std::ranges::reverse(words);
  return words;
}

Value split(const Arguments& arguments, const Value& self) {
  const std::string& text = self.string();
  arguments.place.charge_text(text.size());
  int64_t left = arguments.integer(1, -1);
  if (arguments.at(0) == nullptr || arguments.value(0).is_none())
    return Value::list(words_of(arguments, text, left));
  const std::string& separator = arguments.text(0);
  if (separator.empty()) arguments.fail("an empty separator");
  List parts;
  size_t done = 0;
  for (size_t at = find_text(text, separator); at != std::string::npos && left != 0;
       at = find_text(text, separator, done), --left) {
    arguments.place.charge();
    parts.emplace_back(text.substr(done, at - done));
    done = at + separator.size();
  }
  parts.emplace_back(text.substr(done));
  return Value::list(std::move(parts));
}

Value split_from_right(const Arguments& arguments, const Value& self) {
  const std::string& text = self.string();
  arguments.place.charge_text(text.size());
  int64_t left = arguments.integer(1, -1);
  if (arguments.at(0) == nullptr || arguments.value(0).is_none())
    return Value::list(last_words_of(arguments, text, left));
  const std::string& separator = arguments.text(0);
  if (separator.empty()) arguments.fail("an empty separator");
  List parts;
  size_t end = text.size();
  while (left-- != 0) {
    arguments.place.charge();
    const size_t at =
        end < separator.size() ? std::string::npos : text.rfind(separator, end - separator.size());
    if (at == std::string::npos) break;
    parts.emplace_back(text.substr(at + separator.size(), end - at - separator.size()));
    end = at;
  }
  parts.emplace_back(text.substr(0, end));
  std::ranges::reverse(parts);
  return Value::list(std::move(parts));
}

template <bool from_right>
Value partition(const Arguments& arguments, const Value& self) {
  const std::string& text = self.string();
  const std::string& separator = arguments.text(0);
  arguments.place.charge_text(text.size());
  if (separator.empty()) arguments.fail("an empty separator");
  const size_t at = from_right ? text.rfind(separator) : find_text(text, separator);
  if (at == std::string::npos) {
    return from_right ? Value::tuple({"", "", self}) : Value::tuple({self, "", ""});
  }
  return Value::tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
}

// The part of the text from argument 1 to argument 2, in characters; `start` is its first.
std::string part_of(const Arguments& arguments, const std::string& text, int64_t& start) {
  start = 0;
  if (arguments.at(1) == nullptr && arguments.at(2) == nullptr) return text;
  const std::u32string all = code_points(text);
  const auto size = static_cast<int64_t>(all.size());
  const auto bound = [&](size_t index, int64_t otherwise) {
    const int64_t value = arguments.integer(index, otherwise);
    return std::clamp<int64_t>(value < 0 ? value + size : value, 0, size);
  };
  start = bound(1, 0);
  const int64_t end = std::max(bound(2, size), start);
  return from_code_points(all.substr(static_cast<size_t>(start), static_cast<size_t>(end - start)));
}

template <bool from_right, bool must>
Value find(const Arguments& arguments, const Value& self) {
  int64_t start = 0;
  const std::string part = part_of(arguments, self.string(), start);
  arguments.place.charge_text(self.string().size());
  const size_t found =
      from_right ? part.rfind(arguments.text(0)) : find_text(part, arguments.text(0));
  if (found == std::string::npos) {
    if (must) arguments.fail("the text is not there");
    return int64_t{-1};
  }
  return start + static_cast<int64_t>(code_points(std::string_view(part).substr(0, found)).size());
}

Value count(const Arguments& arguments, const Value& self) {
  int64_t start = 0;
  const std::string text = part_of(arguments, self.string(), start);
  const std::string& part = arguments.text(0);
  arguments.place.charge_text(text.size());
  if (part.empty()) return static_cast<int64_t>(code_points(text).size()) + 1;
  int64_t hits = 0;
  for (size_t at = find_text(text, part); at != std::string::npos;
       at = find_text(text, part, at + part.size()))
    ++hits;
  return hits;
}

template <bool at_end>
Value begins(const Arguments& arguments, const Value& self) {
  int64_t start = 0;
  const std::string text = part_of(arguments, self.string(), start);
  const auto fits = [&](const Value& part) {
    if (!part.is_string()) arguments.fail("needs a text, found " + part.type_name());
    return at_end ? text.ends_with(part.string()) : text.starts_with(part.string());
  };
  const Value& parts = arguments.value(0);
  return parts.is_tuple() ? std::ranges::any_of(parts.items(), fits) : fits(parts);
}

Value join(const Arguments& arguments, const Value& self) {
  const std::string& separator = self.string();
  std::string out;
  bool first = true;
  for (const Value& item : iterate(arguments.place, arguments.value(0))) {
    if (!item.is_string()) arguments.fail("needs texts, found " + item.type_name());
    const std::string& text = item.string();
    arguments.place.check_length(out.size() + separator.size() + text.size());
    arguments.place.charge_text(separator.size() + text.size());
    if (!first) out += separator;
    first = false;
    out += text;
  }
  return out;
}

template <Side side>
Value strip(const Arguments& arguments, const Value& self) {
  return stripped(arguments, self.string(), side);
}
Value replace(const Arguments& arguments, const Value& self) {
  return replaced(arguments, self.string(), arguments.text(0), arguments.text(1),
                  arguments.integer(2, -1));
}
template <Side side>
Value pad(const Arguments& arguments, const Value& self) {
  return padded(arguments, self.string(), arguments.integer(0), arguments.text(1, " "), side);
}
Value zero_fill(const Arguments& arguments, const Value& self) {
  const std::string& text = self.string();
  const bool sign = text.starts_with('-') || text.starts_with('+');
  return text.substr(0, sign ? 1 : 0) + padded(arguments, text.substr(sign ? 1 : 0),
                                               arguments.integer(0) - (sign ? 1 : 0), "0",
                                               Side::left);
}
Value split_lines(const Arguments& arguments, const Value& self) {
  return Value::list(lines_of(arguments, self.string(), arguments.truth(0, false)));
}
template <bool at_end>
Value without(const Arguments& arguments, const Value& self) {
  const std::string& text = self.string();
  const std::string& part = arguments.text(0);
  if (at_end) return text.ends_with(part) ? text.substr(0, text.size() - part.size()) : text;
  return text.starts_with(part) ? text.substr(part.size()) : text;
}
Value expand_tabs(const Arguments& arguments, const Value& self) {
  const int64_t size = arguments.integer(0, 8);
  if (size > 1000) arguments.fail("tabs wider than 1000");
  std::string out;
  int64_t column = 0;
  for (const char32_t c : code_points(self.string())) {
    if (c == '\t') {
      const int64_t blanks = size > 0 ? size - column % size : 0;
      arguments.place.charge_text(static_cast<uint64_t>(blanks));
      out.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
    } else {
      append_utf8(out, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return out;
}
Value format(const Arguments& arguments, const Value& self) {
  return brace_format(arguments, self.string());
}

template <std::string (*change)(std::string_view)>
Value changed(const Arguments& arguments, const Value& self) {
  arguments.place.charge_text(self.string().size());
  return change(self.string());
}

template <bool (*holds)(char32_t)>
Value all_are(const Arguments& arguments, const Value& self) {
  arguments.place.charge_text(self.string().size());
  return !self.string().empty() && std::ranges::all_of(code_points(self.string()), holds);
}
// Of letters with a case all, and at least one.
template <bool (*holds)(char32_t), bool (*contradicts)(char32_t)>
Value case_is(const Arguments& arguments, const Value& self) {
  arguments.place.charge_text(self.string().size());
  const std::u32string text = code_points(self.string());
  return std::ranges::any_of(text, holds) && std::ranges::none_of(text, contradicts);
}
bool is_alphanumeric(char32_t c) { return python::is_alpha(c) || python::is_numeric(c); }
bool is_ascii(char32_t c) { return c < 0x80; }

Value is_ascii_text(const Arguments&, const Value& self) {
  return std::ranges::all_of(code_points(self.string()), is_ascii);
}
Value is_title(const Arguments& arguments, const Value& self) {
  arguments.place.charge_text(self.string().size());
  bool cased = false, inside = false;
  for (const char32_t c : code_points(self.string())) {
    const bool large = python::is_upper(c), small = python::is_lower(c);
    if ((large && inside) || (small && !inside)) return false;
    inside = large || small;
    cased = cased || inside;
  }
  return cased;
}
Value is_printable(const Arguments&, const Value& self) {
  return std::ranges::all_of(code_points(self.string()), python::is_printable);
}

}  // namespace
}  // namespace method

std::span<const Callee> text_methods() {
  using namespace method;
  static constexpr Callee methods[] = {
      {"strip", "chars", 0, strip<Side::both>},
      {"lstrip", "chars", 0, strip<Side::left>},
      {"rstrip", "chars", 0, strip<Side::right>},
      {"split", "sep maxsplit", 0, split},
      {"rsplit", "sep maxsplit", 0, split_from_right},
      {"splitlines", "keepends", 0, split_lines},
      {"partition", "sep", 1, partition<false>},
      {"rpartition", "sep", 1, partition<true>},
      {"replace", "old new count", 2, replace},
      {"startswith", "prefix start end", 1, begins<false>},
      {"endswith", "suffix start end", 1, begins<true>},
      {"removeprefix", "prefix", 1, without<false>},
      {"removesuffix", "suffix", 1, without<true>},
      {"find", "sub start end", 1, find<false, false>},
      {"rfind", "sub start end", 1, find<true, false>},
      {"index", "sub start end", 1, find<false, true>},
      {"rindex", "sub start end", 1, find<true, true>},
      {"count", "sub start end", 1, count},
      {"join", "iterable", 1, join},
      {"format", "*", 0, format},
      {"upper", "", 0, changed<python::upper>},
      {"lower", "", 0, changed<python::lower>},
      {"title", "", 0, changed<python::title>},
      {"capitalize", "", 0, changed<python::capitalize>},
      {"swapcase", "", 0, changed<python::swapcase>},
      {"center", "width fillchar", 1, pad<Side::both>},
      {"ljust", "width fillchar", 1, pad<Side::right>},
      {"rjust", "width fillchar", 1, pad<Side::left>},
      {"zfill", "width", 1, zero_fill},
      {"expandtabs", "tabsize", 0, expand_tabs},
      {"isalpha", "", 0, all_are<python::is_alpha>},
      {"isalnum", "", 0, all_are<is_alphanumeric>},
      {"isdecimal", "", 0, all_are<python::is_decimal>},
      {"isdigit", "", 0, all_are<python::is_digit>},
      {"isnumeric", "", 0, all_are<python::is_numeric>},
      {"isspace", "", 0, all_are<is_python_space>},
      {"isascii", "", 0, is_ascii_text},
      {"isprintable", "", 0, is_printable},
      {"isupper", "", 0, case_is<python::is_upper, python::is_lower>},
      {"islower", "", 0, case_is<python::is_lower, python::is_upper>},
      {"istitle", "", 0, is_title},
  };
  return methods;
}

}  // namespace trireme::text::jinja
