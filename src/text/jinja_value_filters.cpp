// Filters of any value, and tests.
#include <algorithm>
#include <cmath>

#include "text/jinja_call.hpp"
#include "text/python_text.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

namespace value_callee {
namespace {

Value length(const Arguments& arguments, const Value& self) {
  if (self.is_string()) {
    arguments.place.charge_text(self.string().size());
    return static_cast<int64_t>(code_points(self.string()).size());
  }
  if (self.is_list() && self.form() != Form::generator)
    return static_cast<int64_t>(self.items().size());
  if (self.is_mapping()) return static_cast<int64_t>(self.dict().members.size());
  if (self.is_undefined()) return int64_t{0};
  arguments.fail(self.type_name() + " has no length");
}

Value otherwise(const Arguments& arguments, const Value& self) {
  const bool replace = self.is_undefined() || (arguments.truth(1, false) && !self.truth());
  if (!replace) return self;
  return arguments.at(0) != nullptr ? arguments.value(0) : Value(std::string());
}

JsonStyle style_of(const Arguments& arguments) {
  JsonStyle style;
  style.ascii = arguments.truth(0, false);
  style.sorted = arguments.truth(3, false);
  if (const Value* const indent = arguments.at(1); indent != nullptr && !indent->is_none()) {
    const bool number = indent->is_int() && indent->integer() >= 0 && indent->integer() <= 16;
    if (!number && !indent->is_string()) arguments.fail("indent must be 0 to 16, or a text");
    style.lines = true;
    style.indent =
        number ? std::string(static_cast<size_t>(indent->integer()), ' ') : indent->string();
    style.item_separator = ",";
  }
  if (const Value* const both = arguments.at(2); both != nullptr && !both->is_none()) {
    const List texts = both->is_list() ? iterate(arguments.place, *both) : List();
    if (texts.size() != 2 || !texts[0].is_string() || !texts[1].is_string())
      arguments.fail("separators must be two texts");
    style.item_separator = texts[0].string();
    style.key_separator = texts[1].string();
  }
  return style;
}

Value as_json(const Arguments& arguments, const Value& self) {
  std::string problem;
  std::string text = to_json(self, style_of(arguments), arguments.place, problem);
  if (!problem.empty()) arguments.fail(problem);
  return text;
}

std::optional<int64_t> whole_part(double value) {
  if (!(std::abs(value) < 9e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

Value as_integer(const Arguments& arguments, const Value& self) {
  if (self.is_big()) return self;
  std::optional<int64_t> whole;
  if (self.is_float()) {
    whole = whole_part(self.number());
  } else if (self.is_number()) {
    whole = self.integer();
  } else if (self.is_string()) {
    whole = python::read_integer(self.string(), static_cast<int>(arguments.integer(1, 10)));
    if (const auto number = python::read_float(self.string()); !whole && number)
      whole = whole_part(*number);
  }
  if (whole) return *whole;
  return arguments.at(0) != nullptr ? arguments.value(0) : Value(int64_t{0});
}

Value as_float(const Arguments& arguments, const Value& self) {
  if (self.is_number()) return self.number();
  if (self.is_string()) {
    if (const auto number = python::read_float(self.string())) return *number;
  }
  return arguments.at(0) != nullptr ? arguments.value(0) : Value(0.0);
}

Value magnitude(const Arguments& arguments, const Value& self) {
  if (!self.is_number()) arguments.fail("needs a number, found " + self.type_name());
  if (self.is_float()) return std::abs(self.number());
  if (self.integer() == INT64_MIN) arguments.fail("a number beyond 64 bits");
  return self.integer() < 0 ? -self.integer() : self.integer();
}

Value rounded(const Arguments& arguments, const Value& self) {
  if (!self.is_number()) arguments.fail("needs a number, found " + self.type_name());
  const int64_t digits = arguments.integer(0, 0);
  const std::string method = arguments.text(1, "common");
  if (method == "common") {
    if (self.is_float()) return python::round(self.number(), digits);
    return digits >= 0 ? Value(self.integer())
                       : Value(static_cast<int64_t>(python::round(self.number(), digits)));
  }
  if (method != "ceil" && method != "floor") arguments.fail("method must be common, ceil or floor");
  const double unit = std::pow(10.0, static_cast<double>(digits));
  const double scaled = self.number() * unit;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit;
}

// Of Python's attributes only: not the keys of a mapping.
Value attribute(const Arguments& arguments, const Value& self) {
  const std::string& name = arguments.text(0);
  if (has_method(self, name)) return Builtin::method;
  if (self.is_mapping()) return Undefined::of(name);
  return attribute_of(arguments.place, self, name);
}

template <bool (Value::*is)() const>
Value kind_is(const Arguments&, const Value& self) {
  return (self.*is)();
}
Value is_defined(const Arguments&, const Value& self) { return !self.is_undefined(); }
Value is_integer(const Arguments&, const Value& self) { return self.is_int() || self.is_big(); }
Value is_number(const Arguments&, const Value& self) { return self.is_number() || self.is_big(); }
Value is_true(const Arguments&, const Value& self) { return self.is_bool() && self.truth(); }
Value is_false(const Arguments&, const Value& self) { return self.is_bool() && !self.truth(); }
Value is_callable(const Arguments&, const Value& self) {
  return self.is_macro() || self.is_builtin() || self.is_object();
}
Value is_iterable(const Arguments&, const Value& self) {
  return self.is_string() || self.is_list() || self.is_mapping() || self.is_undefined() ||
         self.is_object();
}
Value is_sequence(const Arguments&, const Value& self) {
  return self.is_string() || self.is_indexed() || self.is_mapping() || self.is_undefined();
}
int64_t remainder(const Arguments& arguments, const Value& self, int64_t divisor) {
  if (!self.is_int() && !self.is_bool())
    arguments.fail("needs a whole number, found " + self.type_name());
  if (divisor == 0) arguments.fail("division by zero");
  return divisor == -1 ? 0 : self.integer() % divisor;
}
Value is_odd(const Arguments& arguments, const Value& self) {
  return remainder(arguments, self, 2) != 0;
}
Value is_even(const Arguments& arguments, const Value& self) {
  return remainder(arguments, self, 2) == 0;
}
Value is_divisible(const Arguments& arguments, const Value& self) {
  return remainder(arguments, self, arguments.integer(0)) == 0;
}
Value is_in(const Arguments& arguments, const Value& self) {
  return contains(arguments.place, self, arguments.value(0));
}
Value is_same(const Arguments& arguments, const Value& self) {
  return same(self, arguments.value(0));
}
template <std::string (*change)(std::string_view)>
Value has_case(const Arguments& arguments, const Value& self) {
  const std::string text = to_text(self, arguments.place);
  return change(text) == text && python::upper(text) != python::lower(text);
}
Value is_filter(const Arguments&, const Value& self) {
  return self.is_string() && find_filter(self.string()) != nullptr;
}
Value is_test(const Arguments&, const Value& self) {
  return self.is_string() && find_test(self.string()) != nullptr;
}

template <char first, bool or_equal>
Value compares(const Arguments& arguments, const Value& self) {
  std::string operation(1, first);
  if (or_equal) operation += '=';
  return apply_binary(arguments.place, operation, self, arguments.value(0));
}

}  // namespace
}  // namespace value_callee

std::span<const Callee> value_filters() {
  using namespace value_callee;
  static constexpr Callee filters[] = {
      {"length", "", 0, length},
      {"count", "", 0, length},
      {"default", "default_value boolean", 0, otherwise},
      {"d", "default_value boolean", 0, otherwise},
      {"tojson", "ensure_ascii indent separators sort_keys", 0, as_json},
      {"int", "default base", 0, as_integer},
      {"float", "default", 0, as_float},
      {"abs", "", 0, magnitude},
      {"round", "precision method", 0, rounded},
      {"attr", "name", 1, attribute},
  };
  return filters;
}

std::span<const Callee> value_tests() {
  using namespace value_callee;
  static constexpr Callee tests[] = {
      {"defined", "", 0, is_defined},
      {"undefined", "", 0, kind_is<&Value::is_undefined>},
      {"none", "", 0, kind_is<&Value::is_none>},
      {"string", "", 0, kind_is<&Value::is_string>},
      {"mapping", "", 0, kind_is<&Value::is_mapping>},
      {"boolean", "", 0, kind_is<&Value::is_bool>},
      {"float", "", 0, kind_is<&Value::is_float>},
      {"escaped", "", 0, kind_is<&Value::is_markup>},
      {"number", "", 0, is_number},
      {"integer", "", 0, is_integer},
      {"true", "", 0, is_true},
      {"false", "", 0, is_false},
      {"iterable", "", 0, is_iterable},
      {"sequence", "", 0, is_sequence},
      {"callable", "", 0, is_callable},
      {"odd", "", 0, is_odd},
      {"even", "", 0, is_even},
      {"divisibleby", "num", 1, is_divisible},
      {"in", "seq", 1, is_in},
      {"sameas", "other", 1, is_same},
      {"upper", "", 0, has_case<python::upper>},
      {"lower", "", 0, has_case<python::lower>},
      {"filter", "", 0, is_filter},
      {"test", "", 0, is_test},
      {"eq", "other", 1, compares<'=', true>},
      {"==", "other", 1, compares<'=', true>},
      {"equalto", "other", 1, compares<'=', true>},
      {"ne", "other", 1, compares<'!', true>},
      {"!=", "other", 1, compares<'!', true>},
      {"lt", "other", 1, compares<'<', false>},
      {"<", "other", 1, compares<'<', false>},
      {"lessthan", "other", 1, compares<'<', false>},
      {"le", "other", 1, compares<'<', true>},
      {"<=", "other", 1, compares<'<', true>},
      {"gt", "other", 1, compares<'>', false>},
      {">", "other", 1, compares<'>', false>},
      {"greaterthan", "other", 1, compares<'>', false>},
      {"ge", "other", 1, compares<'>', true>},
      {">=", "other", 1, compares<'>', true>},
  };
  return tests;
}

}  // namespace trireme::text::jinja
