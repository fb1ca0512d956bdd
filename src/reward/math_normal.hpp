// LaTeX of answers brought to one form before it is read, as math-verify does it (MIT licence;
// latex2sympy2_extended 1.11, math_normalization.py): boxes, sizes of brackets, units, \frac12.
#pragma once

#include <string>
#include <string_view>

namespace trireme::reward::math {

// Of several \boxed{...} or \fbox{...}: all, or the last and those close before it, joined by
// commas. A text without a box is taken as it is.
enum class Boxes { last, all };

std::string normal_latex(std::string_view text, Boxes boxes);

}  // namespace trireme::reward::math
