// Decimal numbers of any length, compared exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::base {

// The value is 0.digits x 10^exponent. Every value has one form: no zeros at either end of digits,
// and zero is {false, "", 0}.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;

  // Digits with an optional sign, one full stop and exponent ("-12.50", ".5", "5.", "+2e3").
  // nullopt for other texts, and where the exponent leaves +-10^15.
  static std::optional<Decimal> parse(std::string_view text);

  // To so many places behind the full stop; halves to the even digit.
  Decimal rounded(int64_t places) const;

  friend bool operator==(const Decimal&, const Decimal&) = default;
};

}  // namespace trireme::base
