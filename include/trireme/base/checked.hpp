// Integer arithmetic that refuses to overflow, for sizes read from files and counts handed to C
// libraries.
#pragma once

#include <concepts>
#include <limits>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::base {

// Throw UserError(bad_data) on overflow.
template <std::integral T>
T checked_add(T a, T b) {
  T out{};
  VALIDATE(!__builtin_add_overflow(a, b, &out), ExitCode::bad_data, "integer overflow: ", a, " + ",
           b);
  return out;
}
template <std::integral T>
T checked_mul(T a, T b) {
  T out{};
  VALIDATE(!__builtin_mul_overflow(a, b, &out), ExitCode::bad_data, "integer overflow: ", a, " * ",
           b);
  return out;
}
// The same value in another integer type; throws UserError(bad_data) when it does not fit.
template <std::integral To, std::integral From>
To checked_cast(From value) {
  VALIDATE(std::in_range<To>(value), ExitCode::bad_data, "the number ", value,
           " does not fit its type");
  return static_cast<To>(value);
}

// ceil(a / b) for a >= 0, b > 0
template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
// The smallest multiple of `unit` that is >= value
template <std::integral T>
constexpr T round_up(T value, T unit) {
  return ceil_div(value, unit) * unit;
}

}  // namespace trireme::base
