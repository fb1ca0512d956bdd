// Python's two ways to put values into a text: text % values and text.format(values).
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja_call.hpp"
#include "text/python_text.hpp"
#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace {

// How one value is put: [[fill]align][sign][#][0][width][,][.precision][type]
struct Layout {
  std::string fill = " ";
  char align = '\0';  // < > = ^
  char sign = '-';
  bool alternate = false;
  int64_t width = 0, precision = -1;
  char grouping = '\0', type = '\0';
};

constexpr int64_t widest = 10'000;

int64_t read_number(const Place& place, std::string_view text, size_t& at) {
  int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + (text[at] - '0');
    if (value > widest) place.fail(base::text("a width of more than ", widest));
  }
  return value;
}

std::string aligned(const Layout& layout, const std::string& text, char otherwise) {
  const auto length = static_cast<int64_t>(code_points(text).size());
  const int64_t missing = std::max<int64_t>(layout.width - length, 0);
  const char align = layout.align == '\0' ? otherwise : layout.align;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  const size_t sign = align == '=' && !text.empty() &&
                              std::string_view("+- ").find(text[0]) != std::string_view::npos
                          ? 1
                          : 0;
  std::string out = text.substr(0, sign);
  for (int64_t i = 0; i < left; ++i) out += layout.fill;
  out += text.substr(sign);
  for (int64_t i = left; i < missing; ++i) out += layout.fill;
  return out;
}

std::string with_sign(const Layout& layout, bool negative, const std::string& digits) {
  return negative ? "-" + digits : layout.sign == '-' ? digits : layout.sign + digits;
}

std::string with_groups(const Layout& layout, std::string digits) {
  if (layout.grouping == '\0') return digits;
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, 1, layout.grouping);
  return digits;
}

std::string in_base(uint64_t value, unsigned base, bool large) {
  std::string out;
  do {
    out += (large ? "0123456789ABCDEF" : "0123456789abcdef")[value % base];
    value /= base;
  } while (value > 0);
  std::ranges::reverse(out);
  return out;
}

std::string integer_text(const Layout& layout, int64_t value) {
  const uint64_t size =
      value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const unsigned base = layout.type == 'x' || layout.type == 'X' ? 16
                        : layout.type == 'o'                     ? 8
                        : layout.type == 'b'                     ? 2
                                                                 : 10;
  std::string digits = in_base(size, base, layout.type == 'X');
  if (static_cast<int64_t>(digits.size()) < layout.precision)
    digits.insert(0, static_cast<size_t>(layout.precision) - digits.size(), '0');
  if (base == 10) digits = with_groups(layout, digits);
  if (layout.alternate && base != 10) digits = std::string("0") + layout.type + digits;
  return with_sign(layout, value < 0, digits);
}

std::string float_digits(const Layout& layout, double value) {
  const double size = std::abs(value);
  const char type = layout.type == '%' ? 'f' : layout.type;
  const int precision = static_cast<int>(layout.precision < 0 ? 6 : layout.precision);
  if (!std::isfinite(value)) {
    const bool large = type == 'F' || type == 'E' || type == 'G';
    return std::isnan(value) ? (large ? "NAN" : "nan") : (large ? "INF" : "inf");
  }
  const std::string format = std::string("%") + (layout.alternate ? "#" : "") + ".*" + type;
  std::string out(static_cast<size_t>(precision) + 350, '\0');
  const int length = std::snprintf(out.data(), out.size(), format.c_str(), precision,
                                   layout.type == '%' ? size * 100 : size);
  out.resize(static_cast<size_t>(std::max(length, 0)));
  return out + (layout.type == '%' ? "%" : "");
}

std::string float_form(const Layout& layout, double value) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  std::string digits;
  if (layout.type == '\0') {
    digits = python::float_text(std::abs(value));
  } else {
    digits = float_digits(layout, value);
  }
  return with_sign(layout, negative, with_groups(layout, digits));
}

bool is_one_of(char c, std::string_view letters) {
  return c != '\0' && letters.find(c) != std::string_view::npos;
}

std::string cut(const std::string& text, int64_t precision) {
  return precision < 0
             ? text
             : from_code_points(code_points(text).substr(0, static_cast<size_t>(precision)));
}

// text % values
class Percent {
 public:
  Percent(const Place& place, const std::string& text, const Value& values)
      : place_(place), text_(text), values_(values) {}

  std::string run() {
    for (at_ = 0; at_ < text_.size(); ++at_) {
      if (text_[at_] != '%') {
        out_ += text_[at_];
        continue;
      }
      ++at_;
      conversion();
      place_.check_length(out_.size());
    }
    const bool left = values_.is_tuple() ? next_ < values_.items().size()
                                         : next_ == 0 && !values_.is_mapping() && !named_;
    if (left) place_.fail("% : not all values are used");
    return std::move(out_);
  }

