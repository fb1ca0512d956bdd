// Filters that make texts.
#include <algorithm>
#include <array>

#include "text/jinja_call.hpp"
#include "text/jinja_texts.hpp"
#include "text/python_text.hpp"
#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace text_filter {
namespace {

std::string own_text(const Arguments& arguments, const Value& self) {
  return to_text(self, arguments.place);
}

template <std::string (*change)(std::string_view)>
Value changed(const Arguments& arguments, const Value& self) {
  const std::string text = own_text(arguments, self);
  arguments.place.charge_text(text.size());
  return change(text);
}

Value trim(const Arguments& arguments, const Value& self) {
  return stripped(arguments, own_text(arguments, self), Side::both);
}

Value replace(const Arguments& arguments, const Value& self) {
  return replaced(arguments, own_text(arguments, self),
                  to_text(arguments.value(0), arguments.place),
                  to_text(arguments.value(1), arguments.place), arguments.integer(2, -1));
}

Value as_string(const Arguments& arguments, const Value& self) {
  return self.is_markup() ? self : Value(own_text(arguments, self));
}

Value safe(const Arguments& arguments, const Value& self) {
  return Value::markup(own_text(arguments, self));
}

Value escape(const Arguments& arguments, const Value& self) {
  if (self.is_markup()) return self;
  return Value::markup(python::html_escaped(own_text(arguments, self)));
}

Value force_escape(const Arguments& arguments, const Value& self) {
  return Value::markup(python::html_escaped(own_text(arguments, self)));
}

Value indent(const Arguments& arguments, const Value& self) {
  if (!self.is_string()) arguments.fail("needs a text, found " + self.type_name());
  const Value width = arguments.at(0) != nullptr ? arguments.value(0) : Value(int64_t{4});
  const bool first = arguments.truth(1, false), blank = arguments.truth(2, false);
  if (!width.is_string() && !(width.is_int() && width.integer() >= 0 && width.integer() <= 1000))
    arguments.fail("width must be a text or 0 to 1000");
  const std::string indention =
      width.is_string() ? width.string() : std::string(static_cast<size_t>(width.integer()), ' ');
  const List lines = lines_of(arguments, self.string() + "\n", false);
  std::string out = first ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i].string();
    arguments.place.charge_text(indention.size() + line.size());
    arguments.place.check_length(out.size() + indention.size() + line.size());
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !line.empty())) out += indention;
    out += line;
  }
  return self.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
}

Value center(const Arguments& arguments, const Value& self) {
  return padded(arguments, own_text(arguments, self), arguments.integer(0, 80), " ", Side::both);
}

Value truncate(const Arguments& arguments, const Value& self) {
  const std::u32string text = code_points(own_text(arguments, self));
  const std::u32string end = code_points(arguments.text(2, "..."));
  const int64_t length = arguments.integer(0, 255), leeway = arguments.integer(3, 5);
  if (length < static_cast<int64_t>(end.size()) || leeway < 0)
    arguments.fail("the length is less than that of the end");
  if (static_cast<int64_t>(text.size()) <= length + leeway) return from_code_points(text);
  std::u32string kept = text.substr(0, static_cast<size_t>(length) - end.size());
  if (!arguments.truth(1, false)) kept = kept.substr(0, kept.rfind(U' '));
  return from_code_points(kept + end);
}

