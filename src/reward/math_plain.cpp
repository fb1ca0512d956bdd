// Expressions of digits and operators outside of LaTeX: "(3 + 4) * 2^3".
#include "reward/latex_text.hpp"
#include "reward/math_lexer.hpp"
#include "reward/math_parser.hpp"

namespace trireme::reward::math {
namespace {

constexpr int deepest_plain = 64;

class Plain {
 public:
  explicit Plain(std::string_view text) : rest_(text) {}

  Term run() {
    const Term value = sums();
    skip_blanks();
    if (!rest_.empty()) throw Unreadable{};
    return value;
  }

 private:
  void skip_blanks() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n'))
      rest_.remove_prefix(1);
  }

  bool accept(char c) {
    skip_blanks();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  Term sums() {
    Term left = products();
    for (;;) {
      if (accept('+')) {
        left = sum(left, products());
      } else if (accept('-')) {
        left = sum(left, negative(products()));
      } else {
        return left;
      }
    }
  }

  Term products() {
    Term left = signed_power();
    for (;;) {
      if (accept('*')) {
        left = product(left, signed_power());
      } else if (accept('/')) {
        left = product(left, power(signed_power(), integer(-1)));
      } else {
        return left;
      }
    }
  }

  Term signed_power() {
    if (++depth_ > deepest_plain) throw Unreadable{};
    Term value;
    if (accept('-')) {
      value = negative(signed_power());
    } else if (accept('+')) {
      value = signed_power();
    } else {
      value = operand();
      if (accept('^')) value = power(value, signed_power());
    }
    --depth_;
    return value;
  }

  Term operand() {
    if (accept('(')) {
      const Term value = sums();
      if (!accept(')')) throw Unreadable{};
      return value;
    }
    size_t size = 0, stops = 0;
    for (; size < rest_.size() && (is_digit(rest_[size]) || rest_[size] == '.'); ++size)
      if (rest_[size] == '.') ++stops;
    const std::string digits(rest_.substr(0, size));
    const bool zeros = digits.size() > 1 && digits[0] == '0' && is_digit(digits[1]) && stops == 0;
    if (size == stops || stops > 1 || zeros) throw Unreadable{};
    rest_.remove_prefix(size);
    return number(digits);
  }

  std::string_view rest_;
  int depth_ = 0;
};

}  // namespace

Term parse_plain(std::string_view expression) {
  if (expression.size() > longest_latex) return nullptr;
  try {
    return Plain(expression).run();
  } catch (const Unreadable&) { return nullptr; }
}

}  // namespace trireme::reward::math
