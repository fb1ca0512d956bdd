#include "config/convert.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "trireme/base/text.hpp"

namespace trireme::config {

std::string_view kind_of(const Value& value) {
  static constexpr std::array<std::string_view, 5> kinds{
      "a truth value", "an integer", "a number with a fraction", "a text", "a list"};
  if (const auto* other = value.get<OtherValue>()) return other->what;
  return kinds[value.data.index()];
}

namespace {

std::string must_be(std::string_view what, const Value& value) {
  return base::text("must be ", what, ", not ", kind_of(value));
}

std::string number_text(double value) {
  std::array<char, 40> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

std::string check(double value, const Limits& limits) {
  if (!std::isfinite(value)) return "must be a finite number";
  const bool low_fits = limits.low_open ? value > limits.low : value >= limits.low;
  const bool high_fits = limits.high_open ? value < limits.high : value <= limits.high;
  if (low_fits && high_fits) return "";
  return base::text("is ", number_text(value), " (allowed: ", limits.describe(), ")");
}

template <class T>
std::string read_list(const Value& value, const Limits& limits, std::vector<T>& out,
                      std::string_view what) {
  const auto* list = value.get<std::vector<Value>>();
  if (!list) return must_be(what, value);
  std::vector<T> elements;
  for (const Value& element : *list) {
    T one{};
    if (std::string problem = read(element, limits, one); !problem.empty()) {
      return base::text("element ", elements.size() + 1, " ", problem);
    }
    elements.push_back(std::move(one));
  }
  out = std::move(elements);
  return "";
}

template <class T>
std::string write_list(const T& list) {
  std::vector<std::string> parts;
  for (const auto& element : list) parts.push_back(write(element));
  return "[" + base::join(parts) + "]";
}

// Splits "90s" into 90 and "s"; false when no number stands in front.
bool take_number(std::string_view& text, double& number) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || number < 0 || !std::isfinite(number)) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

std::string Limits::describe() const {
  if (!words.empty()) return "one of " + base::join(words);
  const bool has_low = low > -std::numeric_limits<double>::infinity();
  const bool has_high = high < std::numeric_limits<double>::infinity();
  if (has_low && has_high && !low_open && !high_open)
    return number_text(low) + " ... " + number_text(high);
  std::string out;
  if (has_low) out += (low_open ? "> " : ">= ") + number_text(low);
  if (has_high)
    out += (out.empty() ? "" : ", ") + std::string(high_open ? "< " : "<= ") + number_text(high);
  return out;
}

std::string read(const Value& value, const Limits&, bool& out) {
  const auto* flag = value.get<bool>();
  if (!flag) return must_be("true or false", value);
  out = *flag;
  return "";
}

std::string read(const Value& value, const Limits& limits, int64_t& out) {
  const auto* integer = value.get<int64_t>();
  if (!integer) return must_be("an integer", value);
  std::string problem = check(static_cast<double>(*integer), limits);
  if (problem.empty()) out = *integer;
  return problem;
}

std::string read(const Value& value, const Limits& limits, double& out) {
  double number = 0;
  if (const auto* integer = value.get<int64_t>()) {
    number = static_cast<double>(*integer);
  } else if (const auto* floating = value.get<double>()) {
    number = *floating;
  } else {
    return must_be("a number", value);
  }
  std::string problem = check(number, limits);
  if (problem.empty()) out = number;
  return problem;
}

std::string read(const Value& value, const Limits& limits, std::string& out) {
  std::string text;
  if (const auto* given = value.get<std::string>()) {
    text = *given;
  } else if (const auto* integer = value.get<int64_t>(); integer && limits.number_as_text) {
    text = std::to_string(*integer);
  } else {
    return must_be("a text", value);
  }
  if (limits.never_empty && text.empty()) return "must not be empty";
  if (text.find('\0') != std::string::npos) return "contains a NUL character";
  if (!limits.words.empty() &&
      std::find(limits.words.begin(), limits.words.end(), text) == limits.words.end()) {
    return base::text("is \"", text, "\" (allowed: ", base::join(limits.words), ")");
  }
  out = std::move(text);
  return "";
}

std::string read_word(const Value& value, std::span<const std::string_view> words, size_t& index) {
  const auto* word = value.get<std::string>();
  if (!word) return must_be(type_of_words(words), value);
  const auto found = std::find(words.begin(), words.end(), *word);
  if (found == words.end()) {
    const std::vector<std::string> candidates(words.begin(), words.end());
    const std::string near = base::nearest(*word, candidates);
    return base::text("is \"", *word, "\" (allowed: ", base::join(candidates), ")",
                      near.empty() ? "" : ": did you mean \"" + near + "\"?");
  }
  index = static_cast<size_t>(found - words.begin());
  return "";
}

std::string read(const Value& value, const Limits& limits, Duration& out) {
  double seconds = 0;
  if (const auto* text = value.get<std::string>()) {
    const auto parsed = duration_seconds(*text);
    if (!parsed)
      return base::text(
          "is \"", *text,
          "\", which is no duration: write seconds, \"90s\", \"30m\", \"1h30m\" or \"2:00:00\"");
    seconds = *parsed;
  } else if (std::string problem = read(value, Limits{}, seconds); !problem.empty()) {
    return must_be("a duration (seconds, \"30m\", \"1h30m\" or \"2:00:00\")", value);
  }
  std::string problem = check(seconds, limits);
  if (problem.empty()) out.seconds = seconds;
  return problem;
}

std::string read(const Value& value, const Limits& limits, SaveInterval& out) {
  if (const auto* count = value.get<int64_t>()) {
    std::string problem = check(static_cast<double>(*count), limits);
    if (problem.empty()) out = SaveInterval(*count);
    return problem;
  }
  const auto* text = value.get<std::string>();
  if (!text) return must_be("a number of iterations, a time (\"20m\") or \"auto\"", value);
  SaveInterval read;
  read.automatic = *text == "auto";
  if (!read.automatic) {
    const auto seconds = duration_seconds(*text);
    if (!seconds || *seconds <= 0)
      return base::text(
          "is \"", *text,
          "\": write a number of iterations, a time (\"20m\", \"1h30m\") or \"auto\"");
    read.seconds = *seconds;
  }
  out = read;
  return "";
}

std::string read(const Value& value, const Limits& limits, Bytes& out) {
  int64_t count = 0;
  if (const auto* text = value.get<std::string>()) {
    const auto parsed = byte_count(*text);
    if (!parsed)
      return base::text("is \"", *text, "\", which is no size: write bytes or \"4 MiB\"");
    count = *parsed;
  } else if (const auto* integer = value.get<int64_t>()) {
    count = *integer;
  } else {
    return must_be("a size (bytes or \"4 MiB\")", value);
  }
  std::string problem = check(static_cast<double>(count), limits);
  if (problem.empty()) out.count = count;
  return problem;
}

std::string read(const Value& value, const Limits&, MemoryShare& out) {
  static constexpr std::string_view form =
      "a fraction of the free memory (0.5) or a size (\"4 GiB\")";
  if (const auto* fraction = value.get<double>(); fraction && *fraction > 0 && *fraction <= 1) {
    out = MemoryShare{*fraction, 0};
    return "";
  }
  if (const auto* whole = value.get<int64_t>(); whole && *whole == 1) {
    out = MemoryShare{1, 0};
    return "";
  }
  Bytes bytes;
  if (std::string problem = read(value, Limits{}, bytes); !problem.empty() || bytes.count <= 0) {
    return base::text("must be ", form);
  }
  out = MemoryShare{0, bytes.count};
  return "";
}

std::string read(const Value& value, const Limits& limits, Range& out) {
  std::vector<double> list;
  if (std::string problem = read_list(value, limits, list, "a list of two numbers");
      !problem.empty())
    return problem;
  if (list.size() != 2) return base::text("must have two numbers, not ", list.size());
  if (limits.ordered && list[0] > list[1]) return "must be [low, high] with low <= high";
  out = {list[0], list[1]};
  return "";
}

std::string read(const Value& value, const Limits& limits, Strings& out) {
  // One text stands for a list of one, which is what people write on the command line.
  if (const auto* text = value.get<std::string>()) {
    // A list as a shell or a batch system has left it; taken as it is it would be a list of one
    // odd text.
    if (text->starts_with('[') && text->ends_with(']')) {
      return base::text(
          "is the text ", quoted(*text),
          ", which looks like a list whose quotes were lost: write [\"a\", \"b\"] in the deck");
    }
    std::string one;
    std::string problem = read(value, limits, one);
    if (problem.empty()) out = text->empty() ? Strings{} : Strings{one};
    return problem;
  }
  return read_list(value, limits, out, "a list of texts");
}

std::string read(const Value& value, const Limits& limits, std::vector<double>& out) {
  return read_list(value, limits, out, "a list of numbers");
}

std::string read(const Value& value, const Limits& limits, std::vector<int64_t>& out) {
  return read_list(value, limits, out, "a list of integers");
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04X", byte);
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string write(bool value) { return value ? "true" : "false"; }
std::string write(int64_t value) { return std::to_string(value); }
std::string write(double value) {
  const std::string text = number_text(value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}
std::string write(const std::string& value) { return quoted(value); }
std::string write(const Duration& value) {
  const bool whole = value.seconds == std::floor(value.seconds) && value.seconds < 9e15;
  return whole ? write(static_cast<int64_t>(value.seconds)) : write(value.seconds);
}
std::string write(const SaveInterval& value) {
  if (value.automatic) return quoted("auto");
  return value.seconds > 0 ? quoted(base::text(write(Duration{value.seconds}), "s"))
                           : write(value.iterations);
}
std::string write(const Bytes& value) { return write(value.count); }
std::string write(const MemoryShare& value) {
  return value.bytes > 0 ? quoted(std::to_string(value.bytes) + " B") : write(value.fraction);
}
std::string write(const Range& value) { return write_list(value); }
std::string write(const Strings& value) { return write_list(value); }
std::string write(const std::vector<double>& value) { return write_list(value); }
std::string write(const std::vector<int64_t>& value) { return write_list(value); }

std::string type_name(const bool*) { return "true or false"; }
std::string type_name(const int64_t*) { return "integer"; }
std::string type_name(const double*) { return "number"; }
std::string type_name(const std::string*) { return "text"; }
std::string type_name(const Duration*) { return "duration"; }
std::string type_name(const SaveInterval*) { return "iterations, time or \"auto\""; }
std::string type_name(const Bytes*) { return "size"; }
std::string type_name(const MemoryShare*) { return "fraction or size"; }
std::string type_name(const Range*) { return "two numbers"; }
std::string type_name(const Strings*) { return "list of texts"; }
std::string type_name(const std::vector<double>*) { return "list of numbers"; }
std::string type_name(const std::vector<int64_t>*) { return "list of integers"; }
std::string type_of_words(std::span<const std::string_view> words) {
  return "one of " + base::join(std::vector<std::string>(words.begin(), words.end()));
}

std::optional<double> duration_seconds(std::string_view text) {
  text = trimmed(text);
  double days = 0;
  double total = 0;
  double number = 0;
  if (text.find(':') != std::string_view::npos) {  // [days-]h:m:s or m:s, as schedulers write it
    if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
      if (!take_number(text, days) || text.empty() || text.front() != '-') return std::nullopt;
      text.remove_prefix(1);
    }
    for (int part = 0; part < 3; ++part) {
      if (!take_number(text, number) || (part > 0 && number >= 60)) return std::nullopt;
      total = total * 60 + number;
      if (text.empty()) return days * 86400 + total;
      if (text.front() != ':') return std::nullopt;
      text.remove_prefix(1);
    }
    return std::nullopt;
  }
  double last_unit = std::numeric_limits<double>::infinity();
  if (text.empty()) return std::nullopt;
  while (!text.empty()) {
    if (!take_number(text, number)) return std::nullopt;
    const bool alone = last_unit == std::numeric_limits<double>::infinity();
    if (text.empty() && !alone) return std::nullopt;  // "1h30": minutes or seconds?
    const char letter = text.empty() ? 's' : text.front();
    const double unit = letter == 'd'   ? 86400
                        : letter == 'h' ? 3600
                        : letter == 'm' ? 60
                        : letter == 's' ? 1
                                        : 0;
    if (unit == 0 || unit >= last_unit) return std::nullopt;
    last_unit = unit;
    total += number * unit;
    if (!text.empty()) text.remove_prefix(1);
  }
  return total;
}

std::optional<int64_t> byte_count(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  static constexpr std::array units{Unit{"", 1},         Unit{"B", 1},        Unit{"KB", 1e3},
                                    Unit{"MB", 1e6},     Unit{"GB", 1e9},     Unit{"TB", 1e12},
                                    Unit{"KiB", 0x1p10}, Unit{"MiB", 0x1p20}, Unit{"GiB", 0x1p30},
                                    Unit{"TiB", 0x1p40}};
  text = trimmed(text);
  int64_t whole = 0;
  // Plain integers exactly, beyond what a double holds.
  if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
      error == std::errc{}) {
    const std::string_view rest = trimmed(text.substr(static_cast<size_t>(end - text.data())));
    if ((rest.empty() || rest == "B") && whole >= 0) return whole;
  }
  double number = 0;
  if (!take_number(text, number)) return std::nullopt;
  text = trimmed(text);
  for (const Unit& unit : units) {
    if (unit.name == text && number * unit.bytes < 0x1p62) return std::llround(number * unit.bytes);
  }
  return std::nullopt;
}

}  // namespace trireme::config
