// Expressions in LaTeX: sums, products, powers, roots, functions.
#pragma once

#include <string>
#include <string_view>

#include "reward/math_cursor.hpp"
#include "reward/math_value.hpp"

namespace trireme::reward::math {

class Expressions : public Cursor {
 public:
  using Cursor::Cursor;

 protected:
  Term expression();
  Term symbol_with_power();

 private:
  // The argument of \sin without parentheses contains no function.
  enum class Functions { allowed, refused };

  Term factors(Functions functions);
  Term signed_product(Functions functions);
  // 2x is a product, 3\frac12 and 1 234 are sums.
  static Term side_by_side(const Term& left, const Term& right);
  bool starts_factor(Functions functions) const;
  Term postfix(Functions functions);
  Term exponent();
  Term between(std::string_view open, std::string_view close);
  Term bars(std::string_view bar);
  Term component(Functions functions);
  Term braces();
  Term fraction();
  Term binomial(const Term& top);
  Term root();
  Term exponential();
  Term matrix();
  // \sin^2 x, \log_{2}(8), \max(1, 2)
  Term function();
  static bool is_minus_one(const Value& value);
  std::string function_name();
  Term atom();
  // The base of a numeral, 101_2, says nothing to latex2sympy2_extended.
  void skip_index();
  std::string index_text();
  // f(x), f(2) or f(a, b): a name and, in parentheses, one atom or a list.
  Term function_call(const std::string& name, const Term& exponent_of_all);

  int bars_ = 0;  // within |...|: the next bar closes it
};

}  // namespace trireme::reward::math
