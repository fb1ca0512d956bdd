#include "reward/math_sample.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "trireme/base/decimal.hpp"

namespace trireme::reward::math {
namespace {

constexpr std::array<uint64_t, 2> primes = {(uint64_t{1} << 61) - 1,
                                            (uint64_t{1} << 63) - 25};  // both are prime
constexpr int64_t largest_whole = int64_t{1} << 62;

uint64_t times(uint64_t a, uint64_t b, uint64_t prime) {
  return static_cast<uint64_t>(Wide{a} * b % prime);
}

uint64_t plus(uint64_t a, uint64_t b, uint64_t prime) {
  return static_cast<uint64_t>((Wide{a} + b) % prime);
}

uint64_t power_of(uint64_t base, uint64_t exponent, uint64_t prime) {
  uint64_t out = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) out = times(out, base, prime);
    base = times(base, base, prime);
  }
  return out;
}

uint64_t inverse(uint64_t a, uint64_t prime) { return power_of(a, prime - 2, prime); }

uint64_t residue_of(int64_t value, uint64_t prime) {
  const auto magnitude =
      value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const uint64_t residue = magnitude % prime;
  return value < 0 && residue > 0 ? prime - residue : residue;
}

uint64_t mixed(std::string_view name, uint64_t seed) {
  uint64_t hash = 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  hash = (hash ^ (hash >> 31)) * 0xBF58476D1CE4E5B9u;
  return hash ^ (hash >> 29);
}

// Without 0 * infinity in the parts of a complex product.
Complex product_of(Complex a, Complex b) {
  if (a.imag() == 0) return {a.real() * b.real(), b.imag() == 0 ? 0 : a.real() * b.imag()};
  if (b.imag() == 0) return {a.real() * b.real(), a.imag() * b.real()};
  return a * b;
}

Complex complex_power(Complex base, Complex exponent) {
  if (base.imag() == 0 && exponent.imag() == 0) {
    const bool real = base.real() >= 0 || exponent.real() == std::floor(exponent.real());
    if (real) return std::pow(base.real(), exponent.real());
  }
  if (base == Complex(0)) return exponent.real() > 0 ? 0 : std::nanl("");
  return std::pow(base, exponent);
}

// sqrt(16): whole roots of whole numbers.
std::optional<int64_t> whole_root(const Sample& base, Complex exponent) {
  if (!base.whole || *base.whole < 0 || exponent != Complex(0.5L)) return std::nullopt;
  const auto root =
      static_cast<int64_t>(std::llround(std::sqrt(static_cast<long double>(*base.whole))));
  if (magnitude_of(root) * magnitude_of(root) != magnitude_of(*base.whole)) return std::nullopt;
  return root;
}

}  // namespace

Sample undefined() {
  Sample out;
  out.defined = out.exact = false;
  return out;
}

Sample inexact(Complex value) {
  Sample out;
  out.approximate = value;
  out.exact = false;
  out.defined = !std::isnan(value.real()) && !std::isnan(value.imag());
  return out;
}

Sample whole_sample(int64_t value) {
  Sample out;
  out.approximate = static_cast<long double>(value);
  out.whole = value;
  for (size_t i = 0; i < 2; ++i) out.residues[i] = residue_of(value, primes[i]);
  return out;
}

std::optional<int64_t> small(Wide magnitude, bool negative) {
  if (magnitude >= static_cast<Wide>(largest_whole)) return std::nullopt;
  const auto value = static_cast<int64_t>(magnitude);
  return negative ? -value : value;
}

Wide magnitude_of(int64_t value) { return static_cast<Wide>(value < 0 ? -value : value); }