Value word_count(const Arguments& arguments, const Value& self) {
  int64_t count = 0;
  bool inside = false;
  for (const char32_t c : code_points(own_text(arguments, self))) {
    const bool word = python::is_word(c);
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return count;
}

Value url_encode(const Arguments& arguments, const Value& self) {
  const auto quoted = [&](const Value& value, bool plus) {
    return python::url_quoted(to_text(value, arguments.place), plus);
  };
  if (self.is_string() || (!self.is_list() && !self.is_dict())) return quoted(self, false);
  std::string out;
  const auto add = [&](const Value& key, const Value& value) {
    if (!out.empty()) out += '&';
    out += quoted(key, true) + "=" + quoted(value, true);
  };
  if (self.is_dict()) {
    for (const auto& [key, value] : self.dict().members) add(key, value);
    return out;
  }
  for (const Value& pair : iterate(arguments.place, self)) {
    if (!pair.is_list() || pair.items().size() != 2) arguments.fail("needs pairs");
    add(pair.items()[0], pair.items()[1]);
  }
  return out;
}

// Without comments and tags, as MarkupSafe removes them.
std::string without_tags(std::string text) {
  for (const auto& [open, close] :
       {std::pair<std::string_view, std::string_view>{"<!--", "-->"}, {"<", ">"}}) {
    std::string kept;
    size_t done = 0;
    for (size_t start = find_text(text, open); start != std::string::npos;
         start = find_text(text, open, done)) {
      const size_t end = find_text(text, close, start);
      if (end == std::string::npos) break;
      kept.append(text, done, start - done);
      done = end + close.size();
    }
    text = kept.append(text, done);
  }
  return text;
}

Value strip_tags(const Arguments& arguments, const Value& self) {
  std::string joined;
  for (const Value& word : words_of(arguments, without_tags(own_text(arguments, self))))
    joined += (joined.empty() ? "" : " ") + word.string();
  std::string out;
  for (size_t i = 0; i < joined.size(); ++i) {
    if (joined[i] != '&') {
      out += joined[i];
      continue;
    }
    constexpr std::pair<std::string_view, std::string_view> entities[] = {
        {"&amp;", "&"},  {"&lt;", "<"},  {"&gt;", ">"},   {"&quot;", "\""},
        {"&#34;", "\""}, {"&#39;", "'"}, {"&#x27;", "'"}, {"&nbsp;", "\u00A0"}};
    const auto* const found = std::ranges::find_if(entities, [&](const auto& entity) {
      return std::string_view(joined).substr(i).starts_with(entity.first);
    });
    const char next = i + 1 < joined.size() ? joined[i + 1] : ' ';
    const bool other = next == '#' || std::isalnum(static_cast<unsigned char>(next)) != 0;
    if (found == std::end(entities) && other)
      arguments.fail("the character reference '" + joined.substr(i, 10) + "' is not known");
    out += found == std::end(entities) ? "&" : found->second;
    if (found != std::end(entities)) i += found->first.size() - 1;
  }
  return out;
}

// text | format(...) is text % (...).
Value format(const Arguments& arguments, const Value& self) {
  if (!arguments.keywords.empty()) {
    if (!arguments.positional.empty()) arguments.fail("takes values or named values, not both");
    return percent_format(arguments.place, own_text(arguments, self),
                          Value::dict(arguments.keywords));
  }
  List values;
  for (size_t i = 0; i < arguments.positional.size(); ++i) values.push_back(arguments.value(i));
  return percent_format(arguments.place, own_text(arguments, self),
                        Value::tuple(std::move(values)));
}

Value file_size(const Arguments& arguments, const Value& self) {
  const auto read = self.is_string()   ? python::read_float(self.string())
                    : self.is_number() ? std::optional(self.number())
                                       : std::nullopt;
  if (!read) arguments.fail("needs a number, found " + self.type_name());
  const bool binary = arguments.truth(0, false);
  const double base = binary ? 1024 : 1000;
  const auto shown = [&](const char* format, double value) {
    std::array<char, 64> buffer{};
    std::snprintf(buffer.data(), buffer.size(), format, value);
    return std::string(buffer.data());
  };
  if (*read == 1) return "1 Byte";
  if (*read < base) return shown("%.0f Bytes", std::trunc(*read));
  double unit = base;
  std::string out;
  for (const char prefix : std::string_view("kMGTPEZY")) {
    const std::string name =
        std::string(1, binary && prefix == 'k' ? 'K' : prefix) + (binary ? "iB" : "B");
    out = shown("%.1f ", *read / unit) + name;
    unit *= base;
    if (*read < unit) break;
  }
  return out;
}

}  // namespace
}  // namespace text_filter

std::span<const Callee> text_filters() {
  using namespace text_filter;
  static constexpr Callee filters[] = {
      {"trim", "chars", 0, trim},
      {"upper", "", 0, changed<python::upper>},
      {"lower", "", 0, changed<python::lower>},
      {"title", "", 0, changed<python::title_words>},
      {"capitalize", "", 0, changed<python::capitalize>},
      {"string", "", 0, as_string},
      {"safe", "", 0, safe},
      {"e", "", 0, escape},
      {"escape", "", 0, escape},
      {"forceescape", "", 0, force_escape},
      {"replace", "old new count", 2, replace},
      {"indent", "width first blank", 0, indent},
      {"center", "width", 0, center},
      {"truncate", "length killwords end leeway", 0, truncate},
      {"wordcount", "", 0, word_count},
      {"urlencode", "", 0, url_encode},
      {"striptags", "", 0, strip_tags},
      {"format", "*", 0, format},
      {"filesizeformat", "binary", 0, file_size},
  };
  return filters;
}

}  // namespace trireme::text::jinja
