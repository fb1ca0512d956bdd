// Filters and methods beside the most common ones.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_eval.hpp"
#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace {

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char upper_of(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char lower_of(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// A letter for which `starts` holds becomes large, all others small.
template <class Starts>
std::string with_capitals(const Arguments& arguments, std::string text, const Starts& starts) {
  arguments.place.charge_text(text.size());
  char before = 0;
  bool first = true;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80)
      arguments.fail("letters outside ASCII are not known");
    const char own = c;
    c = starts(before, first) ? upper_of(c) : lower_of(c);
    before = own;
    first = false;
  }
  return text;
}

std::string capitalize(const Arguments& arguments, const std::string& text) {
  return with_capitals(arguments, text, [](char, bool first) { return first; });
}

// Python's str.title(): after everything that is no letter.
std::string title_method(const Arguments& arguments, const std::string& text) {
  return with_capitals(arguments, text, [](char before, bool) { return !is_ascii_letter(before); });
}

// Jinja's filter: after blanks, dashes and opening brackets.
std::string title_filter(const Arguments& arguments, const std::string& text) {
  return with_capitals(arguments, text, [](char before, bool first) {
    return first || std::string_view(" \t\n\r\f\v-({[<").find(before) != std::string_view::npos;
  });
}

List words_of(const Arguments& arguments, std::string_view text) {
  List words;
  for (;;) {
    text.remove_prefix(leading_space(text, is_python_space));
    if (text.empty()) return words;
    size_t end = 0;
    while (end < text.size() && !is_python_space(utf8_step(text.substr(end)).character))
      end += utf8_step(text.substr(end)).length;
    arguments.place.charge();
    words.emplace_back(std::string(text.substr(0, end)));
    text.remove_prefix(end);
  }
}

List lines_of(const Arguments& arguments, std::string_view text) {
  List lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\r"), text.size());
    arguments.place.charge();
    lines.emplace_back(std::string(text.substr(0, end)));
    text.remove_prefix(end);
    if (text.starts_with("\r\n")) text.remove_prefix(1);
    if (!text.empty()) text.remove_prefix(1);
  }
  return lines;
}

// The place of a part, in characters; -1 without one.
int64_t place_of(const Arguments& arguments, const std::string& text) {
  arguments.expect_count(1, 1);
  arguments.place.charge_text(text.size());
  const size_t found = find_text(text, arguments.text(0));
  if (found == std::string::npos) return -1;
  return static_cast<int64_t>(code_points(std::string_view(text).substr(0, found)).size());
}

int64_t count_of(const Arguments& arguments, const std::string& text) {
  arguments.expect_count(1, 1);
  const std::string& part = arguments.text(0);
  if (part.empty()) arguments.fail("an empty text cannot be counted");
  arguments.place.charge_text(text.size());
  int64_t count = 0;
  for (size_t at = find_text(text, part); at != std::string::npos;
       at = find_text(text, part, at + part.size()))
    ++count;
  return count;
}

std::string joined_by(const Arguments& arguments, const std::string& separator) {
  arguments.expect_count(1, 1);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(arguments.place, arguments.positional[0])) {
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

// The argument of that place or name; `otherwise` where it is missing.
Value argument(const Arguments& arguments, size_t index, const char* name, Value otherwise) {
  if (arguments.positional.size() > index) return arguments.positional[index];
  const auto found = arguments.keywords.find(name);
  return found != arguments.keywords.end() ? found->second : std::move(otherwise);
}

// "a.b": member b of member a.
Value member_of(const Arguments& arguments, Value value, std::string_view path) {
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    if (value.is_dict()) arguments.place.charge_search(value.dict().members.size());
    const Value* member = value.find(path.substr(0, dot));
    value = member != nullptr ? Value(*member) : Value(Undefined::of(path.substr(0, dot)));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return value;
}

// map(attribute="name", default=x), or map("filter", its arguments).
List mapped(const Arguments& arguments, const Value& value) {
  const bool by_attribute = arguments.positional.empty();
  Arguments inner{arguments.place, "", {}, {}};
  std::string attribute;
  if (by_attribute) {
    arguments.expect_keywords({"attribute", "default"});
    const Value name = argument(arguments, 0, "attribute", Value());
    if (!name.is_string()) arguments.fail("needs the name of a filter or attribute=...");
    attribute = name.string();
  } else {
    inner.callee = "filter " + arguments.text(0);
    inner.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    inner.keywords = arguments.keywords;
  }
  List out;
  for (const Value& item : iterate(arguments.place, value)) {
    arguments.place.charge();
    if (!by_attribute) {
      out.push_back(apply_filter(item, inner));
      continue;
    }
    Value member = member_of(arguments, item, attribute);
    if (member.is_undefined()) member = argument(arguments, 1, "default", std::move(member));
    out.push_back(std::move(member));
  }
  return out;
}

std::string indented(const Arguments& arguments, const std::string& text) {
  arguments.expect_count(0, 3);
  arguments.expect_keywords({"width", "first", "blank"});
  const Value width = argument(arguments, 0, "width", Value(int64_t{4}));
  const bool first = argument(arguments, 1, "first", Value(false)).truth();
  const bool blank = argument(arguments, 2, "blank", Value(false)).truth();
  if (!width.is_string() && !(width.is_int() && width.integer() >= 0 && width.integer() <= 1000))
    arguments.fail("width must be a text or 0 to 1000");
  const std::string indention =
      width.is_string() ? width.string() : std::string(static_cast<size_t>(width.integer()), ' ');
  const List lines = lines_of(arguments, text + "\n");
  std::string out = first ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i].string();
    arguments.place.charge_text(indention.size() + line.size());
    arguments.place.check_length(out.size() + indention.size() + line.size());
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !line.empty())) out += indention;
    out += line;
  }
  return out;
}

