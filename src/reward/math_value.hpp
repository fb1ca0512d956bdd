// The value of a mathematical answer: numbers, expressions, tuples, sets, relations.
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::reward::math {

enum class Kind {
  number,      // name: its digits, perhaps with a full stop and an exponent
  symbol,      // name
  constant,    // name: pi, e, gamma, i, infinity
  add,         // of all parts
  multiply,    // of all parts
  power,       // base, exponent
  percent,     // its one part / 100
  function,    // name, arguments
  tuple,       // parts in their order
  finite_set,  // parts in the order of the text
  interval,    // from, to; left_open, right_open
  join,        // union of the parts
  intersection,
  difference,  // the first part without the second
  named_set,   // name: N, Z, Q, R, C, P, empty
  relation,    // name: = != < <= > >=; left, right
  chain,       // several relations: a < b < c
  matrix,      // rows of equal length; columns
};

struct Value;
using Term = std::shared_ptr<const Value>;

struct Value {
  Kind kind = Kind::number;
  std::string name;
  std::vector<Term> parts;
  bool left_open = false, right_open = false;
  size_t columns = 0;
  // Written as a whole number, as one or a quotient of two, with a full stop: such values are
  // compared in other ways than sums or powers that happen to have the same value.
  bool is_integer = false, is_rational = false, is_decimal = false;

  bool is_number() const { return is_rational || is_decimal; }
  bool is_set() const {
    return kind == Kind::finite_set || kind == Kind::interval || kind == Kind::join ||
           kind == Kind::intersection || kind == Kind::difference || kind == Kind::named_set;
  }
};

Term make(Kind kind, std::string name, std::vector<Term> parts = {});
Term number(std::string digits);                    // is_integer and is_decimal by its digits
Term integer(int64_t value);                        // of at most 62 bits
Term sum(const Term& left, const Term& right);      // parts of sums are taken into one
Term product(const Term& left, const Term& right);  // parts of products too
Term quotient(const Term& top, const Term& bottom);
Term negative(const Term& value);
Term power(const Term& base, const Term& exponent);

// The same text but for blanks: no arithmetic.
bool identical(const Value& a, const Value& b);

// A value in two arithmetics. `residues`: modulo two primes, where it is a rational function of
// numbers, symbols and pi; equal residues mean equal values (up to chance, 2^-120). `approximate`:
// as complex numbers.
struct Sample {
  std::complex<long double> approximate;
  bool defined = true;  // no division by 0, no NaN
  bool exact = true;    // residues and, where it is there, `whole` hold
  uint64_t residues[2] = {0, 0};
  std::optional<int64_t> whole;  // the value, where it is a whole number of 62 bits
};

// Of an expression, with symbols at point number `point`; sets, relations and the like are not
// defined.
Sample evaluate(const Value& value, int point);

// Equal as expressions: wherever their symbols are.
bool equal_everywhere(const Value& a, const Value& b);
// a is b times a constant other than 0.
bool proportional(const Value& a, const Value& b);

}  // namespace trireme::reward::math
