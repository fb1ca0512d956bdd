// Puts syntax trees together and bounds their height, for the parser.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "text/jinja_cursor.hpp"

namespace trireme::text::jinja {

class TreeBuilder : protected TokenCursor {
 protected:
  using TokenCursor::TokenCursor;

  // Evaluation and destruction call themselves once a level. Chains such as a + b + c grow one at
  // each operator, without nesting in the text; Python, which Jinja compiles templates to, ends
  // there with "too many nested parentheses".
  static constexpr int highest = 200;

  static ExpressionPtr node(Expression::Kind kind, size_t at, std::string text = "") {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->at = at;
    made->text = std::move(text);
    return made;
  }
  ExpressionPtr binary(std::string text, size_t at, ExpressionPtr left, ExpressionPtr right) const {
    auto made = node(Expression::Kind::binary, at, std::move(text));
    add(*made, std::move(left));
    add(*made, std::move(right));
    return made;
  }
  // `part` may be null, which stands for a part that was left out.
  void add(Expression& to, ExpressionPtr part) const {
    raise(to, part);
    to.parts.push_back(std::move(part));
  }
  void add_keyword(Expression& to, std::string name, ExpressionPtr value) const {
    raise(to, value);
    to.keywords.emplace_back(std::move(name), std::move(value));
  }

 private:
  void raise(Expression& parent, const ExpressionPtr& part) const {
    if (part) parent.height = std::max(parent.height, part->height + 1);
    if (parent.height > highest)
      source_.fail(parent.at, base::text("a chain of more than ", highest, " operations"));
  }
};

}  // namespace trireme::text::jinja
