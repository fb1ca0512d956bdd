#include <algorithm>
#include <charconv>
#include <utility>

#include "text/jinja_syntax.hpp"
#include "text/jinja_tree.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

namespace {

using Kind = Token::Kind;

constexpr std::string_view tests[] = {"defined",  "undefined", "none",   "string",  "mapping",
                                      "iterable", "sequence",  "number", "integer", "float",
                                      "boolean",  "true",      "false",  "odd",     "even"};
constexpr std::string_view filters[] = {
    "trim",       "tojson", "length", "count",   "upper",      "lower",      "string",
    "first",      "last",   "join",   "default", "d",          "items",      "replace",
    "list",       "safe",   "select", "reject",  "selectattr", "rejectattr", "title",
    "capitalize", "map",    "indent", "reverse", "int",        "float",      "abs"};

class Parser : private TreeBuilder {
 public:
  explicit Parser(const Source& source) : TreeBuilder(source) {}

  Body run() {
    Body body;
    const std::string end = statements(body, {});
    if (!end.empty()) source_.fail(peek().at, "'" + end + "' without its beginning");
    return body;
  }

 private:
  // Statements up to a block that starts with one of `ends`; returns that word, "" at the end of
  // the template. The parser then stands behind the word.
  std::string statements(Body& body, std::initializer_list<std::string_view> ends) {
    const Nested nested(*this);
    for (;;) {
      const Token& token = take();
      if (token.kind == Kind::end) {
        if (ends.size() > 0)
          source_.fail(token.at,
                       "the template ends, expected {% " + std::string(*(ends.end() - 1)) + " %}");
        return "";
      }
      if (token.kind == Kind::text) {
        Statement statement;
        statement.text = token.text;
        body.push_back(std::move(statement));
      } else if (token.kind == Kind::output_begin) {
        Statement statement;
        statement.kind = Statement::Kind::output;
        statement.at = token.at;
        statement.condition = expression();
        if (peek().kind != Kind::output_end) expected("}}");
        ++next_;
        body.push_back(std::move(statement));
      } else {
        const size_t at = peek().at;
        const std::string word = expect_name();
        if (std::find(ends.begin(), ends.end(), word) != ends.end()) return word;
        block(word, at, body);
      }
    }
  }

  void block(const std::string& word, size_t at, Body& body) {
    if (word ==
        "generation") {  // marks the assistant's text for other programs; here its content counts
      expect_end_of_block();
      statements(body, {"endgeneration"});
      return expect_end_of_block();
    }
    Statement statement;
    statement.at = at;
    if (word == "if") {
      if_block(statement);
    } else if (word == "for") {
      for_block(statement);
    } else if (word == "set") {
      set_block(statement);
    } else if (word == "macro") {
      macro_block(statement);
    } else if (word == "break" || word == "continue") {
      if (loops_ == 0) source_.fail(at, "'" + word + "' outside a loop");
      statement.kind =
          word == "break" ? Statement::Kind::break_loop : Statement::Kind::continue_loop;
      expect_end_of_block();
    } else {
      source_.fail(at,
                   "the block '" + word +
                       "' is not known (known: if, for, set, macro, break, continue, generation)");
    }
    body.push_back(std::move(statement));
  }

  void if_block(Statement& statement) {
    statement.kind = Statement::Kind::branches;
    std::string word = "if";
    while (word != "endif") {
      Statement::Branch branch;
      const bool last = word == "else";
      if (!last) branch.condition = expression();
      expect_end_of_block();
      word = last ? statements(branch.body, {"endif"})
                  : statements(branch.body, {"elif", "else", "endif"});
      statement.branches.push_back(std::move(branch));
    }
    expect_end_of_block();
  }

  void for_block(Statement& statement) {
    statement.kind = Statement::Kind::loop;
    do { statement.names.push_back(expect_name()); } while (take_symbol(","));
    if (!take_word("in")) expected("'in'");
    statement.condition = logical_or();
    if (take_word("if")) statement.filter = expression();
    if (is_word("recursive")) source_.fail(peek().at, "a recursive loop is not known");
    expect_end_of_block();
    Statement::Branch body;
    Statement::Branch otherwise;
    ++loops_;
    std::string word = statements(body.body, {"else", "endfor"});
    --loops_;
    if (word == "else") {
      expect_end_of_block();
      statements(otherwise.body, {"endfor"});
    }
    expect_end_of_block();
    statement.branches.push_back(std::move(body));
    statement.branches.push_back(std::move(otherwise));
  }

