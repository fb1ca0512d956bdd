#include <algorithm>
#include <cmath>

#include "text/jinja_eval.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

namespace {

[[noreturn]] void unsuited(const Place& place, const Expression& e, const Value& left,
                           const Value& right) {
  place.fail(
      base::text("'", e.text, "' does not work on ", left.type_name(), " and ", right.type_name()));
}

// Python's: the remainder is exact and has the sign of the divisor, the quotient follows from it.
double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}
double float_floor_div(double a, double b) {
  const double rest = std::fmod(a, b);
  const double quotient =
      (a - rest) / b - (rest != 0 && (b < 0) != (rest < 0) ? 1 : 0);  // an integer but for rounding
  return quotient == 0 ? std::copysign(0.0, a / b) : std::round(quotient);
}

// b is neither 0 nor, where a is the smallest number, -1.
int64_t floor_div(int64_t a, int64_t b) {
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}
int64_t floor_mod(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value integer_arithmetic(const Place& place, const Expression& e, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (e.text == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (e.text == "-" || e.kind == Expression::Kind::negate) {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (e.text == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else {
    if (b == 0) place.fail("division by zero");
    overflow = b == -1 && a == INT64_MIN;
    if (!overflow) result = e.text == "//" ? floor_div(a, b) : floor_mod(a, b);
  }
  if (overflow) place.fail("a number beyond 64 bits");
  return result;
}

Value arithmetic(const Place& place, const Expression& e, const Value& left, const Value& right) {
  if (!left.is_float() && !right.is_float() && e.text != "/")
    return integer_arithmetic(place, e, left.integer(), right.integer());
  const double a = left.number();
  const double b = right.number();
  if (e.text == "+") return a + b;
  if (e.text == "-") return a - b;
  if (e.text == "*") return a * b;
  if (b == 0) place.fail("division by zero");
  if (e.text == "/") return a / b;
  return e.text == "//" ? float_floor_div(a, b) : float_modulo(a, b);
}

bool contains(const Place& place, const Expression& e, const Value& item, const Value& container) {
  if (container.is_string()) {
    if (!item.is_string()) unsuited(place, e, item, container);
    place.charge_text(container.string().size());
    return find_text(container.string(), item.string()) != std::string::npos;
  }
  if (container.is_list()) {
    return std::any_of(container.items().begin(), container.items().end(),
                       [&](const Value& other) { return equal(other, item, place); });
  }
  if (container.is_dict()) place.charge_search(container.dict().members.size());
  if (container.is_dict()) return item.is_string() && container.find(item.string()) != nullptr;
  if (container.is_undefined()) return false;
  unsuited(place, e, item, container);
}

bool ordered(const Place& place, const Expression& e, const Value& left, const Value& right) {
  int sign = 0;  // of left - right
  if (left.is_number() && right.is_number() && !left.is_float() && !right.is_float()) {
    sign = left.integer() < right.integer() ? -1 : left.integer() > right.integer() ? 1 : 0;
  } else if (left.is_number() && right.is_number()) {
    sign = left.number() < right.number() ? -1 : left.number() > right.number() ? 1 : 0;
  } else if (left.is_string() && right.is_string()) {
    place.charge_text(std::min(left.string().size(), right.string().size()));
    sign = left.string().compare(right.string());  // UTF-8 sorts as its code points do
  } else {
    unsuited(place, e, left, right);
  }
  if (e.text == "<") return sign < 0;
  if (e.text == "<=") return sign <= 0;
  return e.text == ">" ? sign > 0 : sign >= 0;
}

std::string plain_text(const Place& place, const Value& value) {
  if (value.is_string()) place.charge_text(value.string().size());
  std::string problem;
  std::string text = to_text(value, problem);
  if (!problem.empty()) place.fail(problem);
  return text;
}

std::string joined(const Place& place, const std::string& left, const std::string& right) {
  place.charge_text(left.size() + right.size());
  return left + right;
}

// Python's rules for the bounds of a slice of `size` items.
struct Range {
  int64_t from, to, step;
};
Range slice_range(const Place& place, int64_t size, const Value& from, const Value& to,
                  const Value& step) {
  for (const Value* bound : {&from, &to, &step}) {
    if (!bound->is_none() && !bound->is_int())
      place.fail("a bound of a slice must be a whole number, found " + bound->type_name());
  }
  Range range{0, 0, step.is_none() ? 1 : step.integer()};
  if (range.step == 0) place.fail("a slice with step 0");
  const bool forward = range.step > 0;
  const int64_t low = forward ? 0 : -1;
  const int64_t high = forward ? size : size - 1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t index = value.integer() < 0 ? value.integer() + size : value.integer();
    return std::clamp(index, low, high);
  };
  range.from = bound(from, forward ? low : high);
  range.to = bound(to, forward ? high : low);
  return range;
}

template <class Sequence>
Sequence take(const Place& place, const Sequence& items, const Range& range) {
  Sequence taken;
  for (int64_t i = range.from; range.step > 0 ? i < range.to : i > range.to;) {
    if constexpr (std::is_same_v<Sequence, List>) place.charge();
    taken.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, range.step, &i)) break;
  }
  return taken;
}

}  // namespace

