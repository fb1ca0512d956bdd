// Arithmetic of samples: modulo two primes and in floating point at once.
#pragma once

#include <complex>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reward/math_value.hpp"

namespace trireme::reward::math {

using Complex = std::complex<long double>;
__extension__ typedef unsigned __int128 Wide;

Sample undefined();
Sample inexact(Complex value);  // known in floating point only
Sample whole_sample(int64_t value);
Sample number_sample(const std::string& digits);
// A point for each name: between 0.4 and 2.4, at point 1 below 0.
Sample symbol_sample(std::string_view name, int point);
Sample add(const Sample& a, const Sample& b);
Sample multiply(const Sample& a, const Sample& b);
Sample power_sample(const Sample& base, const Sample& exponent);

// Whole numbers that Sample::whole holds; nullopt for larger ones.
std::optional<int64_t> small(Wide magnitude, bool negative);
Wide magnitude_of(int64_t value);

// Of a function by its name: exactly for whole numbers where it is whole, else in floating point.
Sample function_sample(std::string_view name, const std::vector<Sample>& arguments);

}  // namespace trireme::reward::math
