// Words of LaTeX as latex2sympy2_extended reads it (its grammar PS.g4): the longest one at each
// place; blanks and spacing commands are skipped.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::reward::math {

// This text is not one of the forms that are read.
struct Unreadable {};

enum class TokenKind {
  number,          // digits, perhaps with a full stop
  percent,         // a number with its percent sign; text: the number
  symbol,          // a letter, Greek letter, or text in \text{...}; text: its name
  imaginary_unit,  // the letter I
  exponential,     // the letter e
  function,        // \sin; text: sin
  operation,       // all else; text: one word for its several forms
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  bool takes_index = false;  // of a symbol: x_1, x(y) and x^2 belong together
};

// Throws Unreadable at characters and words that it does not know.
std::vector<Token> tokens_of(std::string_view latex);

}  // namespace trireme::reward::math
