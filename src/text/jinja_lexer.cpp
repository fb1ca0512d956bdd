#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "text/jinja_syntax.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace {

constexpr std::array<std::string_view, 6> long_symbols{"//", "**", "==", "!=", "<=", ">="};
constexpr std::string_view short_symbols = "+-*/%~<>=()[]{}.,:|";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const size_t tag = next_tag();
      take_text(tag);
      if (tag == text_.size()) break;
      const char kind = text_[tag + 1];
      if (const size_t inside = kind == '%' ? after_word(tag + 2, "raw") : npos; inside != npos) {
        take_raw(tag, inside);
        continue;
      }
      at_ = tag + 2;
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      if (kind == '#') {
        skip_comment(tag);
      } else {
        take_tag(tag, kind == '%');
      }
    }
    tokens_.push_back({Token::Kind::end, "", text_.size()});
    return std::move(tokens_);
  }

 private:
  static constexpr size_t npos = std::string_view::npos;

  // Where the tag `{% word %}`, whose inside starts at `at`, ends; npos when it is another tag.
  // `sign` becomes that of its end.
  size_t after_word(size_t at, std::string_view word, char* sign = nullptr) const {
    if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) ++at;
    at += leading_space(text_.substr(std::min(at, text_.size())), is_python_space);
    if (!text_.substr(std::min(at, text_.size())).starts_with(word)) return npos;
    at += word.size();
    at += leading_space(text_.substr(at), is_python_space);
    const bool signed_end = at < text_.size() && (text_[at] == '-' || (sign && text_[at] == '+'));
    if (sign != nullptr) *sign = signed_end ? text_[at] : '\0';
    if (signed_end) ++at;
    return text_.substr(std::min(at, text_.size())).starts_with("%}") ? at + 2 : npos;
  }

  // {% raw %} ... {% endraw %}: text, whatever it looks like. The newline after {% raw %} stays.
  void take_raw(size_t tag, size_t inside) {
    at_ = inside;
    if (text_[inside - 3] == '-') at_ += leading_space(text_.substr(at_), is_python_space);
    line_starting_ = at_ > inside && text_[at_ - 1] == '\n';
    for (size_t end = text_.find("{%", at_); end != npos; end = text_.find("{%", end + 1)) {
      char sign = '\0';
      const size_t after = after_word(end + 2, "endraw", &sign);
      if (after == npos) continue;
      take_text(end);
      at_ = after;
      return after_tag(sign, true);
    }
    source_.fail(tag, "the template ends, expected {% endraw %}");
  }

  size_t next_tag() const {
    for (size_t i = at_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#'))
        return i;
    }
    return text_.size();
  }

  // The text up to a tag. `{%-` takes all white space in front away, `{%` and `{#` (lstrip_blocks)
  // the blanks between the start of the line and the tag, `{%+` none.
  void take_text(size_t tag) {
    std::string_view text = text_.substr(at_, tag - at_);
    if (tag < text_.size()) {
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      if (sign == '-') {
        text.remove_suffix(trailing_space(text, is_python_space));
      } else if (sign != '+' && text_[tag + 1] != '{') {
        const size_t line = text.rfind('\n') + 1;  // npos + 1 = 0
        const bool starts_line = line > 0 || line_starting_;
        if (starts_line && trailing_space(text.substr(line), is_python_space) == text.size() - line)
          text = text.substr(0, line);
      }
    }
    if (!text.empty()) tokens_.push_back({Token::Kind::text, std::string(text), at_});
  }

  void skip_comment(size_t tag) {
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos)
      source_.fail(tag, "a comment that does not end (no #} follows)");
    const char sign = end > at_ ? text_[end - 1] : '\0';  // in {#-#} the sign is the opening's
    at_ = end + 2;
    after_tag(sign, true);
  }

  // What follows a tag's end: `-%}` takes all white space away, `%}` (trim_blocks) one newline,
  // `+%}` nothing.
  void after_tag(char sign, bool block) {
    const size_t start = at_;
    if (sign == '-') {
      at_ += leading_space(text_.substr(at_), is_python_space);
    } else if (sign != '+' && block && at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
    }
    line_starting_ = at_ > start && text_[at_ - 1] == '\n';
  }

  void take_tag(size_t tag, bool block) {
    const std::string_view closing = block ? "%}" : "}}";
    tokens_.push_back({block ? Token::Kind::block_begin : Token::Kind::output_begin, "", tag});
    int open = 0;  // brackets; inside of them `}}` closes two of them
    for (;;) {
      while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
      if (at_ >= text_.size())
        source_.fail(tag, base::text("a tag that does not end (no ", closing, " follows)"));
      const char sign = text_[at_] == '-' || (block && text_[at_] == '+') ? text_[at_] : '\0';
      const size_t end = at_ + (sign != '\0' ? 1 : 0);
      if (open == 0 && text_.substr(end, 2) == closing) {
        tokens_.push_back({block ? Token::Kind::block_end : Token::Kind::output_end, "", at_});
        at_ = end + 2;
        return after_tag(sign, block);
      }
      take_token();
      const Token& token = tokens_.back();
      if (token.kind != Token::Kind::symbol) continue;
      if (std::string_view("([{").find(token.text) != std::string_view::npos) ++open;
      if (std::string_view(")]}").find(token.text) != std::string_view::npos) --open;
      if (open < 0) source_.fail(token.at, "'" + token.text + "' without its opening bracket");
    }
  }

  void take_token() {
    const size_t start = at_;
    const char c = text_[at_];
    if (c == '\'' || c == '"') return take_string(c);
    if (is_digit(c)) return take_number();
    if (is_name_start(c)) {
      while (at_ < text_.size() && (is_name_start(text_[at_]) || is_digit(text_[at_]))) ++at_;
      return push(Token::Kind::name, start);
    }
    for (const std::string_view symbol : long_symbols) {
      if (text_.substr(at_, symbol.size()) == symbol) {
        at_ += symbol.size();
        return push(Token::Kind::symbol, start);
      }
    }
    if (short_symbols.find(c) == std::string_view::npos)
      source_.fail(at_, base::text("the character '", c, "', which has no meaning there"));
    ++at_;
    push(Token::Kind::symbol, start);
  }

  void push(Token::Kind kind, size_t start) {
    tokens_.push_back({kind, std::string(text_.substr(start, at_ - start)), start});
  }

  // Digits of a base, with single underscores between them, which are dropped.
  void take_digits(std::string& out, bool (*is_one)(char)) {
    while (at_ < text_.size() && is_one(text_[at_])) {
      out += text_[at_++];
      if (at_ + 1 < text_.size() && text_[at_] == '_' && is_one(text_[at_ + 1])) ++at_;
    }
  }

  void take_number() {
    const size_t start = at_;
    std::string digits;
    const auto next_is_digit = [&](size_t at) { return at < text_.size() && is_digit(text_[at]); };
    const char kind = at_ + 2 < text_.size() && text_[at_] == '0' ? text_[at_ + 1] : '\0';
    const bool based = std::string_view("xXoObB").find(kind) != npos && kind != '\0' &&
                       std::isxdigit(static_cast<unsigned char>(text_[at_ + 2])) != 0;
    if (based) {
      digits = text_.substr(at_, 2);
      at_ += 2;
      take_digits(digits, [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
      tokens_.push_back({Token::Kind::integer, std::move(digits), start});
      return;
    }
    take_digits(digits, is_digit);
    bool whole = true;
    if (at_ < text_.size() && text_[at_] == '.' && next_is_digit(at_ + 1) && !after_dot(start)) {
      whole = false;
      digits += text_[at_++];
      take_digits(digits, is_digit);
    }
    const bool exponent = at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E');
    const size_t sign =
        exponent && at_ + 1 < text_.size() && (text_[at_ + 1] == '-' || text_[at_ + 1] == '+') ? 1
                                                                                               : 0;
    if (exponent && next_is_digit(at_ + 1 + sign)) {
      whole = false;
      digits += text_.substr(at_, 1 + sign);
      at_ += 1 + sign;
      take_digits(digits, is_digit);
    }
    tokens_.push_back(
        {whole ? Token::Kind::integer : Token::Kind::number, std::move(digits), start});
  }
  bool after_dot(size_t at) const { return at > 0 && text_[at - 1] == '.'; }

  void take_string(char quote) {
    const size_t start = at_++;
    std::string value;
    for (;;) {
      if (at_ >= text_.size()) source_.fail(start, "a text that does not end");
      const char c = text_[at_++];
      if (c == quote) break;
      if (c == '\\') {
        escape(start, value);
      } else {
        value += c;
      }
    }
    tokens_.push_back({Token::Kind::string, std::move(value), start});
  }

  // Those of Python; a backslash before anything else stays.
  void escape(size_t start, std::string& value) {
    if (at_ >= text_.size()) source_.fail(start, "a text that does not end");
    const char c = text_[at_++];
    constexpr std::string_view plain = "ntrabfv\\'\"";
    constexpr std::string_view meant = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t at = plain.find(c); at != npos) {
      value += meant[at];
      return;
    }
    switch (c) {
      case '\n': return;
      case 'x': return append_utf8(value, hexadecimal(2));
      case 'u': return append_utf8(value, hexadecimal(4));
      case 'U': return append_utf8(value, hexadecimal(8));
      case 'N': source_.fail(at_ - 2, "the escape \\N, which is not known");
      default: break;
    }
    if (c < '0' || c > '7') {
      (value += '\\') += c;
      return;
    }
    char32_t octal = static_cast<char32_t>(c - '0');
    for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i)
      octal = octal * 8 + static_cast<char32_t>(text_[at_++] - '0');
    append_utf8(value, octal);
  }

  char32_t hexadecimal(size_t digits) {
    unsigned value = 0;
    const std::string_view text = text_.substr(at_, digits);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    const bool none = (value >= 0xD800 && value <= 0xDFFF) || value > 0x10FFFF;
    if (error != std::errc() || end != text.data() + digits || none)
      source_.fail(at_, "an escape without its hexadecimal digits");
    at_ += digits;
    return value;
  }

  const Source& source_;
  std::string_view text_;
  size_t at_ = 0;
  bool line_starting_ = true;  // the text that comes next starts a line
  std::vector<Token> tokens_;
};

}  // namespace

void Source::fail(size_t at, const std::string& problem) const {
  size_t line = 1;
  size_t start = 0;
  for (size_t i = 0; i < at && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      start = i + 1;
    }
  }
  throw UserError(ExitCode::bad_data, base::text(name, ": chat template, line ", line, ", column ",
                                                 at - start + 1, ": ", problem));
}

std::vector<Token> tokenize(const Source& source) { return Lexer(source).run(); }

}  // namespace trireme::text::jinja
