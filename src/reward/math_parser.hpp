// LaTeX answers as values: the part of latex2sympy2_extended's grammar without calculus and
// arithmetic of matrices.
#pragma once

#include <cstddef>
#include <string_view>

#include "reward/math_value.hpp"

namespace trireme::reward::math {

inline constexpr size_t longest_latex = 4096;

// nullptr for texts that it does not read, are longer than 4,096 bytes or nested deeper than 64.
Term parse_latex(std::string_view latex);

// The same for an expression of digits and + - * / ^ ( ), as Python reads it.
Term parse_plain(std::string_view expression);

}  // namespace trireme::reward::math
