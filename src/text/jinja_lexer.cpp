#include <array>
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

  void take_number() {
    const size_t start = at_;
    const auto digits = [&] {
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    };
    digits();
    if (at_ + 1 >= text_.size() || text_[at_] != '.' || !is_digit(text_[at_ + 1]))
      return push(Token::Kind::integer, start);
    ++at_;
    digits();
    push(Token::Kind::number, start);
  }

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

  void escape(size_t start, std::string& value) {
    if (at_ >= text_.size()) source_.fail(start, "a text that does not end");
    const char c = text_[at_++];
    switch (c) {
      case 'n': value += '\n'; return;
      case 't': value += '\t'; return;
      case 'r': value += '\r'; return;
      case '\\':
      case '\'':
      case '"': value += c; return;
      case 'x': return append_utf8(value, hexadecimal(2));
      case 'u': return append_utf8(value, hexadecimal(4));
      default:
        source_.fail(at_ - 2, base::text("the escape \\", c,
                                         ", which is not known (known: n t r \\ ' \" x u)"));
    }
  }

  char32_t hexadecimal(size_t digits) {
    unsigned value = 0;
    const std::string_view text = text_.substr(at_, digits);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
    if (error != std::errc() || end != text.data() + digits || surrogate)
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
