// Functions that answers name.
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>

#include "reward/math_sample.hpp"

namespace trireme::reward::math {
namespace {

Complex real_function(const std::function<long double(long double)>& f, Complex value) {
  return value.imag() == 0 ? f(value.real()) : std::nanl("");
}

Complex inverse_of(Complex value) { return Complex(1) / value; }

struct NamedFunction {
  std::string_view name;
  Complex (*value)(Complex);
};

constexpr NamedFunction functions[] = {
    {"sin", [](Complex x) { return std::sin(x); }},
    {"cos", [](Complex x) { return std::cos(x); }},
    {"tan", [](Complex x) { return std::tan(x); }},
    {"csc", [](Complex x) { return inverse_of(std::sin(x)); }},
    {"sec", [](Complex x) { return inverse_of(std::cos(x)); }},
    {"cot", [](Complex x) { return inverse_of(std::tan(x)); }},
    {"asin", [](Complex x) { return std::asin(x); }},
    {"acos", [](Complex x) { return std::acos(x); }},
    {"atan", [](Complex x) { return std::atan(x); }},
    {"acsc", [](Complex x) { return std::asin(inverse_of(x)); }},
    {"asec", [](Complex x) { return std::acos(inverse_of(x)); }},
    {"acot", [](Complex x) { return std::atan(inverse_of(x)); }},
    {"sinh", [](Complex x) { return std::sinh(x); }},
    {"cosh", [](Complex x) { return std::cosh(x); }},
    {"tanh", [](Complex x) { return std::tanh(x); }},
    {"asinh", [](Complex x) { return std::asinh(x); }},
    {"acosh", [](Complex x) { return std::acosh(x); }},
    {"atanh", [](Complex x) { return std::atanh(x); }},
    {"exp",
     [](Complex x) {
       return x == Complex(1) ? Complex(std::numbers::e_v<long double>) : std::exp(x);
     }},
    {"ln", [](Complex x) { return x == Complex(0) ? Complex(std::nanl("")) : std::log(x); }},
    {"abs", [](Complex x) { return Complex(std::abs(x)); }},
    {"floor",
     [](Complex x) { return real_function([](long double v) { return std::floor(v); }, x); }},
    {"ceil",
     [](Complex x) { return real_function([](long double v) { return std::ceil(v); }, x); }},
    {"factorial",
     [](Complex x) { return real_function([](long double v) { return std::tgamma(v + 1); }, x); }},
};

// Functions of whole numbers, exactly.
std::optional<Sample> whole_function(std::string_view name, const std::vector<Sample>& arguments) {
  for (const Sample& argument : arguments) {
    if (!argument.whole) return std::nullopt;
  }
  const int64_t first = *arguments.front().whole;
  if (name == "abs") return whole_sample(first < 0 ? -first : first);
  if (name == "floor" || name == "ceil") return arguments.front();
  if (name == "factorial") {
    if (first < 0 || first > 1000) return std::nullopt;
    Sample out = whole_sample(1);
    for (int64_t i = 2; i <= first; ++i) out = multiply(out, whole_sample(i));
    return out;
  }
  if (name == "gcd" || name == "lcm") {
    int64_t value = first;
    for (size_t i = 1; i < arguments.size(); ++i) {
      const int64_t next = *arguments[i].whole, common = std::gcd(value, next);
      if (name == "gcd" || common == 0) {
        value = common;
        continue;
      }
      const auto multiple = small(magnitude_of(value / common) * magnitude_of(next), false);
      if (!multiple) return std::nullopt;
      value = *multiple;
    }
    return whole_sample(value);
  }
  if (name == "mod" && arguments.size() == 2 && *arguments[1].whole != 0) {
    const int64_t by = *arguments[1].whole, rest = first % by;
    return whole_sample(rest != 0 && (rest < 0) != (by < 0) ? rest + by : rest);
  }
  return std::nullopt;
}

Sample binomial(const Sample& n, const Sample& k) {
  if (!n.whole || !k.whole || *k.whole > 1000) {
    const Complex a = n.approximate, b = k.approximate;
    if (a.imag() != 0 || b.imag() != 0) return undefined();
    return inexact(std::exp(std::lgamma(a.real() + 1) - std::lgamma(b.real() + 1) -
                            std::lgamma(a.real() - b.real() + 1)));
  }
  if (*k.whole < 0) return whole_sample(0);
  Sample out = whole_sample(1);
  for (int64_t i = 1; i <= *k.whole; ++i) {
    const Sample factor = whole_sample(*n.whole - *k.whole + i);
    const auto before = out.whole;
    out = multiply(out, multiply(factor, power_sample(whole_sample(i), whole_sample(-1))));
    out.whole.reset();
    if (before && factor.whole)
      out.whole = small(magnitude_of(*before) * magnitude_of(*factor.whole) / static_cast<Wide>(i),
                        (*before < 0) != (*factor.whole < 0));
  }
  return out;
}

// A function that is known by its name only: some smooth function of that name.
Sample unknown_function(std::string_view name, const std::vector<Sample>& arguments) {
  Complex value = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].defined) return undefined();
    const Complex slope = symbol_sample(name, static_cast<int>(2 * i) + 20).approximate;
    const Complex shift = symbol_sample(name, static_cast<int>(2 * i) + 21).approximate;
    value += std::cos(arguments[i].approximate * slope + shift);
  }
  return inexact(value);
}

Sample extreme(std::string_view name, const std::vector<Sample>& arguments) {
  const Sample* best = &arguments.front();
  for (const Sample& argument : arguments) {
    if (!argument.defined || argument.approximate.imag() != 0) return undefined();
    const bool less = argument.approximate.real() < best->approximate.real();
    const bool more = argument.approximate.real() > best->approximate.real();
    if (name == "max" ? more : less) best = &argument;
  }
  return *best;
}

}  // namespace

Sample function_sample(std::string_view name, const std::vector<Sample>& arguments) {
  if (arguments.empty()) return undefined();
  if (name == "binomial" && arguments.size() == 2) return binomial(arguments[0], arguments[1]);
  if (name == "max" || name == "min") return extreme(name, arguments);
  if (auto whole = whole_function(name, arguments)) return *whole;
  if (!arguments.front().defined) return undefined();
  for (const NamedFunction& known : functions) {
    if (known.name == name && arguments.size() == 1)
      return inexact(known.value(arguments.front().approximate));
  }
  return unknown_function(name, arguments);
}

}  // namespace trireme::reward::math