Value apply_binary(const Place& place, const Expression& e, const Value& left, const Value& right) {
  const std::string& operation = e.text;
  if (operation == "==") return equal(left, right, place);
  if (operation == "!=") return !equal(left, right, place);
  if (operation == "in") return contains(place, e, left, right);
  if (operation == "not in") return !contains(place, e, left, right);
  if (operation == "~") return joined(place, plain_text(place, left), plain_text(place, right));
  if (operation.starts_with('<') || operation.starts_with('>'))
    return ordered(place, e, left, right);
  if (left.is_number() && right.is_number()) return arithmetic(place, e, left, right);
  if (operation == "+" && left.is_string() && right.is_string())
    return joined(place, left.string(), right.string());
  if (operation == "+" && left.is_list() && right.is_list()) {
    place.charge(left.items().size() + right.items().size());
    List both = left.items();
    both.insert(both.end(), right.items().begin(), right.items().end());
    return Value::list(std::move(both));
  }
  unsuited(place, e, left, right);
}

Value subscript(const Place& place, const Value& object, const Value& key) {
  if (object.is_undefined()) place.fail("an item of " + object.type_name() + " was asked for");
  if (key.is_string()) {
    if (object.is_dict()) place.charge_search(object.dict().members.size());
    const Value* found = object.find(key.string());
    return found != nullptr ? *found : Value(Undefined::of(key.string()));
  }
  if (!key.is_int())
    place.fail("an index must be a whole number or a text, found " + key.type_name());
  const auto item = [&](const auto& items) -> int64_t {
    const auto size = static_cast<int64_t>(items.size());
    const int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
    return index >= 0 && index < size ? index : -1;
  };
  if (object.is_list()) {
    const int64_t index = item(object.items());
    return index < 0 ? Value(Undefined{base::text("item ", key.integer())})
                     : object.items()[static_cast<size_t>(index)];
  }
  if (object.is_string()) {
    place.charge_text(object.string().size());
    const std::u32string characters = code_points(object.string());
    const int64_t index = item(characters);
    return index < 0 ? Value(Undefined{base::text("item ", key.integer())})
                     : Value(from_code_points({&characters[static_cast<size_t>(index)], 1}));
  }
  return Undefined{base::text("item ", key.integer())};
}

Value slice(const Place& place, const Value& object, const Value& from, const Value& to,
            const Value& step) {
  if (object.is_list()) {
    const auto size = static_cast<int64_t>(object.items().size());
    return Value::list(take(place, object.items(), slice_range(place, size, from, to, step)));
  }
  if (object.is_string()) {
    place.charge_text(object.string().size());
    const std::u32string characters = code_points(object.string());
    const auto size = static_cast<int64_t>(characters.size());
    return from_code_points(take(place, characters, slice_range(place, size, from, to, step)));
  }
  place.fail("a slice of " + object.type_name() + " was asked for");
}

}  // namespace trireme::text::jinja
