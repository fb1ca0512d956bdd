// A place in the words of an answer, with limits on depth and work.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "reward/math_lexer.hpp"

namespace trireme::reward::math {

class Cursor {
 public:
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) { mark_lists(); }

 protected:
  const Token& here() const { return tokens_[at_]; }
  bool is(std::string_view operation) const {
    return here().kind == TokenKind::operation && here().text == operation;
  }
  bool is_any(std::initializer_list<std::string_view> operations) const {
    return std::ranges::any_of(operations, [&](std::string_view one) { return is(one); });
  }
  bool accept(std::string_view operation) {
    if (!is(operation)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view operation) {
    if (!accept(operation)) throw Unreadable{};
  }
  bool at_end() const { return here().kind == TokenKind::end; }

  struct Level {
    explicit Level(Cursor& at) : cursor(at) {
      if (++cursor.depth_ > deepest || ++cursor.steps_ > most_steps) {
        --cursor.depth_;
        throw Unreadable{};
      }
    }
    ~Level() { --cursor.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Cursor& cursor;
  };

  static bool opens(const Token& token) {
    return token.kind == TokenKind::operation &&
           (token.text == "(" || token.text == "[" || token.text == "{" || token.text == "\\{");
  }
  static bool closes(const Token& token) {
    return token.kind == TokenKind::operation &&
           (token.text == ")" || token.text == "]" || token.text == "}" || token.text == "\\}");
  }

  // Which brackets have a comma or semicolon of their own.
  void mark_lists() {
    has_list_.assign(tokens_.size(), false);
    std::vector<size_t> open;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const Token& token = tokens_[i];
      if (opens(token)) open.push_back(i);
      if (closes(token) && !open.empty()) open.pop_back();
      const bool separator = token.kind == TokenKind::operation &&
                             (token.text == "," || token.text == ";" || token.text == "pm");
      if (separator && !open.empty()) has_list_[open.back()] = true;
    }
  }

  // Whether the bracket here has a comma or semicolon of its own.
  bool opens_list() const { return has_list_[at_]; }

  size_t at_ = 0;

 private:
  static constexpr int deepest = 64;
  static constexpr int most_steps = 100'000;  // of a parse that tries several readings

  std::vector<Token> tokens_;
  std::vector<bool> has_list_;
  int depth_ = 0, steps_ = 0;
};

}  // namespace trireme::reward::math