  void set_block(Statement& statement) {
    statement.kind = Statement::Kind::assign;
    statement.names.push_back(expect_name());
    if (take_symbol(".")) statement.names.push_back(expect_name());
    if (peek().kind == Kind::block_end) {
      expect_end_of_block();
      statement.branches.emplace_back();
      statements(statement.branches[0].body, {"endset"});
      return expect_end_of_block();
    }
    while (is_symbol(",") &&
           (statement.names.size() == 1 || statement.kind == Statement::Kind::unpack)) {
      statement.kind = Statement::Kind::unpack;
      ++next_;
      statement.names.push_back(expect_name());
    }
    expect_symbol("=");
    statement.condition = tuple();
    expect_end_of_block();
  }

  // {% macro name(a, b=1) %}: what is in it is rendered where it is called.
  void macro_block(Statement& statement) {
    statement.kind = Statement::Kind::macro;
    statement.names.push_back(expect_name());
    expect_symbol("(");
    while (!take_symbol(")")) {
      if (statement.names.size() > 1) expect_symbol(",");
      statement.names.push_back(expect_name());
      if (take_symbol("=")) {
        statement.defaults.push_back(expression());
      } else if (!statement.defaults.empty()) {
        source_.fail(peek().at, "a parameter without a default behind one with a default");
      }
    }
    expect_end_of_block();
    const int loops = std::exchange(loops_, 0);
    statement.branches.emplace_back();
    statements(statement.branches[0].body, {"endmacro"});
    loops_ = loops;
    expect_end_of_block();
  }

  // a, b is a list: templates cannot tell it from a tuple, which they do not print.
  ExpressionPtr tuple() {
    ExpressionPtr value = expression();
    return is_symbol(",") ? more_of_tuple(std::move(value)) : std::move(value);
  }
  ExpressionPtr more_of_tuple(ExpressionPtr first) {
    auto made = node(Expression::Kind::list, peek().at);
    add(*made, std::move(first));
    while (take_symbol(",")) {
      if (is_symbol(")") || peek().kind == Kind::block_end) break;
      add(*made, expression());
    }
    return made;
  }

