// How filters, tests, methods and functions are called: their names, parameters and arguments.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_meter.hpp"
#include "text/jinja_value.hpp"

namespace trireme::text::jinja {

struct Arguments {
  Place place;
  std::string callee;  // for messages
  std::vector<std::optional<Value>> positional;
  Members keywords;

  [[noreturn]] void fail(const std::string& problem) const { place.fail(callee + ": " + problem); }
  // Puts keywords in the places of `parameters`, names with blanks between them. Fails for unknown
  // ones, for too many, and where one of the first `least` is missing.
  void bind(std::string_view parameters, size_t least);
  void expect_no_keywords() const;
  // The argument of a place; nullptr where there is none.
  const Value* at(size_t index) const;
  const Value& value(size_t index) const { return *positional[index]; }
  bool truth(size_t index, bool otherwise) const;
  const std::string& text(size_t index) const;
  std::string text(size_t index, const std::string& otherwise) const;
  int64_t integer(size_t index) const;
  int64_t integer(size_t index, int64_t otherwise) const;
  // Arguments from `first` on, for another callee.
  Arguments rest(size_t first, std::string other) const;
};

// A filter, test or method of Python's or Jinja's. `parameters` "*": it takes any arguments.
struct Callee {
  std::string_view name;
  std::string_view parameters;
  size_t least;
  Value (*call)(const Arguments& arguments, const Value& self);
};
std::span<const Callee> text_filters();
std::span<const Callee> list_filters();
std::span<const Callee> value_filters();
std::span<const Callee> value_tests();
std::span<const Callee> text_methods();
const Callee* find_filter(std::string_view name);
const Callee* find_test(std::string_view name);
// Fails when the arguments do not fit.
Value invoke(const Callee& callee, Arguments arguments, const Value& self);

Value call_method(const Value& object, const std::string& method, const Arguments& arguments);
bool has_method(const Value& object, std::string_view method);
// Whether `object.name` is a method or a forbidden attribute of Python's, so that a key of that
// name is only found by ['name'].
bool hides_key(const Value& object, std::string_view name);
Value call_builtin(Builtin builtin, const Arguments& arguments);
// Python's datetime(date).strftime(format).
std::string strftime_of(const Arguments& arguments, const std::string& date);

// object.name, without the methods; Undefined when there is no such attribute.
Value attribute_of(const Place& place, const Value& object, std::string_view name);
// object[key]; Undefined when there is no such item.
Value subscript(const Place& place, const Value& object, const Value& key);
// object[from:to:step]; bounds that are None are left out.
Value slice(const Place& place, const Value& object, const Value& from, const Value& to,
            const Value& step);
// "a.b.0": item 0 of member b of member a.
Value member_of(const Place& place, Value value, const Value& path);
// Elements of a loop: items, keys or characters. A generator is empty afterwards.
List iterate(const Place& place, const Value& value);
Value apply_binary(const Place& place, const std::string& operation, const Value& left,
                   const Value& right);
// -1, 0 or 1 of what Python orders; fails for others.
int compare(const Place& place, std::string_view operation, const Value& left, const Value& right);
bool contains(const Place& place, const Value& item, const Value& container);
// The first place of `part` in `text` from `from` on, npos without one; linear in their lengths,
// which std::string::find is not.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
// Python's text % values, and text.format(...).
std::string percent_format(const Place& place, const std::string& text, const Value& values);
std::string brace_format(const Arguments& arguments, const std::string& text);

}  // namespace trireme::text::jinja