 private:
  const Value& next() {
    if (values_.is_tuple() && next_ < values_.items().size()) return values_.items()[next_++];
    if (values_.is_tuple() || next_ > 0) place_.fail("% : not enough values");
    ++next_;
    return values_;
  }
  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  const Value* named() {
    if (now() != '(') return nullptr;
    const size_t end = text_.find(')', at_);
    if (end == std::string::npos) place_.fail("% : a name that does not end");
    const std::string name = text_.substr(at_ + 1, end - at_ - 1);
    if (!values_.is_mapping()) place_.fail("% : a name needs a mapping");
    place_.charge_search(values_.dict().members.size());
    const Value* const found = values_.find(name);
    if (found == nullptr) place_.fail("% : the mapping has no '" + name.substr(0, 100) + "'");
    at_ = end + 1;
    named_ = true;
    return found;
  }
  int64_t star_or_number() {
    if (now() != '*') return read_number(place_, text_, at_);
    ++at_;
    const Value& value = next();
    if (!value.is_int() || std::abs(value.integer()) > widest) place_.fail("% : * needs a number");
    return value.integer();
  }
  void conversion() {
    if (now() == '%') {
      out_ += '%';
      return;
    }
    const Value* value = named();
    Layout layout;
    layout.align = '>';
    bool zeros = false;
    for (; is_one_of(now(), "-+ #0"); ++at_) {
      const char flag = now();
      if (flag == '-') layout.align = '<';
      if (flag == '0') zeros = true;
      if (flag == '#') layout.alternate = true;
      if (flag == '+' || (flag == ' ' && layout.sign != '+')) layout.sign = flag;
    }
    layout.width = star_or_number();
    if (layout.width < 0) {
      layout.align = '<';
      layout.width = -layout.width;
    }
    if (now() == '.') {
      ++at_;
      layout.precision = std::max<int64_t>(star_or_number(), 0);
    }
    while (is_one_of(now(), "hlL")) ++at_;
    layout.type = now();
    if (!is_one_of(layout.type, "sradiuoxXeEfFgGc"))
      place_.fail("% : the conversion '%" + std::string(1, layout.type) + "' is not known");
    if (value == nullptr) value = &next();
    if (zeros && !is_one_of(layout.type, "srac") && layout.align == '>') {
      layout.fill = "0";
      layout.align = '=';
    }
    out_ += aligned(layout, converted(layout, *value), '>');
  }
  std::string converted(const Layout& layout, const Value& value) {
    switch (layout.type) {
      case 's': return cut(to_text(value, place_), layout.precision);
      case 'r':
      case 'a': return cut(to_repr(value, place_), layout.precision);
      case 'c':
        if (value.is_string() && code_points(value.string()).size() == 1) return value.string();
        if (!value.is_int() || value.integer() < 0 || value.integer() > 0x10FFFF)
          place_.fail("% : %c needs a character");
        return from_code_points(std::u32string(1, static_cast<char32_t>(value.integer())));
      default: break;
    }
    if (value.is_big() && is_one_of(layout.type, "diu")) return value.digits();
    if (!value.is_number()) place_.fail("% : a number is needed, found " + value.type_name());
    if (!is_one_of(layout.type, "eEfFgG")) {
      const double whole = std::trunc(value.number());
      if (value.is_float() && !(std::abs(whole) < 9e18)) place_.fail("% : a number beyond 64 bits");
      return integer_text(layout, value.is_float() ? static_cast<int64_t>(whole) : value.integer());
    }
    return float_form(layout, value.number());
  }

  const Place& place_;
  const std::string& text_;
  const Value& values_;
  size_t at_ = 0, next_ = 0;
  bool named_ = false;
  std::string out_;
};

// text.format(values)
class Braces {
 public:
  Braces(const Arguments& arguments, const std::string& text)
      : arguments_(arguments), text_(text) {}

  std::string run() {
    std::string out = part(text_, 2);
    arguments_.place.check_length(out.size());
    return out;
  }

