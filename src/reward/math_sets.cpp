#include "reward/math_sets.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace trireme::reward::math {
namespace {

using Real = long double;

struct NotReal {};

Real real_value(const Value& value) {
  const Sample sample = evaluate(value, 0);
  if (!is_constant(value) || !sample.defined || sample.approximate.imag() != 0) throw NotReal{};
  return sample.approximate.real();
}

bool same(Real a, Real b) {
  if (a == b) return true;
  return std::isfinite(a) && std::isfinite(b) &&
         std::abs(a - b) <= 1e-15L * std::max({std::abs(a), std::abs(b), Real{1}});
}

bool below(Real a, Real b) { return a < b && !same(a, b); }

// All ends of intervals and elements.
void add_ends(const Value& set, std::vector<Real>& ends) {
  switch (set.kind) {
    case Kind::interval:
    case Kind::finite_set:
      for (const Term& part : set.parts) ends.push_back(real_value(*part));
      return;
    case Kind::join:
    case Kind::intersection:
    case Kind::difference:
      for (const Term& part : set.parts) add_ends(*part, ends);
      return;
    case Kind::named_set:
      if (set.name != "R" && set.name != "empty") throw NotReal{};
      return;
    default: throw NotReal{};
  }
}

bool contains(const Value& set, Real x) {
  const auto part_contains = [x](const Term& part) { return contains(*part, x); };
  switch (set.kind) {
    case Kind::interval: {
      const Real from = real_value(*set.parts[0]), to = real_value(*set.parts[1]);
      const bool after = set.left_open ? below(from, x) : !below(x, from);
      const bool before = set.right_open ? below(x, to) : !below(to, x);
      return after && before;
    }
    case Kind::finite_set:
      return std::ranges::any_of(set.parts,
                                 [x](const Term& part) { return same(real_value(*part), x); });
    case Kind::join: return std::ranges::any_of(set.parts, part_contains);
    case Kind::intersection: return std::ranges::all_of(set.parts, part_contains);
    case Kind::difference: return contains(*set.parts[0], x) && !contains(*set.parts[1], x);
    default: return set.name == "R";
  }
}

// A point inside of each stretch between the ends, and the ends.
std::vector<Real> places_of(std::vector<Real> ends) {
  std::erase_if(ends, [](Real end) { return !std::isfinite(end); });
  std::ranges::sort(ends);
  std::vector<Real> places;
  for (size_t i = 0; i < ends.size(); ++i) {
    places.push_back(ends[i]);
    if (i + 1 < ends.size() && !same(ends[i], ends[i + 1]))
      places.push_back(ends[i] / 2 + ends[i + 1] / 2);
  }
  const Real low = ends.empty() ? 0 : ends.front(), high = ends.empty() ? 0 : ends.back();
  places.push_back(low - std::max<Real>(1, std::abs(low)));
  places.push_back(high + std::max<Real>(1, std::abs(high)));
  return places;
}

Term half_line(const Term& end, bool open, bool up) {
  const Term infinity = make(Kind::constant, "infinity");
  Value value;
  value.kind = Kind::interval;
  value.parts = up ? std::vector<Term>{end, infinity} : std::vector<Term>{negative(infinity), end};
  value.left_open = up ? open : true;
  value.right_open = up ? true : open;
  return std::make_shared<const Value>(std::move(value));
}

// Of one relation.
Term solutions_of(const Value& relation) {
  const Value &left = *relation.parts[0], &right = *relation.parts[1];
  const bool symbol_left = left.kind == Kind::symbol && is_constant(right);
  const bool symbol_right = right.kind == Kind::symbol && is_constant(left);
  if (!symbol_left && !symbol_right) return nullptr;
  const Term& end = relation.parts[symbol_left ? 1 : 0];
  if (relation.name == "=") return make(Kind::finite_set, "", {end});
  if (relation.name == "!=")
    return make(Kind::difference, "",
                {make(Kind::named_set, "R"), make(Kind::finite_set, "", {end})});
  const bool greater = relation.name.starts_with('>');
  return half_line(end, relation.name.size() == 1, greater == symbol_left);
}

}  // namespace

bool is_constant(const Value& value) {
  return value.kind != Kind::symbol && !value.name.starts_with("function ") &&
         std::ranges::all_of(value.parts, [](const Term& part) { return is_constant(*part); });
}

bool is_undefined(const Value& value) {
  const bool expression = value.kind <= Kind::function;
  return expression && is_constant(value) && !evaluate(value, 0).defined;
}

bool same_real_set(const Value& a, const Value& b) {
  try {
    std::vector<Real> ends;
    add_ends(a, ends);
    add_ends(b, ends);
    return std::ranges::all_of(places_of(std::move(ends)),
                               [&](Real x) { return contains(a, x) == contains(b, x); });
  } catch (const NotReal&) { return false; }
}

Term solution_set(const Value& relation) {
  if (relation.kind == Kind::chain) {
    std::vector<Term> sets;
    for (const Term& link : relation.parts) {
      const Term set = solutions_of(*link);
      if (!set) return nullptr;
      sets.push_back(set);
    }
    return make(Kind::intersection, "", std::move(sets));
  }
  for (const Term& side : relation.parts) {  // x > -infinity says nothing to sympy
    if (is_constant(*side) && std::isinf(evaluate(*side, 0).approximate.real())) return nullptr;
  }
  return solutions_of(relation);
}

}  // namespace trireme::reward::math