Sample number_sample(const std::string& digits) {
  const auto decimal = base::Decimal::parse(digits);
  if (!decimal) return undefined();
  Sample out;
  long double value = 0;
  for (const char c : decimal->digits) value = value * 10 + static_cast<long double>(c - '0');
  const int64_t exponent = decimal->exponent - static_cast<int64_t>(decimal->digits.size());
  if (decimal->digits.size() > 4000) value = std::numeric_limits<long double>::infinity();
  const auto shift = static_cast<int>(std::clamp<int64_t>(exponent, -20000, 20000));
  out.approximate = shift < 0 ? value / std::pow(10.0L, static_cast<long double>(-shift))
                              : value * std::pow(10.0L, static_cast<long double>(shift));
  for (size_t i = 0; i < 2; ++i) {
    uint64_t residue = 0;
    for (const char c : decimal->digits) {
      residue = plus(times(residue, 10, primes[i]), static_cast<uint64_t>(c - '0'), primes[i]);
    }
    const uint64_t scale =
        power_of(10, static_cast<uint64_t>(exponent < 0 ? -exponent : exponent), primes[i]);
    out.residues[i] = times(residue, exponent < 0 ? inverse(scale, primes[i]) : scale, primes[i]);
  }
  if (exponent >= 0 && decimal->exponent <= 18) {
    int64_t whole = 0;
    for (const char c : decimal->digits) whole = whole * 10 + (c - '0');
    for (int64_t i = 0; i < exponent; ++i) whole *= 10;
    if (whole < largest_whole) out.whole = whole;
  }
  return out;
}

Sample symbol_sample(std::string_view name, int point) {
  Sample out;
  const uint64_t hash = mixed(name, static_cast<uint64_t>(point));
  const long double fraction = static_cast<long double>(hash >> 11) / 9007199254740992.0L;
  out.approximate = (0.4L + 2 * fraction) * (point == 1 ? -1 : 1);
  for (size_t i = 0; i < 2; ++i) {
    out.residues[i] = mixed(name, static_cast<uint64_t>(point) + 7 + i) % primes[i];
  }
  return out;
}

Sample add(const Sample& a, const Sample& b) {
  Sample out = inexact(a.approximate + b.approximate);
  out.defined = out.defined && a.defined && b.defined;
  out.exact = a.exact && b.exact;
  for (size_t i = 0; i < 2; ++i) out.residues[i] = plus(a.residues[i], b.residues[i], primes[i]);
  if (a.whole && b.whole) {
    const int64_t value = *a.whole + *b.whole;
    if (value < largest_whole && value > -largest_whole) out.whole = value;
  }
  return out;
}

Sample multiply(const Sample& a, const Sample& b) {
  Sample out = inexact(product_of(a.approximate, b.approximate));
  out.defined = out.defined && a.defined && b.defined;
  out.exact = a.exact && b.exact;
  for (size_t i = 0; i < 2; ++i) out.residues[i] = times(a.residues[i], b.residues[i], primes[i]);
  if (a.whole && b.whole) {
    out.whole =
        small(magnitude_of(*a.whole) * magnitude_of(*b.whole), (*a.whole < 0) != (*b.whole < 0));
  }
  return out;
}

Sample power_sample(const Sample& base, const Sample& exponent) {
  if (!base.defined || !exponent.defined) return undefined();
  if (const auto root = whole_root(base, exponent.approximate)) return whole_sample(*root);
  Sample out = inexact(complex_power(base.approximate, exponent.approximate));
  if (!exponent.whole) return out;
  const int64_t power = *exponent.whole;
  const bool zero = base.exact && base.residues[0] == 0 && base.residues[1] == 0;
  if (power < 0 && (zero || base.approximate == Complex(0))) return undefined();
  out.exact = base.exact;
  for (size_t i = 0; i < 2; ++i) {
    const uint64_t factor = power < 0 ? inverse(base.residues[i], primes[i]) : base.residues[i];
    out.residues[i] =
        power_of(factor, static_cast<uint64_t>(power < 0 ? -power : power), primes[i]);
  }
  if (base.whole && power >= 0 && power <= 64) {
    std::optional<int64_t> value = 1;
    for (int64_t i = 0; i < power && value; ++i)
      value = small(magnitude_of(*value) * magnitude_of(*base.whole),
                    (*value < 0) != (*base.whole < 0));
    out.whole = value;
  }
  return out;
}

}  // namespace trireme::reward::math
