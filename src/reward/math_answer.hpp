// Finds the answer of a text and compares it with a label, as math-verify 0.9 does with its
// default settings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "reward/math_value.hpp"

namespace trireme::reward::math {

struct Answer {
  Term value;                       // nullptr: none was read
  std::optional<std::string> text;  // of the first place that was tried
};

// In this order: after "final answer is", in boxes, after "answer", in LaTeX ($...$, \[...\],
// \(...\)), numbers and expressions; of several places the last one that can be read.
Answer find_answer(std::string_view text);

// The answer that a label is: see equal_by_math_verify().
Answer answer_of_label(std::string_view label);

// Whether the response's answer equals the label, which is taken as if it were in a box; of a
// label with "####" what follows the last one.
bool equal_by_math_verify(std::string_view response, std::string_view label);

}  // namespace trireme::reward::math
