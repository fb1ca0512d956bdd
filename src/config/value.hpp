// A deck's values without the TOML library, so that one file alone includes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trireme::config {

// What TOML has and no key takes: dates, times, tables where a value belongs.
struct OtherValue {
  std::string what;
};

struct Value {
  std::variant<bool, int64_t, double, std::string, std::vector<Value>, OtherValue> data;

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
};

// "an integer", "a text", ...
std::string_view kind_of(const Value& value);

// One assignment of a deck, tables flattened: `actor.adam.lr`, elements of an array of tables as
// `reward.source.0.kind`.
struct Entry {
  std::string key;
  Value value;
  int line = 0;
  std::string raw;  // an override's text after '='; empty for entries of the file
};

// Flattens a TOML text. Syntax errors are appended to `mistakes` as "name:line: ..."; what follows
// one is lost.
std::vector<Entry> read_toml(std::string_view text, std::string_view name,
                             std::vector<std::string>& mistakes);

// One TOML value, or, when it is none, the text itself as a string ("bare word"). False when it
// cannot be either (invalid UTF-8, a line break).
bool read_toml_value(std::string_view text, Value& out);

}  // namespace trireme::config
