// Sets of real numbers: intervals, unions, and what solves an inequality.
#pragma once

#include "reward/math_value.hpp"

namespace trireme::reward::math {

// Without symbols.
bool is_constant(const Value& value);
// A number that is none: 1/0.
bool is_undefined(const Value& value);

// Both are made of intervals and finite sets with constant ends, and have the same elements.
bool same_real_set(const Value& a, const Value& b);

// The set of the x with x < 3, or with 1 < x < 2; nullptr where a relation is not of that form.
Term solution_set(const Value& relation);

}  // namespace trireme::reward::math
