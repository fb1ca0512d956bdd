#include "reward/math_compare.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "reward/latex_text.hpp"
#include "reward/math_sets.hpp"
#include "trireme/base/decimal.hpp"

namespace trireme::reward::math {
namespace {

bool is_relation(const Value& value) {
  return value.kind == Kind::relation || value.kind == Kind::chain;
}

bool is_equation(const Value& value) {
  if (value.kind == Kind::relation) return value.name == "=";
  return value.kind == Kind::chain &&
         std::ranges::all_of(value.parts, [](const Term& link) { return link->name == "="; });
}

const Term& first_side(const Value& value) {
  return value.kind == Kind::chain ? value.parts.front()->parts[0] : value.parts[0];
}

const Term& last_side(const Value& value) {
  return value.kind == Kind::chain ? value.parts.back()->parts[1] : value.parts[1];
}

bool only_symbols(const Value& value) {
  if (value.kind == Kind::symbol) return true;
  if (value.kind == Kind::power && value.parts[1]->kind == Kind::number) return false;
  return !value.parts.empty() &&
         std::ranges::all_of(value.parts, [](const Term& part) { return only_symbols(*part); });
}

bool is_assignment(const Value& value) {
  return is_equation(value) && only_symbols(*first_side(value));
}

// x = 1 + 2 = 3 as x = 3
Term shortened(const Term& value) {
  if (value->kind != Kind::chain || !is_assignment(*value)) return value;
  return make(Kind::relation, "=", {first_side(*value), last_side(*value)});
}

// ---- numbers ----

const Value& without_percent(const Value& value) {
  return value.kind == Kind::percent ? *value.parts[0] : value;
}

// A literal's own digits; nullopt for others.
std::optional<base::Decimal> digits_of(const Value& value) {
  const bool minus = value.kind == Kind::multiply && value.name == "-";
  const Value& literal = minus ? *value.parts[0] : value;
  if (literal.kind != Kind::number) return std::nullopt;
  auto decimal = base::Decimal::parse(literal.name);
  if (decimal && minus && !decimal->digits.empty()) decimal->negative = !decimal->negative;
  return decimal;
}

constexpr int64_t compared_places = 6;  // to which numbers with a full stop are compared

bool equal_when_rounded(const Value& a, const Value& b) {
  const auto left = digits_of(a), right = digits_of(b);
  if (left && right) return left->rounded(compared_places) == right->rounded(compared_places);
  const Sample x = evaluate(a, 0), y = evaluate(b, 0);
  if (!x.defined || !y.defined || !is_constant(a) || !is_constant(b)) return false;
  if (x.approximate.imag() != 0 || y.approximate.imag() != 0) return false;
  const long double u = x.approximate.real(), v = y.approximate.real();
  if (std::abs(u) > 1e12L || std::abs(v) > 1e12L) return false;
  return std::nearbyint(u * 1e6L) == std::nearbyint(v * 1e6L);
}

bool equal_expressions(const Value& label, const Value& answer) {
  if (equal_everywhere(label, answer)) return true;
  const Value &a = without_percent(label), &b = without_percent(answer);
  if (!a.is_number() && !b.is_number()) return false;
  if (a.is_decimal || b.is_decimal) return equal_when_rounded(label, answer);
  // 9 % and 9
  return a.is_integer && b.is_integer && equal_everywhere(a, b);
}

// ---- words ----

// abc as a product of letters is the word abc.
std::optional<std::string> letters_of(const Value& value) {
  if (value.kind == Kind::symbol) return lower(value.name);
  if (value.kind == Kind::constant && value.name == "e") return "e";
  if (value.kind != Kind::multiply) return std::nullopt;
  std::string word;
  for (const Term& part : value.parts) {
    if (part->kind == Kind::multiply) return std::nullopt;
    const auto letters = letters_of(*part);
    if (!letters) return std::nullopt;
    word += *letters;
  }
  return word;
}

// A whole number or a fraction as sympy prints it.
std::optional<std::string> printed(const Value& value) {
  if (!value.is_rational) return std::nullopt;
  if (value.is_integer) {
    const auto digits = digits_of(value);
    if (!digits) return std::nullopt;
    std::string text = digits->digits;
    text.resize(static_cast<size_t>(digits->exponent), '0');
    return (digits->negative ? "-" : "") + (text.empty() ? "0" : text);
  }
  for (int64_t bottom = 2; bottom <= 1000; ++bottom) {
    const auto top = evaluate(*product(integer(bottom), std::make_shared<const Value>(value)), 0);
    if (!(std::abs(top.approximate.real()) < 1e15L)) return std::nullopt;
    const auto whole = std::llround(top.approximate.real());
    if (top.exact && equal_everywhere(value, *quotient(integer(whole), integer(bottom))))
      return std::to_string(whole) + "/" + std::to_string(bottom);
  }
  return std::nullopt;
}

bool equal_words(const Value& a, const Value& b) {
  if (const auto text = printed(b); text && a.kind == Kind::symbol) return a.name == *text;
  if (const auto text = printed(a); text && b.kind == Kind::symbol) return b.name == *text;
  const auto left = letters_of(a), right = letters_of(b);
  return left && right && *left == *right;
}

// ---- sets and tuples ----

bool all_equal(const std::vector<Term>& label, const std::vector<Term>& answer) {
  return std::equal(label.begin(), label.end(), answer.begin(), answer.end(), equal_values);
}

// In any order.
bool same_elements(const std::vector<Term>& label, const std::vector<Term>& answer) {
  if (label.size() != answer.size()) return false;
  std::vector<bool> used(answer.size(), false);
  return std::ranges::all_of(label, [&](const Term& wanted) {
    for (size_t i = 0; i < answer.size(); ++i) {
      if (used[i] || !equal_values(wanted, answer[i])) continue;
      used[i] = true;
      return true;
    }
    return false;
  });
}

// (1, 2) is a pair where it is compared with a list.
std::vector<Term> as_list(const Term& value) {
  const bool pair = value->kind == Kind::interval && value->left_open && value->right_open;
  if (value->kind == Kind::tuple || value->kind == Kind::finite_set || pair) return value->parts;
  return {};
}

bool equal_sets(const Term& label, const Term& answer) {
  const auto boxed = [](const Term& value) {
    return value->is_set() || value->kind == Kind::tuple ? value
                                                         : make(Kind::finite_set, "", {value});
  };
  const Term a = boxed(label), b = boxed(answer);
  if (a->kind == Kind::interval && b->kind == Kind::interval)
    return a->left_open == b->left_open && a->right_open == b->right_open &&
           all_equal(a->parts, b->parts);
  if (identical(*a, *b)) return true;
  if (a->is_set() && b->is_set() && same_real_set(*a, *b)) return true;
  const auto left = as_list(a), right = as_list(b);
  if (left.empty() || right.empty()) return false;
  return a->kind == Kind::finite_set ? same_elements(left, right) : all_equal(left, right);
}

// ---- relations ----

std::string_view turned(std::string_view operation) {
  if (operation == "<") return ">";
  if (operation == ">") return "<";
  if (operation == "<=") return ">=";
  if (operation == ">=") return "<=";
  return operation;
}

Term difference_of(const Value& relation) {
  return sum(relation.parts[0], negative(relation.parts[1]));
}

std::set<std::string> symbols_of(const Value& value) {
  std::set<std::string> names;
  if (value.kind == Kind::symbol) names.insert(value.name);
  for (const Term& part : value.parts) names.merge(symbols_of(*part));
  return names;
}

bool equal_relations(const Value& label, const Value& answer) {
  if (label.kind == Kind::chain && answer.kind == Kind::chain)
    return std::equal(label.parts.begin(), label.parts.end(), answer.parts.begin(),
                      answer.parts.end(),
                      [](const Term& a, const Term& b) { return equal_relations(*a, *b); });
  if (label.kind == Kind::chain || answer.kind == Kind::chain) return false;
  const auto sided = [](const Value& relation) {
    return std::ranges::none_of(relation.parts, [](const Term& side) {
      return side->is_set() || side->kind == Kind::tuple;
    });
  };
  if (sided(label) != sided(answer)) return false;
  if (!sided(label)) return label.name == answer.name && all_equal(label.parts, answer.parts);
  const Term a = difference_of(label), b = difference_of(answer);
  if (label.name == answer.name && equal_values(a, b)) return true;
  if (turned(label.name) == answer.name && equal_values(a, negative(b))) return true;
  // Equations of one unknown are not solved: 3x = 6 is not x = 2.
  return label.name == "=" && answer.name == "=" && symbols_of(*a).size() > 1 &&
         proportional(*a, *b);
}

}  // namespace

bool equal_values(const Term& label_as_it_is, const Term& answer_as_it_is) {
  Term label = shortened(label_as_it_is), answer = shortened(answer_as_it_is);
  if (is_equation(*answer) && !is_equation(*label)) {
    answer = last_side(*answer);
  } else if (is_assignment(*label) && !is_equation(*answer)) {
    label = last_side(*label);
  }
  if (is_relation(*label) && answer->is_set()) {
    if (const Term solutions = solution_set(*label)) label = solutions;
  }
  if (identical(*label, *answer)) return !is_undefined(*label);
  if (is_relation(*label) && is_relation(*answer)) return equal_relations(*label, *answer);
  const auto many = [](const Value& v) { return v.is_set() || v.kind == Kind::tuple; };
  if (many(*label) || many(*answer)) return equal_sets(label, answer);
  if (label->kind == Kind::symbol || answer->kind == Kind::symbol)
    return equal_words(*label, *answer);
  if (label->kind == Kind::matrix || answer->kind == Kind::matrix)
    return label->kind == answer->kind && label->columns == answer->columns &&
           all_equal(label->parts, answer->parts);
  return equal_expressions(*label, *answer);
}

}  // namespace trireme::reward::math
