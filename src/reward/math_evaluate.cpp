// Values of expressions: modulo primes, which is exact at any length, and in floating point.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "reward/math_sample.hpp"

namespace trireme::reward::math {
namespace {

constexpr int points = 3;

Sample constant_sample(const std::string& name, int point) {
  if (name == "infinity") return inexact(std::numeric_limits<long double>::infinity());
  if (name == "i") return inexact(Complex(0, 1));
  if (name == "e") return inexact(std::numbers::e_v<long double>);
  if (name == "gamma") return inexact(std::numbers::egamma_v<long double>);
  Sample out = symbol_sample("\\pi", point);  // of no algebraic number: as good as a symbol
  out.approximate = std::numbers::pi_v<long double>;
  return out;
}

bool close(Complex a, Complex b) {
  if (a == b) return true;
  const long double size = std::max(std::abs(a), std::abs(b));
  if (!std::isfinite(size)) return false;
  constexpr long double tolerance = 1e-15L;
  return std::abs(a - b) <= tolerance * std::max(size, 1e-3L);
}

}  // namespace

Sample evaluate(const Value& value, int point) {
  switch (value.kind) {
    case Kind::number: return number_sample(value.name);
    case Kind::symbol: return symbol_sample(value.name, point);
    case Kind::constant: return constant_sample(value.name, point);
    case Kind::add: {
      Sample total = whole_sample(0);
      for (const Term& part : value.parts) total = add(total, evaluate(*part, point));
      return total;
    }
    case Kind::multiply: {
      Sample total = whole_sample(value.name == "-" ? -1 : 1);
      for (const Term& part : value.parts) total = multiply(total, evaluate(*part, point));
      return total;
    }
    case Kind::percent:
      return multiply(evaluate(*value.parts[0], point),
                      power_sample(whole_sample(100), whole_sample(-1)));
    case Kind::power:
      return power_sample(evaluate(*value.parts[0], point), evaluate(*value.parts[1], point));
    case Kind::function: {
      std::vector<Sample> arguments;
      for (const Term& part : value.parts) arguments.push_back(evaluate(*part, point));
      return function_sample(value.name, arguments);
    }
    default: return undefined();
  }
}

bool equal_everywhere(const Value& a, const Value& b) {
  for (int point = 0; point < points; ++point) {
    const Sample x = evaluate(a, point), y = evaluate(b, point);
    if (!x.defined || !y.defined) return false;
    const bool equal = x.exact && y.exact
                           ? x.residues[0] == y.residues[0] && x.residues[1] == y.residues[1]
                           : close(x.approximate, y.approximate);
    if (!equal) return false;
  }
  return true;
}

bool proportional(const Value& a, const Value& b) {
  std::optional<Sample> first;
  for (int point = 0; point < points; ++point) {
    const Sample ratio =
        multiply(evaluate(a, point), power_sample(evaluate(b, point), whole_sample(-1)));
    if (!ratio.defined || ratio.approximate == Complex(0)) return false;
    if (!first) first = ratio;
    const bool equal = ratio.exact && first->exact ? ratio.residues[0] == first->residues[0] &&
                                                         ratio.residues[1] == first->residues[1]
                                                   : close(ratio.approximate, first->approximate);
    if (!equal) return false;
  }
  return true;
}

}  // namespace trireme::reward::math
