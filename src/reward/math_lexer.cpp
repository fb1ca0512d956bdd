#include "reward/math_lexer.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "reward/latex_text.hpp"
#include "reward/math_words.hpp"

namespace trireme::reward::math {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

size_t digits_at(std::string_view text) {
  size_t size = 0;
  while (size < text.size() && is_digit(text[size])) ++size;
  return size;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : rest_(text) {}

  std::vector<Token> run() {
    while (!rest_.empty()) {
      if (is_blank(rest_.front())) {
        rest_.remove_prefix(1);
      } else if (!number() && !word() && !accent() && !command() && !letter()) {
        throw Unreadable{};
      }
    }
    tokens_.push_back({});
    return std::move(tokens_);
  }

 private:
  bool take(size_t size, TokenKind kind, std::string text, bool index = false) {
    rest_.remove_prefix(size);
    tokens_.push_back({kind, std::move(text), index});
    return true;
  }

  // "12", "1.5", ".5", "50 \%", "1E3"
  bool number() {
    size_t size = digits_at(rest_);
    if (size < rest_.size() && rest_[size] == '.') {
      const size_t fraction = digits_at(rest_.substr(size + 1));
      if (fraction > 0) size += 1 + fraction;
    }
    if (size == 0) return false;
    const std::string digits(rest_.substr(0, size));
    const std::string_view behind = rest_.substr(size);
    const size_t blank = !behind.empty() && is_blank(behind.front()) ? 1 : 0;
    if (behind.substr(blank).starts_with("\\%"))
      return take(size + blank + 2, TokenKind::percent, digits);
    if (behind.substr(blank).starts_with("%"))
      return take(size + blank + 1, TokenKind::percent, digits);
    if (behind.starts_with('E')) {
      const size_t sign = behind.size() > 1 && (behind[1] == '+' || behind[1] == '-') ? 1 : 0;
      const size_t power = digits_at(behind.substr(1 + sign));
      if (power > 0) {
        const size_t all = size + 1 + sign + power;
        return take(all, TokenKind::number, std::string(rest_.substr(0, all)));
      }
    }
    return take(size, TokenKind::number, digits);
  }

  bool word() {
    const Word* best = nullptr;
    for (const Word& known : latex_words) {
      if (rest_.starts_with(known.latex) && (!best || known.latex.size() > best->latex.size()))
        best = &known;
    }
    if (best == nullptr || longer_command(best->latex)) return false;
    if (best->operation.empty()) {
      rest_.remove_prefix(best->latex.size());
      return true;
    }
    return take(best->latex.size(), TokenKind::operation, std::string(best->operation));
  }

  // \epsilon begins with a word that is shorter, as \int does with \in.
  bool longer_command(std::string_view word) const {
    const auto longer = [&](std::string_view name) {
      return name.size() + 1 > word.size() && rest_.substr(1).starts_with(name);
    };
    return word.starts_with('\\') &&
           (std::ranges::any_of(latex_functions, longer) ||
            std::ranges::any_of(latex_symbols, longer) || rest_.starts_with("\\int") ||
            std::ranges::any_of(accent_commands,
                                [&](const Accent& accent) { return longer(accent.command); }));
  }

  // \text{...}, up to the first closing brace.
  bool accent() {
    if (!rest_.starts_with('\\')) return false;
    for (const Accent& known : accent_commands) {
      if (!rest_.substr(1).starts_with(known.command)) continue;
      std::string_view behind = rest_.substr(1 + known.command.size());
      if (!behind.empty() && is_blank(behind.front())) behind.remove_prefix(1);
      if (!behind.starts_with('{')) continue;
      size_t end = 1;
      while (end < behind.size() && behind[end] != '}')
        end += behind.substr(end).starts_with("\\}") ? 2 : 1;
      if (end >= behind.size()) throw Unreadable{};
      std::string name;
      for (const char c : behind.substr(1, end - 1)) {
        if (c != ' ' && (!known.prefix.empty() || (c != '(' && c != ')'))) name += c;
      }
      if (!known.prefix.empty()) name = std::string(known.prefix) + "{" + name + "}";
      const size_t size = rest_.size() - behind.size() + end + 1;
      return take(size, TokenKind::symbol, lower(name), true);
    }
    return false;
  }

  bool command() {
    if (!rest_.starts_with('\\')) return false;
    const auto longest = [&](const auto& names) {
      std::string_view best;
      for (const std::string_view name : names) {
        if (rest_.substr(1).starts_with(name) && name.size() > best.size()) best = name;
      }
      return best;
    };
    const std::string_view function = longest(latex_functions), symbol = longest(latex_symbols);
    if (function.size() > symbol.size())
      return take(1 + function.size(), TokenKind::function, std::string(function));
    if (symbol.empty()) return false;
    return take(1 + symbol.size(), TokenKind::symbol, lower(symbol), true);
  }

  bool letter() {
    for (const std::string_view name : reserved_words) {
      if (rest_.starts_with(name)) throw Unreadable{};
    }
    for (const Letter& known : greek_letters) {
      if (rest_.starts_with(known.character))
        return take(known.character.size(), TokenKind::symbol, std::string(known.name), true);
    }
    const char c = rest_.front();
    if (c == 'd' && differential()) return true;
    if (c == 'e') return take(1, TokenKind::exponential, "e");
    if (c == 'I') return take(1, TokenKind::imaginary_unit, "i", true);
    return is_letter(c) && take(1, TokenKind::symbol, lower(std::string_view(&c, 1)), c != 'E');
  }

  // "dx" is one symbol.
  bool differential() {
    size_t at = 1;
    while (at < rest_.size() && is_blank(rest_[at])) ++at;
    const bool command = at < rest_.size() && rest_[at] == '\\';
    const size_t begin = at + (command ? 1 : 0);
    if (begin >= rest_.size() || !is_letter(rest_[begin])) return false;
    size_t end = begin + 1;
    while (command && end < rest_.size() && is_letter(rest_[end])) ++end;
    return take(end, TokenKind::symbol, "d" + std::string(rest_.substr(begin, end - begin)));
  }

  std::string_view rest_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view latex) { return Lexer(latex).run(); }

}  // namespace trireme::reward::math