  ExpressionPtr expression() {
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
  ExpressionPtr logical_or() {
    ExpressionPtr left = logical_and();
    while (is_word("or")) {
      const size_t at = take().at;
      left = binary("or", at, std::move(left), logical_and());
    }
    return left;
  }
  ExpressionPtr logical_and() {
    ExpressionPtr left = logical_not();
    while (is_word("and")) {
      const size_t at = take().at;
      left = binary("and", at, std::move(left), logical_not());
    }
    return left;
  }
  ExpressionPtr logical_not() {
    if (!is_word("not")) return comparison();
    const Nested nested(*this);
    auto made = node(Expression::Kind::logical_not, take().at);
    add(*made, logical_not());
    return made;
  }

  // The comparison operator that comes next, taken; "" when there is none.
  std::string comparison_operator() {
    for (const char* symbol : {"==", "!=", "<", "<=", ">", ">="}) {
      if (take_symbol(symbol)) return symbol;
    }
    if (take_word("in")) return "in";
    const bool not_in =
        is_word("not") && tokens_[next_ + 1].kind == Kind::name && tokens_[next_ + 1].text == "in";
    if (!not_in) return "";
    next_ += 2;
    return "not in";
  }
  ExpressionPtr comparison() {
    ExpressionPtr left = sum();
    const size_t at = peek().at;
    const std::string operation = comparison_operator();
    if (operation.empty()) return left;
    left = binary(operation, at, std::move(left), sum());
    const size_t second = peek().at;
    if (!comparison_operator().empty()) source_.fail(second, "a chain of comparisons is not known");
    return left;
  }
  // Jinja's order: + and - bind looser than ~, which binds looser than the products.
  ExpressionPtr sum() {
    return chain({"+", "-"}, [this] { return concatenation(); });
  }
  ExpressionPtr concatenation() {
    return chain({"~"}, [this] { return product(); });
  }
  ExpressionPtr product() {
    return chain({"*", "/", "//", "%"}, [this] { return unary(); });
  }
  template <class Operand>
  ExpressionPtr chain(std::initializer_list<std::string_view> operations, const Operand& operand) {
    ExpressionPtr left = operand();
    while (peek().kind == Kind::symbol &&
           std::find(operations.begin(), operations.end(), peek().text) != operations.end()) {
      const Token& token = take();
      left = binary(token.text, token.at, std::move(left), operand());
    }
    if (is_symbol("**")) source_.fail(peek().at, "the operator ** is not known");
    return left;
  }
  ExpressionPtr unary(bool with_filter = true) {
    const Nested nested(*this);
    const size_t at = peek().at;
    ExpressionPtr value;
    if (take_symbol("-")) {
      value = node(Expression::Kind::negate, at);
      add(*value, unary(false));
    } else {
      take_symbol("+");
      value = postfix(primary());
    }
    return with_filter ? filtered(std::move(value)) : std::move(value);
  }

  ExpressionPtr primary() {
    const Token& token = take();
    if (token.kind == Kind::name) return word(token);
    if (token.kind == Kind::string || token.kind == Kind::integer || token.kind == Kind::number)
      return literal(token);
    if (token.kind == Kind::symbol && token.text == "(") {
      ExpressionPtr value = tuple();
      expect_symbol(")");
      return value;
    }
    if (token.kind == Kind::symbol && token.text == "[") return list(token.at);
    if (token.kind == Kind::symbol && token.text == "{") return dict(token.at);
    --next_;
    expected("a value");
  }
  ExpressionPtr word(const Token& token) {
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
  ExpressionPtr literal(const Token& token) {
    auto made = node(Expression::Kind::literal, token.at);
    if (token.kind == Kind::string) {
      std::string text = token.text;
      while (peek().kind == Kind::string) text += take().text;
      made->value = std::move(text);
      return made;
    }
    const char* end = token.text.data() + token.text.size();
    int64_t integer = 0;
    double number = 0;
    const bool whole = token.kind == Kind::integer;
    const auto error = whole ? std::from_chars(token.text.data(), end, integer).ec
                             : std::from_chars(token.text.data(), end, number).ec;
    if (error != std::errc())
      source_.fail(token.at, "the number " + token.text + " is out of range");
    made->value = whole ? Value(integer) : Value(number);
    return made;
  }
  ExpressionPtr list(size_t at) {
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
  ExpressionPtr dict(size_t at) {
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

  ExpressionPtr postfix(ExpressionPtr value) {
    for (;;) {
      const size_t at = peek().at;
      if (take_symbol(".")) {
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
  ExpressionPtr subscript(ExpressionPtr value, size_t at) {
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
  // Arguments behind "(", up to and with ")".
  void arguments(Expression& call) {
    bool first = true;
    while (!take_symbol(")")) {
      if (!first) {
        expect_symbol(",");
        if (take_symbol(")")) return;
      }
      first = false;
      const bool keyword = peek().kind == Kind::name && tokens_[next_ + 1].kind == Kind::symbol &&
                           tokens_[next_ + 1].text == "=";
      if (keyword) {
        const std::string name = take().text;
        ++next_;
        add_keyword(call, name, expression());
      } else {
        if (!call.keywords.empty())
          source_.fail(peek().at, "an argument without a name behind one with a name");
        add(call, expression());
      }
    }
  }

  ExpressionPtr filtered(ExpressionPtr value) {
    for (;;) {
      const size_t at = peek().at;
      if (take_symbol("|")) {
        auto made = node(Expression::Kind::filter, at, expect_name());
        if (std::ranges::find(filters, made->text) == std::end(filters)) {
          source_.fail(at, "the filter '" + made->text + "' is not known");
        }
        add(*made, std::move(value));
        if (take_symbol("(")) arguments(*made);
        value = std::move(made);
      } else if (take_word("is")) {
        value = test(std::move(value), at);
      } else {
        return value;
      }
    }
  }
  ExpressionPtr test(ExpressionPtr value, size_t at) {
    const bool negated = take_word("not");
    auto made = node(Expression::Kind::test, at, expect_name());
    if (!is_test(made->text)) { source_.fail(at, "the test '" + made->text + "' is not known"); }
    add(*made, std::move(value));
    if (!negated) return made;
    auto inverse = node(Expression::Kind::logical_not, at);
    add(*inverse, std::move(made));
    return inverse;
  }

  int loops_ = 0;  // loops around the statement that is read
};

}  // namespace

bool is_test(std::string_view name) { return std::ranges::find(tests, name) != std::end(tests); }

Body parse(const Source& source) { return Parser(source).run(); }

}  // namespace trireme::text::jinja
