// Deck values into the types of option members and back. `read` returns what is wrong, or "".
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.hpp"
#include "trireme/config/options.hpp"

namespace trireme::config {

// Limits of a key beyond its type; applies to every element of a list.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
  std::vector<std::string> words;  // for texts; empty: any
  bool ordered = false;            // a pair must not fall
  bool number_as_text = false;     // an integer is taken as its digits
  bool never_empty = false;

  bool bounded() const {
    return low > -std::numeric_limits<double>::infinity() ||
           high < std::numeric_limits<double>::infinity();
  }
  std::string describe() const;  // "> 0", "0 ... 1", "" when all is allowed
};

std::string read(const Value& value, const Limits& limits, bool& out);
std::string read(const Value& value, const Limits& limits, int64_t& out);
std::string read(const Value& value, const Limits& limits, double& out);
std::string read(const Value& value, const Limits& limits, std::string& out);
std::string read(const Value& value, const Limits& limits, Duration& out);
std::string read(const Value& value, const Limits& limits, SaveInterval& out);
std::string read(const Value& value, const Limits& limits, Bytes& out);
std::string read(const Value& value, const Limits& limits, MemoryShare& out);
std::string read(const Value& value, const Limits& limits, Range& out);
std::string read(const Value& value, const Limits& limits, Strings& out);
std::string read(const Value& value, const Limits& limits, std::vector<double>& out);
std::string read(const Value& value, const Limits& limits, std::vector<int64_t>& out);
// A word of a fixed list; `index` of the one chosen.
std::string read_word(const Value& value, std::span<const std::string_view> words, size_t& index);

template <class E>
requires std::is_enum_v<E> std::string read(const Value& value, const Limits&, E& out) {
  size_t index = 0;
  std::string problem = read_word(value, Words<E>::list, index);
  if (problem.empty()) out = static_cast<E>(index);
  return problem;
}
template <class T>
std::string read(const Value& value, const Limits& limits, std::optional<T>& out) {
  if (const auto* word = value.get<std::string>(); word && *word == "none") {
    out.reset();
    return "";
  }
  T inner{};
  std::string problem = read(value, limits, inner);
  if (problem.empty()) out = inner;
  return problem;
}

// As TOML that `read` takes back to an equal value.
std::string write(bool value);
std::string write(int64_t value);
std::string write(double value);
std::string write(const std::string& value);
std::string write(const Duration& value);
std::string write(const SaveInterval& value);
std::string write(const Bytes& value);
std::string write(const MemoryShare& value);
std::string write(const Range& value);
std::string write(const Strings& value);
std::string write(const std::vector<double>& value);
std::string write(const std::vector<int64_t>& value);
std::string quoted(std::string_view text);
template <class E>
requires std::is_enum_v<E> std::string write(E value) { return quoted(to_string(value)); }
template <class T>
std::string write(const std::optional<T>& value) {
  return value ? write(*value) : "\"none\"";
}

std::string type_name(const bool*);
std::string type_name(const int64_t*);
std::string type_name(const double*);
std::string type_name(const std::string*);
std::string type_name(const Duration*);
std::string type_name(const SaveInterval*);
std::string type_name(const Bytes*);
std::string type_name(const MemoryShare*);
std::string type_name(const Range*);
std::string type_name(const Strings*);
std::string type_name(const std::vector<double>*);
std::string type_name(const std::vector<int64_t>*);
std::string type_of_words(std::span<const std::string_view> words);
template <class E>
requires std::is_enum_v<E> std::string type_name(const E*) { return type_of_words(Words<E>::list); }
template <class T>
std::string type_name(const std::optional<T>*) {
  return type_name(static_cast<const T*>(nullptr)) + " or \"none\"";
}

// "90s", "1h30m", "2:00:00"; nullopt when malformed.
std::optional<double> duration_seconds(std::string_view text);
// "4 MiB"; nullopt when malformed or beyond 2^62.
std::optional<int64_t> byte_count(std::string_view text);

}  // namespace trireme::config
