#include <algorithm>
#include <cmath>

#include "text/jinja_call.hpp"
#include "text/python_text.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

namespace {

[[noreturn]] void unsuited(const Place& place, std::string_view operation, const Value& left,
                           const Value& right) {
  place.fail(base::text("'", operation, "' does not work on ", left.type_name(), " and ",
                        right.type_name()));
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

Value integer_arithmetic(const Place& place, std::string_view operation, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (operation == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (operation == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (operation == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else {
    if (b == 0) place.fail("division by zero");
    overflow = b == -1 && a == INT64_MIN;
    if (!overflow) result = operation == "//" ? floor_div(a, b) : floor_mod(a, b);
  }
  if (overflow) place.fail("a number beyond 64 bits");
  return result;
}

// a ** b of whole numbers, b not negative
Value integer_power(const Place& place, int64_t a, int64_t b) {
  if (b > 62 && (a < -1 || a > 1)) place.fail("a number beyond 64 bits");
  if (b > 62) b = 62 + b % 2;  // 1, 0 and -1
  int64_t result = 1;
  for (; b > 0; --b) {
    if (__builtin_mul_overflow(result, a, &result)) place.fail("a number beyond 64 bits");
  }
  return result;
}

Value power(const Place& place, const Value& left, const Value& right) {
  if (!left.is_float() && !right.is_float() && right.integer() >= 0)
    return integer_power(place, left.integer(), right.integer());
  const double a = left.number(), b = right.number();
  if (a == 0 && b < 0) place.fail("0 to a negative power");
  if (a < 0 && b != std::floor(b)) place.fail("a root of a negative number");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
    place.fail("a number out of range");
  return result;
}

Value arithmetic(const Place& place, std::string_view operation, const Value& left,
                 const Value& right) {
  if (operation == "**") return power(place, left, right);
  if (!left.is_float() && !right.is_float() && operation != "/")
    return integer_arithmetic(place, operation, left.integer(), right.integer());
  const double a = left.number();
  const double b = right.number();
  if (operation == "+") return a + b;
  if (operation == "-") return a - b;
  if (operation == "*") return a * b;
  if (b == 0) place.fail("division by zero");
  if (operation == "/") return a / b;
  return operation == "//" ? float_floor_div(a, b) : float_modulo(a, b);
}

std::string joined(const Place& place, const std::string& left, const std::string& right) {
  place.charge_text(left.size() + right.size());
  return left + right;
}

// Two texts, of which one that is Markup has the other escaped.
Value added_texts(const Place& place, const Value& left, const Value& right) {
  if (!left.is_markup() && !right.is_markup()) return joined(place, left.string(), right.string());
  const auto escaped = [&](const Value& value) {
    return value.is_markup() ? value.string() : python::html_escaped(value.string());
  };
  return Value::markup(joined(place, escaped(left), escaped(right)));
}

Value added_lists(const Place& place, const Value& left, const Value& right) {
  place.charge(left.items().size() + right.items().size());
  List both = left.items();
  both.insert(both.end(), right.items().begin(), right.items().end());
  return Value::list(std::move(both), left.form());
}

Value repeated(const Place& place, const Value& value, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  const uint64_t size = value.is_string() ? value.string().size() : value.items().size();
  uint64_t total = 0;
  if (__builtin_mul_overflow(count, size, &total)) total = UINT64_MAX;
  if (value.is_string()) {
    place.charge_text(total);
    std::string out;
    for (uint64_t i = 0; size > 0 && i < count; ++i) out += value.string();
    return value.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
  }
  place.charge(std::min<uint64_t>(total, most_steps + 1));
  List out;
  for (uint64_t i = 0; size > 0 && i < count; ++i)
    out.insert(out.end(), value.items().begin(), value.items().end());
  return Value::list(std::move(out), value.form());
}

bool is_sequence(const Value& value) {
  return value.is_list() && (value.form() == Form::list || value.is_tuple());
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

bool contains(const Place& place, const Value& item, const Value& container) {
  if (container.is_string()) {
    if (!item.is_string()) unsuited(place, "in", item, container);
    place.charge_text(container.string().size());
    return find_text(container.string(), item.string()) != std::string::npos;
  }
  if (container.is_list()) {
    return std::ranges::any_of(iterate(place, container),
                               [&](const Value& other) { return equal(other, item, place); });
  }
  if (container.is_dict()) place.charge_search(container.dict().members.size());
  if (container.is_mapping()) return item.is_string() && container.find(item.string()) != nullptr;
  if (container.is_undefined()) return false;
  unsuited(place, "in", item, container);
}

int compare(const Place& place, std::string_view operation, const Value& left, const Value& right) {
  const auto sign = [](const auto& a, const auto& b) { return a < b ? -1 : b < a ? 1 : 0; };
  if (left.is_number() && right.is_number()) {
    if (!left.is_float() && !right.is_float()) return sign(left.integer(), right.integer());
    return sign(left.number(), right.number());
  }
  if (left.is_string() && right.is_string()) {
    place.charge_text(std::min(left.string().size(), right.string().size()));
    return sign(left.string(), right.string());  // UTF-8 sorts as its code points do
  }
  const bool lists = is_sequence(left) && is_sequence(right) && left.is_tuple() == right.is_tuple();
  if (!lists) unsuited(place, operation, left, right);
  const size_t both = std::min(left.items().size(), right.items().size());
  for (size_t i = 0; i < both; ++i) {
    if (!equal(left.items()[i], right.items()[i], place))
      return compare(place, operation, left.items()[i], right.items()[i]);
  }
  return sign(left.items().size(), right.items().size());
}

Value apply_binary(const Place& place, const std::string& operation, const Value& left,
                   const Value& right) {
  if (operation == "==") return equal(left, right, place);
  if (operation == "!=") return !equal(left, right, place);
  if (operation == "in") return contains(place, left, right);
  if (operation == "not in") return !contains(place, left, right);
  if (operation == "~") return joined(place, to_text(left, place), to_text(right, place));
  if (operation[0] == '<' || operation[0] == '>') {
    const bool number = left.is_number() && right.is_number();
    if (number && (std::isnan(left.number()) || std::isnan(right.number()))) return false;
    const int sign = compare(place, operation, left, right);
    if (operation.size() == 2 && sign == 0) return true;
    return operation[0] == '<' ? sign < 0 : sign > 0;
  }
  if (operation == "%" && left.is_string()) return percent_format(place, left.string(), right);
  if (left.is_number() && right.is_number()) return arithmetic(place, operation, left, right);
  if (operation == "+" && left.is_string() && right.is_string())
    return added_texts(place, left, right);
  if (operation == "+" && is_sequence(left) && is_sequence(right) &&
      left.is_tuple() == right.is_tuple())
    return added_lists(place, left, right);
  const auto repeats = [](const Value& value, const Value& times) {
    return (value.is_string() || is_sequence(value)) && (times.is_int() || times.is_bool());
  };
  if (operation == "*" && repeats(left, right)) return repeated(place, left, right.integer());
  if (operation == "*" && repeats(right, left)) return repeated(place, right, left.integer());
  unsuited(place, operation, left, right);
}

namespace {

// The index of an item, counted from the end where it is negative; -1 where there is none.
int64_t item_index(size_t count, int64_t index) {
  const auto size = static_cast<int64_t>(count);
  if (index < 0) index += size;
  return index >= 0 && index < size ? index : -1;
}

}  // namespace

Value subscript(const Place& place, const Value& object, const Value& key) {
  if (object.is_undefined()) place.fail("an item of " + object.type_name() + " was asked for");
  if (key.is_string()) {
    if (object.is_mapping()) {
      place.charge_search(object.dict().members.size());
      if (const Value* const found = object.find(key.string())) return *found;
      return Undefined::of(key.string());
    }
    return has_method(object, key.string()) ? Value(Builtin::method)
                                            : attribute_of(place, object, key.string());
  }
  const auto none = [&] { return Undefined{"item " + to_text(key, place)}; };
  if (!key.is_int() && !key.is_bool()) return none();
  if (object.is_indexed()) {
    const int64_t index = item_index(object.items().size(), key.integer());
    return index < 0 ? Value(none()) : object.items()[static_cast<size_t>(index)];
  }
  if (!object.is_string()) return none();
  place.charge_text(object.string().size());
  const std::u32string characters = code_points(object.string());
  const int64_t index = item_index(characters.size(), key.integer());
  return index < 0 ? Value(none())
                   : Value(from_code_points({&characters[static_cast<size_t>(index)], 1}));
}

Value slice(const Place& place, const Value& object, const Value& from, const Value& to,
            const Value& step) {
  if (object.is_indexed()) {
    const auto size = static_cast<int64_t>(object.items().size());
    const Form form = object.form() == Form::group ? Form::tuple : object.form();
    return Value::list(take(place, object.items(), slice_range(place, size, from, to, step)), form);
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
