#include "reward/math_value.hpp"

#include <algorithm>
#include <charconv>

namespace trireme::reward::math {

Term make(Kind kind, std::string name, std::vector<Term> parts) {
  Value value;
  value.kind = kind;
  value.name = std::move(name);
  value.parts = std::move(parts);
  return std::make_shared<const Value>(std::move(value));
}

namespace {

Term with_kinds(Value value, bool integer, bool rational, bool decimal) {
  value.is_integer = integer;
  value.is_rational = rational;
  value.is_decimal = decimal;
  return std::make_shared<const Value>(std::move(value));
}

void add_parts(std::vector<Term>& parts, Kind kind, const Term& value) {
  if (value->kind == kind && !value->is_number()) {
    parts.insert(parts.end(), value->parts.begin(), value->parts.end());
  } else {
    parts.push_back(value);
  }
}

Term joined(Kind kind, const Term& left, const Term& right) {
  std::vector<Term> parts;
  add_parts(parts, kind, left);
  add_parts(parts, kind, right);
  return make(kind, "", std::move(parts));
}

}  // namespace

Term number(std::string digits) {
  const bool whole = digits.find_first_not_of("0123456789") == std::string::npos;
  Value value;
  value.name = std::move(digits);
  return with_kinds(std::move(value), whole, whole, !whole);
}

Term integer(int64_t value) {
  const Term digits = number(std::to_string(value < 0 ? -value : value));
  return value < 0 ? negative(digits) : digits;
}

Term sum(const Term& left, const Term& right) {
  // A whole number and a fraction: 3 1/2.
  return joined(Kind::add, left, right);
}

Term product(const Term& left, const Term& right) { return joined(Kind::multiply, left, right); }

Term quotient(const Term& top, const Term& bottom) {
  Value value;
  value.kind = Kind::multiply;
  value.parts = {top, power(bottom, integer(-1))};
  if (!top->is_integer || !bottom->is_integer)
    return std::make_shared<const Value>(std::move(value));
  const auto a = evaluate(*top, 0).whole, b = evaluate(*bottom, 0).whole;
  const bool whole = a && b && *b != 0 && *a % *b == 0;
  return with_kinds(std::move(value), whole, true, false);
}

Term negative(const Term& value) {
  if (!value->is_number()) return joined(Kind::multiply, integer(-1), value);
  Value out;
  out.kind = Kind::multiply;
  out.name = "-";
  out.parts = {value};
  return with_kinds(std::move(out), value->is_integer, value->is_rational, value->is_decimal);
}

Term power(const Term& base, const Term& exponent) {
  return make(Kind::power, "", {base, exponent});
}

bool identical(const Value& a, const Value& b) {
  return a.kind == b.kind && a.name == b.name && a.left_open == b.left_open &&
         a.right_open == b.right_open && a.columns == b.columns &&
         std::ranges::equal(a.parts, b.parts,
                            [](const Term& x, const Term& y) { return identical(*x, *y); });
}

}  // namespace trireme::reward::math
