#include "text/jinja_expression_parser.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "text/jinja_call.hpp"

namespace trireme::text::jinja {

ExpressionPtr ExpressionParser::tuple() {
  ExpressionPtr value = expression();
  return is_symbol(",") ? more_of_tuple(std::move(value), false) : std::move(value);
}

ExpressionPtr ExpressionParser::tuple_before_if() {
  ExpressionPtr value = logical_or();
  return is_symbol(",") ? more_of_tuple(std::move(value), true) : std::move(value);
}

ExpressionPtr ExpressionParser::more_of_tuple(ExpressionPtr first, bool before_if) {
  auto made = node(Expression::Kind::tuple, peek().at);
  add(*made, std::move(first));
  while (take_symbol(",")) {
    const bool ends = is_symbol(")") || peek().kind == Token::Kind::block_end ||
                      peek().kind == Token::Kind::output_end || is_word("recursive");
    if (ends) break;
    add(*made, before_if ? logical_or() : expression());
  }
  return made;
}

ExpressionPtr ExpressionParser::expression() {
  const Nested nested(*this);
  ExpressionPtr value = logical_or();
  while (is_word("if")) {
    auto made = node(Expression::Kind::conditional, take().at);
    add(*made, std::move(value));
    add(*made, logical_or());
    add(*made, take_word("else") ? expression() : nullptr);
    value = std::move(made);
  }
  return value;
}

ExpressionPtr ExpressionParser::logical_or() {
  ExpressionPtr left = logical_and();
  while (is_word("or")) {
    const size_t at = take().at;
    left = binary("or", at, std::move(left), logical_and());
  }
  return left;
}

ExpressionPtr ExpressionParser::logical_and() {
  ExpressionPtr left = logical_not();
  while (is_word("and")) {
    const size_t at = take().at;
    left = binary("and", at, std::move(left), logical_not());
  }
  return left;
}

ExpressionPtr ExpressionParser::logical_not() {
  if (!is_word("not")) return comparison();
  const Nested nested(*this);
  auto made = node(Expression::Kind::logical_not, take().at);
  add(*made, logical_not());
  return made;
}

// The comparison operator that comes next, taken; "" when there is none.
std::string ExpressionParser::comparison_operator() {
  for (const char* symbol : {"==", "!=", "<", "<=", ">", ">="}) {
    if (take_symbol(symbol)) return symbol;
  }
  if (take_word("in")) return "in";
  if (!is_word("not") || !next_is(1, Token::Kind::name, "in")) return "";
  next_ += 2;
  return "not in";
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr left = sum();
  const size_t at = peek().at;
  std::string operation = comparison_operator();
  if (operation.empty()) return left;
  auto made = node(Expression::Kind::comparison, at);
  add(*made, std::move(left));
  while (!operation.empty()) {
    made->operations.push_back(std::move(operation));
    if (made->operations.size() > highest)
      source_.fail(at, base::text("a chain of more than ", highest, " operations"));
    add(*made, sum());
    operation = comparison_operator();
  }
  return made;
}

// Jinja's order: + and - bind looser than ~, which binds looser than the products.
ExpressionPtr ExpressionParser::sum() {
  return chain({"+", "-"}, [this] { return concatenation(); });
}
ExpressionPtr ExpressionParser::concatenation() {
  return chain({"~"}, [this] { return product(); });
}
ExpressionPtr ExpressionParser::product() {
  return chain({"*", "/", "//", "%"}, [this] { return power(); });
}
ExpressionPtr ExpressionParser::power() {
  return chain({"**"}, [this] { return unary(); });
}

template <class Operand>
ExpressionPtr ExpressionParser::chain(std::initializer_list<std::string_view> operations,
                                      const Operand& operand) {
  ExpressionPtr left = operand();
  while (peek().kind == Token::Kind::symbol &&
         std::find(operations.begin(), operations.end(), peek().text) != operations.end()) {
    const Token& token = take();
    left = binary(token.text, token.at, std::move(left), operand());
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  const Nested nested(*this);
  const size_t at = peek().at;
  ExpressionPtr value;
  if (is_symbol("-") || is_symbol("+")) {
    value = node(take().text == "-" ? Expression::Kind::negate : Expression::Kind::plus, at);
    add(*value, unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filtered(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  const Token& token = take();
  if (token.kind == Token::Kind::name) return word(token);
  if (token.kind == Token::Kind::string || token.kind == Token::Kind::integer ||
      token.kind == Token::Kind::number)
    return literal(token);
  if (token.kind == Token::Kind::symbol && token.text == "(") return in_brackets(token.at);
  if (token.kind == Token::Kind::symbol && token.text == "[") return list(token.at);
  if (token.kind == Token::Kind::symbol && token.text == "{") return dict(token.at);
  --next_;
  expected("a value");
}

ExpressionPtr ExpressionParser::in_brackets(size_t at) {
  if (take_symbol(")")) return node(Expression::Kind::tuple, at);
  ExpressionPtr value = tuple();
  expect_symbol(")");
  return value;
}

ExpressionPtr ExpressionParser::word(const Token& token) {
  auto made = node(Expression::Kind::literal, token.at);
  if (token.text == "true" || token.text == "True") {
    made->value = true;
  } else if (token.text == "false" || token.text == "False") {
    made->value = false;
  } else if (token.text == "none" || token.text == "None") {
    made->value = None{};
  } else {
    made->kind = Expression::Kind::name;
    made->text = token.text;
  }
  return made;
}

ExpressionPtr ExpressionParser::literal(const Token& token) {
  if (token.kind == Token::Kind::integer) return integer(token);
  auto made = node(Expression::Kind::literal, token.at);
  if (token.kind == Token::Kind::string) {
    std::string text = token.text;
    while (peek().kind == Token::Kind::string) text += take().text;
    made->value = std::move(text);
  } else {
    made->value = std::strtod(token.text.c_str(), nullptr);
  }
  return made;
}

// The lexer has taken out underscores; 0x, 0o and 0b stand before other digits.
ExpressionPtr ExpressionParser::integer(const Token& token) {
  auto made = node(Expression::Kind::literal, token.at);
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0') {
    const char kind = static_cast<char>(digits[1] | 0x20);
    base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    if (base != 10) digits.remove_prefix(2);
  }
  int64_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (read.ec == std::errc()) {
    made->value = value;
  } else if (base == 10) {
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
    made->value = BigInteger{std::string(digits)};
  } else {
    source_.fail(token.at, "the number " + token.text.substr(0, 100) + " is out of range");
  }
  return made;
}

ExpressionPtr ExpressionParser::list(size_t at) {
  auto made = node(Expression::Kind::list, at);
  while (!take_symbol("]")) {
    if (!made->parts.empty()) {
      expect_symbol(",");
      if (take_symbol("]")) break;
    }
    add(*made, expression());
  }
  return made;
}

ExpressionPtr ExpressionParser::dict(size_t at) {
  auto made = node(Expression::Kind::dict, at);
  while (!take_symbol("}")) {
    if (!made->parts.empty()) {
      expect_symbol(",");
      if (take_symbol("}")) break;
    }
    add(*made, expression());
    expect_symbol(":");
    add(*made, expression());
  }
  return made;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  for (;;) {
    const size_t at = peek().at;
    if (take_symbol(".")) {
      if (peek().kind == Token::Kind::integer) {  // a.0 is a[0]
        auto made = node(Expression::Kind::index, at);
        add(*made, std::move(value));
        add(*made, integer(take()));
        value = std::move(made);
        continue;
      }
      auto made = node(Expression::Kind::attribute, at, expect_name());
      add(*made, std::move(value));
      value = std::move(made);
    } else if (take_symbol("[")) {
      value = subscript(std::move(value), at);
    } else if (take_symbol("(")) {
      auto made = node(Expression::Kind::call, at);
      add(*made, std::move(value));
      arguments(*made);
      value = std::move(made);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value, size_t at) {
  auto made = node(Expression::Kind::index, at);
  add(*made, std::move(value));
  add(*made, is_symbol(":") ? nullptr : expression());
  if (is_symbol(":")) {
    made->kind = Expression::Kind::slice;
    while (take_symbol(":")) {
      add(*made, is_symbol(":") || is_symbol("]") ? nullptr : expression());
    }
    if (made->parts.size() > 4) source_.fail(at, "a slice has at most two colons");
    made->parts.resize(4);
  }
  expect_symbol("]");
  return made;
}

// Arguments after "(", up to and with ")".
void ExpressionParser::arguments(Expression& call) {
  bool first = true;
  while (!take_symbol(")")) {
    if (!first) {
      expect_symbol(",");
      if (take_symbol(")")) return;
    }
    first = false;
    if (is_symbol("*") || is_symbol("**"))
      source_.fail(peek().at, "arguments from a list or a mapping (* and **) are not known");
    if (peek().kind == Token::Kind::name && next_is(1, Token::Kind::symbol, "=")) {
      const std::string name = take().text;
      ++next_;
      add_keyword(call, name, expression());
    } else {
      if (!call.keywords.empty())
        source_.fail(peek().at, "an argument without a name after one with a name");
      add(call, expression());
    }
  }
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr value, size_t at) {
  auto made = node(Expression::Kind::filter, at, expect_name());
  if (find_filter(made->text) == nullptr)
    source_.fail(at, "the filter '" + made->text + "' is not known");
  add(*made, std::move(value));
  if (take_symbol("(")) arguments(*made);
  return made;
}

ExpressionPtr ExpressionParser::filters_after(ExpressionPtr value) {
  for (size_t at = peek().at; take_symbol("|"); at = peek().at)
    value = filter(std::move(value), at);
  return value;
}

ExpressionPtr ExpressionParser::named_filters() {
  const size_t at = peek().at;
  return filters_after(filter(nullptr, at));
}

ExpressionPtr ExpressionParser::call_expression() {
  const size_t at = peek().at;
  ExpressionPtr value = expression();
  if (value->kind != Expression::Kind::call) source_.fail(at, "expected a call");
  return value;
}

ExpressionPtr ExpressionParser::filtered(ExpressionPtr value) {
  for (;;) {
    const size_t at = peek().at;
    if (take_symbol("|")) {
      value = filter(std::move(value), at);
    } else if (take_word("is")) {
      value = test(std::move(value), at);
    } else if (take_symbol("(")) {  // calls a filter's result
      auto made = node(Expression::Kind::call, at);
      add(*made, std::move(value));
      arguments(*made);
      value = std::move(made);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value, size_t at) {
  const bool negated = take_word("not");
  auto made = node(Expression::Kind::test, at, expect_name());
  if (find_test(made->text) == nullptr)
    source_.fail(at, "the test '" + made->text + "' is not known");
  add(*made, std::move(value));
  if (take_symbol("(")) {
    arguments(*made);
  } else {
    argument_of_test(*made);
  }
  if (!negated) return made;
  auto inverse = node(Expression::Kind::logical_not, at);
  add(*inverse, std::move(made));
  return inverse;
}

// `x is divisibleby 3`: a value without brackets.
void ExpressionParser::argument_of_test(Expression& test) {
  const Token& next = peek();
  const bool value = next.kind == Token::Kind::name || next.kind == Token::Kind::string ||
                     next.kind == Token::Kind::integer || next.kind == Token::Kind::number ||
                     is_symbol("[") || is_symbol("{");
  if (!value || is_word("else") || is_word("or") || is_word("and") || is_word("if")) return;
  if (is_word("is")) source_.fail(next.at, "a test after a test (put the first in brackets)");
  if (is_word("in") || is_word("not")) return;
  add(test, postfix(primary()));
}

}  // namespace trireme::text::jinja
