// Parses expressions of templates, in Jinja's order of operations.
#pragma once

#include "text/jinja_tree.hpp"

namespace trireme::text::jinja {

class ExpressionParser : protected TreeBuilder {
 protected:
  using TreeBuilder::TreeBuilder;

  // Also a, b without brackets, which is a tuple.
  ExpressionPtr tuple();
  ExpressionPtr expression();
  // Without `a if b else c`, whose words end it.
  ExpressionPtr expression_before_if() { return logical_or(); }
  ExpressionPtr tuple_before_if();
  // Filters after `value`, each with | before its name; null stands for what is filtered.
  ExpressionPtr filters_after(ExpressionPtr value);
  // A name with its filters, as in {% filter upper | trim %}.
  ExpressionPtr named_filters();
  // Something that is called.
  ExpressionPtr call_expression();

 private:
  ExpressionPtr more_of_tuple(ExpressionPtr first, bool before_if);
  ExpressionPtr logical_or();
  ExpressionPtr logical_and();
  ExpressionPtr logical_not();
  std::string comparison_operator();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  template <class Operand>
  ExpressionPtr chain(std::initializer_list<std::string_view> operations, const Operand& operand);
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr primary();
  ExpressionPtr word(const Token& token);
  ExpressionPtr literal(const Token& token);
  ExpressionPtr integer(const Token& token);
  ExpressionPtr in_brackets(size_t at);
  ExpressionPtr list(size_t at);
  ExpressionPtr dict(size_t at);
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value, size_t at);
  void arguments(Expression& call);
  ExpressionPtr filter(ExpressionPtr value, size_t at);
  ExpressionPtr filtered(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value, size_t at);
  void argument_of_test(Expression& test);
};

}  // namespace trireme::text::jinja
