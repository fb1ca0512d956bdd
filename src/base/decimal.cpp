#include "trireme/base/decimal.hpp"

#include <charconv>

namespace trireme::base {
namespace {

constexpr int64_t largest_exponent = 1'000'000'000'000'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The digits at the front of the text, which is shortened by them.
std::string_view take_digits(std::string_view& text) {
  size_t size = 0;
  while (size < text.size() && is_digit(text[size])) ++size;
  const std::string_view digits = text.substr(0, size);
  text.remove_prefix(size);
  return digits;
}

// Of "e-12": -12. nullopt where that is not all of the text, or too large.
std::optional<int64_t> take_exponent(std::string_view text) {
  if (text.empty()) return 0;
  if (text.front() != 'e' && text.front() != 'E') return std::nullopt;
  text.remove_prefix(1);
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return std::nullopt;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value > largest_exponent || value < -largest_exponent) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal number;
  number.negative = text.starts_with('-');
  if (number.negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string_view whole = take_digits(text);
  std::string_view fraction;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    fraction = take_digits(text);
  }
  const auto exponent = take_exponent(text);
  if ((whole.empty() && fraction.empty()) || !exponent) return std::nullopt;
  number.digits.append(whole).append(fraction);
  number.exponent = *exponent + static_cast<int64_t>(whole.size());
  const size_t first = number.digits.find_first_not_of('0');
  if (first == std::string::npos) return Decimal{};
  number.digits.erase(number.digits.find_last_not_of('0') + 1);
  number.digits.erase(0, first);
  number.exponent -= static_cast<int64_t>(first);
  return number;
}

Decimal Decimal::rounded(int64_t places) const {
  const int64_t kept = exponent + places;  // digits in front of the place that is rounded
  if (kept >= static_cast<int64_t>(digits.size())) return *this;
  if (kept < 0) return {};
  Decimal out = *this;
  out.digits.resize(static_cast<size_t>(kept));
  const std::string_view lost = std::string_view(digits).substr(static_cast<size_t>(kept));
  const bool odd = !out.digits.empty() && (out.digits.back() - '0') % 2 == 1;
  if (lost == "5" ? odd : lost[0] >= '5') {
    while (!out.digits.empty() && out.digits.back() == '9') out.digits.pop_back();
    if (out.digits.empty()) {
      out.digits = "1";
      ++out.exponent;
    } else {
      ++out.digits.back();
    }
  }
  out.digits.erase(out.digits.find_last_not_of('0') + 1);
  return out.digits.empty() ? Decimal{} : out;
}

}  // namespace trireme::base