Value reversed(const Arguments& arguments, const Value& value) {
  arguments.expect_count(0, 0);
  if (value.is_string()) {
    arguments.place.charge_text(value.string().size());
    std::u32string characters = code_points(value.string());
    std::ranges::reverse(characters);
    return from_code_points(characters);
  }
  List items = iterate(arguments.place, value);
  std::ranges::reverse(items);
  return Value::list(std::move(items));
}

// Python's int() and float() of a text: blanks around it, a sign, nothing else.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  text.remove_prefix(leading_space(text, is_python_space));
  text.remove_suffix(trailing_space(text, is_python_space));
  if (text.starts_with('+')) text.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<int64_t> whole_part(double value) {
  if (!(std::abs(value) < 9e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

Value to_integer(const Arguments& arguments, const Value& value) {
  arguments.expect_count(0, 1);
  arguments.expect_keywords({"default"});
  const Value otherwise = argument(arguments, 0, "default", Value(int64_t{0}));
  std::optional<int64_t> whole;
  if (value.is_float()) {
    whole = whole_part(value.number());
  } else if (value.is_number()) {
    whole = value.integer();
  } else if (value.is_string()) {
    whole = number_in<int64_t>(value.string());
    if (const auto number = number_in<double>(value.string()); !whole && number)
      whole = whole_part(*number);
  }
  return whole ? Value(*whole) : otherwise;
}

Value to_float(const Arguments& arguments, const Value& value) {
  arguments.expect_count(0, 1);
  arguments.expect_keywords({"default"});
  if (value.is_number()) return value.number();
  if (value.is_string()) {
    if (const auto number = number_in<double>(value.string())) return *number;
  }
  return argument(arguments, 0, "default", Value(0.0));
}

Value magnitude(const Arguments& arguments, const Value& value) {
  arguments.expect_count(0, 0);
  if (!value.is_number()) arguments.fail("needs a number, found " + value.type_name());
  if (value.is_float()) return std::abs(value.number());
  if (value.integer() == INT64_MIN) arguments.fail("a number beyond 64 bits");
  return value.integer() < 0 ? -value.integer() : value.integer();
}

}  // namespace

std::optional<Value> apply_more_filters(const std::string& name, const Value& value,
                                        const Arguments& arguments) {
  if (name == "map") return Value::list(mapped(arguments, value));
  if (name == "indent") return indented(arguments, text_of(arguments, value));
  if (name == "int") return to_integer(arguments, value);
  if (name == "float") return to_float(arguments, value);
  const bool capitals = name == "title" || name == "capitalize";
  if (!capitals && name != "reverse" && name != "abs") return std::nullopt;
  arguments.expect_keywords({});
  arguments.expect_count(0, 0);
  if (name == "title") return title_filter(arguments, text_of(arguments, value));
  if (name == "capitalize") return capitalize(arguments, text_of(arguments, value));
  return name == "reverse" ? reversed(arguments, value) : magnitude(arguments, value);
}

std::optional<Value> call_more_methods(const std::string& text, const std::string& method,
                                       const Arguments& arguments) {
  if (method == "find") return place_of(arguments, text);
  if (method == "count") return count_of(arguments, text);
  if (method == "join") return joined_by(arguments, text);
  const bool alone = method == "title" || method == "capitalize" || method == "splitlines" ||
                     method == "isdigit" || (method == "split" && arguments.positional.empty());
  if (!alone) return std::nullopt;
  arguments.expect_count(0, 0);
  arguments.place.charge_text(text.size());
  if (method == "title") return title_method(arguments, text);
  if (method == "capitalize") return capitalize(arguments, text);
  if (method == "splitlines") return Value::list(lines_of(arguments, text));
  if (method == "split") return Value::list(words_of(arguments, text));
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace trireme::text::jinja
