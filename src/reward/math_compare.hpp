// Whether two answers are equal, by the rules of math-verify (0.9, grader.py).
#pragma once

#include "reward/math_value.hpp"

namespace trireme::reward::math {

// Not symmetric: the label decides whether "x = 5" is an equation or the number 5, and may be a
// relation where the answer is a set.
bool equal_values(const Term& label, const Term& answer);

}  // namespace trireme::reward::math