 private:
  std::string part(std::string_view text, int depth) {
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
      const char c = text[at];
      const bool twice = at + 1 < text.size() && text[at + 1] == c;
      if (c != '{' && c != '}') {
        out += c;
      } else if (twice && depth == 2) {
        out += c;
        ++at;
      } else if (c == '}' || depth == 0) {
        arguments_.fail("a single brace");
      } else {
        const size_t end = end_of(text, at + 1);
        out += field(text.substr(at + 1, end - at - 1), depth);
        at = end;
      }
    }
    return out;
  }
  size_t end_of(std::string_view text, size_t at) const {
    int open = 1;
    for (; at < text.size(); ++at) {
      if (text[at] == '{') ++open;
      if (text[at] == '}' && --open == 0) return at;
    }
    arguments_.fail("a brace that does not end");
  }
  std::string field(std::string_view text, int depth) {
    const size_t colon = std::min(text.find(':'), text.size());
    std::string_view name = text.substr(0, colon);
    const std::string layout =
        colon < text.size() ? part(text.substr(colon + 1), depth - 1) : std::string();
    char conversion = '\0';
    if (const size_t mark = name.find('!'); mark != std::string_view::npos) {
      conversion = mark + 2 == name.size() ? name[mark + 1] : '?';
      name = name.substr(0, mark);
      if (!is_one_of(conversion, "sra")) arguments_.fail("a conversion that is not known");
    }
    const Value value = value_of(name);
    if (conversion == 's') return laid_out(to_text(value, arguments_.place), layout);
    if (conversion != '\0') return laid_out(to_repr(value, arguments_.place), layout);
    return laid_out(value, layout);
  }
  Value value_of(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    const std::string first(name.substr(0, end));
    Value value = argument(first);
    name.remove_prefix(end);
    while (!name.empty()) {
      if (name[0] == '[') {
        const size_t close = name.find(']');
        if (close == std::string_view::npos) arguments_.fail("a bracket that does not end");
        const std::string key(name.substr(1, close - 1));
        const auto index = python::read_integer(key);
        value = subscript(arguments_.place, value, index ? Value(*index) : Value(key));
        name.remove_prefix(close + 1);
      } else {
        const size_t next = std::min(name.find_first_of(".[", 1), name.size());
        value = attribute_of(arguments_.place, value, name.substr(1, next - 1));
        name.remove_prefix(next);
      }
      if (value.is_undefined()) arguments_.fail(value.type_name() + " was asked for");
    }
    return value;
  }
  Value argument(const std::string& name) {
    size_t index = 0;
    if (name.empty()) {
      index = next_++;
    } else if (const auto number = python::read_integer(name); number && *number >= 0) {
      index = static_cast<size_t>(*number);
    } else {
      const auto found = std::ranges::find(arguments_.keywords, name, &Members::value_type::first);
      if (found == arguments_.keywords.end())
        arguments_.fail("the value '" + name.substr(0, 100) + "' is missing");
      return found->second;
    }
    if (arguments_.at(index) == nullptr)
      arguments_.fail(base::text("the value ", index, " is missing"));
    return arguments_.value(index);
  }
  Layout layout_of(const std::string& text) const {
    Layout layout;
    size_t at = 0;
    const size_t first = text.empty() ? 0 : utf8_step(text).length;
    if (first > 0 && first < text.size() && is_one_of(text[first], "<>=^")) {
      layout.fill = text.substr(0, first);
      layout.align = text[first];
      at = first + 1;
    } else if (!text.empty() && is_one_of(text[0], "<>=^")) {
      layout.align = text[at++];
    }
    const auto now = [&] { return at < text.size() ? text[at] : '\0'; };
    if (is_one_of(now(), "+- ")) layout.sign = text[at++];
    if (now() == '#') layout.alternate = ++at > 0;
    if (now() == '0' && layout.align == '\0') {
      layout.fill = "0";
      layout.align = '=';
    }
    layout.width = read_number(arguments_.place, text, at);
    if (is_one_of(now(), ",_")) layout.grouping = text[at++];
    if (now() == '.') layout.precision = read_number(arguments_.place, text, ++at);
    if (at < text.size()) layout.type = text[at++];
    if (at < text.size() || !is_one_of(layout.type == '\0' ? 's' : layout.type, "sdeEfFgGoxXbcn%"))
      arguments_.fail("the format '" + text.substr(0, 100) + "' is not known");
    return layout;
  }
  std::string laid_out(const Value& value, const std::string& text) const {
    if (text.empty()) return to_text(value, arguments_.place);
    Layout layout = layout_of(text);
    const bool floats = is_one_of(layout.type, "eEfFgG%");
    if (value.is_string()) {
      if (layout.type != '\0' && layout.type != 's') arguments_.fail("a text needs the format s");
      if (layout.align == '=') layout.align = '<';
      return aligned(layout, cut(value.string(), layout.precision), '<');
    }
    if (!value.is_number() || layout.type == 's' || layout.type == 'c' || layout.type == 'n')
      arguments_.fail("the format '" + text.substr(0, 100) + "' of " + value.type_name() +
                      " is not known");
    if (value.is_bool() && layout.type == '\0')
      return aligned(layout, std::to_string(value.integer()), '>');
    if (value.is_float() && layout.type == '\0' && layout.precision >= 0)
      arguments_.fail("a precision without a letter (as f) is not known for numbers");
    if (value.is_float() || floats) return aligned(layout, float_form(layout, value.number()), '>');
    return aligned(layout, integer_text(layout, value.integer()), '>');
  }

  const Arguments& arguments_;
  const std::string& text_;
  size_t next_ = 0;
};

}  // namespace

std::string percent_format(const Place& place, const std::string& text, const Value& values) {
  place.charge_text(text.size());
  return Percent(place, text, values).run();
}

std::string brace_format(const Arguments& arguments, const std::string& text) {
  arguments.place.charge_text(text.size());
  return Braces(arguments, text).run();
}

}  // namespace trireme::text::jinja
