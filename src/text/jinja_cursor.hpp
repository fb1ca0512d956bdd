// A position in the tokens of a template, for the parser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_syntax.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

class TokenCursor {
 protected:
  using Kind = Token::Kind;
  static constexpr int deepest = 100;  // nesting of blocks and of expressions

  explicit TokenCursor(const Source& source) : source_(source), tokens_(tokenize(source)) {}

  class Nested {
   public:
    explicit Nested(TokenCursor& cursor) : cursor_(cursor) {
      if (++cursor_.depth_ > deepest)
        cursor_.source_.fail(cursor_.peek().at, base::text("nested deeper than ", deepest));
    }
    ~Nested() { --cursor_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TokenCursor& cursor_;
  };

  const Token& peek() const { return tokens_[next_]; }
  const Token& take() { return tokens_[next_ + 1 < tokens_.size() ? next_++ : next_]; }
  bool is(Kind kind, std::string_view text) const {
    return peek().kind == kind && peek().text == text;
  }
  bool is_symbol(std::string_view text) const { return is(Kind::symbol, text); }
  bool is_word(std::string_view text) const { return is(Kind::name, text); }
  // Whether the token `ahead` places further is that one.
  bool next_is(size_t ahead, Kind kind, std::string_view text) const {
    const size_t index = next_ + ahead;
    return index < tokens_.size() && tokens_[index].kind == kind && tokens_[index].text == text;
  }
  bool take_symbol(std::string_view text) {
    if (!is_symbol(text)) return false;
    ++next_;
    return true;
  }
  bool take_word(std::string_view text) {
    if (!is_word(text)) return false;
    ++next_;
    return true;
  }
  [[noreturn]] void expected(const std::string& what) const {
    const std::string& next = peek().text;
    const std::string found =
        next.empty() ? "the end of the tag"
                     : "'" + next.substr(0, 100) + (next.size() > 100 ? "..." : "") + "'";
    source_.fail(peek().at, "expected " + what + ", found " + found);
  }
  void expect_symbol(std::string_view text) {
    if (!take_symbol(text)) expected("'" + std::string(text) + "'");
  }
  void expect_end_of_block() {
    if (peek().kind != Kind::block_end) expected("%}");
    ++next_;
  }
  std::string expect_name() {
    if (peek().kind != Kind::name) expected("a name");
    return take().text;
  }

  const Source& source_;
  std::vector<Token> tokens_;  // ends with Kind::end
  size_t next_ = 0;

 private:
  int depth_ = 0;
};

}  // namespace trireme::text::jinja
