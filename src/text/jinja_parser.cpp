#include <algorithm>
#include <utility>

#include "text/jinja_expression_parser.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(const Source& source) : ExpressionParser(source) {}

  Body run() {
    Body body;
    const std::string end = statements(body, {});
    if (!end.empty()) source_.fail(peek().at, "'" + end + "' without its beginning");
    return body;
  }

 private:
  using Block = void (Parser::*)(Statement&);

  // Statements up to a block that starts with one of `ends`; returns that word, "" at the end of
  // the template. The parser is then after the word.
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
        statement.condition = tuple();
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

  // The statements of a block of its own, with its end.
  void block_body(Statement& statement, std::string_view end) {
    expect_end_of_block();
    statement.branches.emplace_back();
    statements(statement.branches.back().body, {end});
    expect_end_of_block();
  }
  void block(const std::string& word, size_t at, Body& body) {
    if (word ==
        "generation") {  // marks the assistant's text for other programs; here its content counts
      expect_end_of_block();
      statements(body, {"endgeneration"});
      return expect_end_of_block();
    }
    static constexpr std::pair<std::string_view, Block> blocks[] = {
        {"if", &Parser::if_block},
        {"for", &Parser::for_block},
        {"set", &Parser::set_block},
        {"macro", &Parser::macro_block},
        {"call", &Parser::call_block},
        {"filter", &Parser::filter_block},
        {"with", &Parser::with_block},
        {"break", &Parser::break_block},
        {"continue", &Parser::continue_block}};
    Statement statement;
    statement.at = at;
    const auto* const found =
        std::ranges::find(blocks, word, &std::pair<std::string_view, Block>::first);
    if (found == std::end(blocks)) {
      source_.fail(at, "the block '" + word +
                           "' is not known (known: if, for, set, macro, call, filter, with, raw, "
                           "break, continue, generation)");
    }
    (this->*found->second)(statement);
    body.push_back(std::move(statement));
  }

  void break_block(Statement& statement) { leave(statement, Statement::Kind::break_loop, "break"); }
  void continue_block(Statement& statement) {
    leave(statement, Statement::Kind::continue_loop, "continue");
  }
  void leave(Statement& statement, Statement::Kind kind, const std::string& word) {
    if (loops_ == 0) source_.fail(statement.at, "'" + word + "' outside a loop");
    statement.kind = kind;
    expect_end_of_block();
  }

  void if_block(Statement& statement) {
    statement.kind = Statement::Kind::branches;
    std::string word = "if";
    while (word != "endif") {
      Statement::Branch branch;
      const bool last = word == "else";
      if (!last) branch.condition = tuple();
      expect_end_of_block();
      word = last ? statements(branch.body, {"endif"})
                  : statements(branch.body, {"elif", "else", "endif"});
      statement.branches.push_back(std::move(branch));
    }
    expect_end_of_block();
  }

  // a, b or (a, b); `several` for one name with a comma, too.
  void names(Statement& statement) {
    const bool brackets = take_symbol("(");
    for (;;) {
      statement.names.push_back(expect_name());
      if (!take_symbol(",")) break;
      statement.several = true;
      if (peek().kind != Kind::name || is_word("in")) break;
    }
    if (brackets) expect_symbol(")");
  }

  void for_block(Statement& statement) {
    statement.kind = Statement::Kind::loop;
    names(statement);
    if (!take_word("in")) expected("'in'");
    statement.condition = tuple_before_if();
    if (take_word("if")) statement.filter = expression();
    statement.recursive = take_word("recursive");
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
    names(statement);
    if (!statement.several && take_symbol(".")) statement.attribute = expect_name();
    if (!statement.several && !is_symbol("=")) {
      if (is_symbol("|")) statement.filter = filters_after(nullptr);
      if (peek().kind != Kind::block_end) expected("'='");
      return outside_loops([&] { block_body(statement, "endset"); });
    }
    expect_symbol("=");
    statement.condition = tuple();
    expect_end_of_block();
  }

  // Its body is not part of the loop around it.
  template <class Read>
  void outside_loops(const Read& read) {
    const int loops = std::exchange(loops_, 0);
    read();
    loops_ = loops;
  }

  // (a, b=1) of a macro or of a call block
  void parameters(Statement& statement) {
    expect_symbol("(");
    while (!take_symbol(")")) {
      if (statement.names.size() > 1) expect_symbol(",");
      statement.names.push_back(expect_name());
      if (take_symbol("=")) {
        statement.values.push_back(expression());
      } else if (!statement.values.empty()) {
        source_.fail(peek().at, "a parameter without a default after one with a default");
      }
    }
  }

  // The body of a macro, and what it asks for beside its parameters.
  void macro_body(Statement& statement, std::string_view end) {
    const size_t first = next_;
    outside_loops([&] { block_body(statement, end); });
    for (size_t i = first; i < next_; ++i) {
      if (tokens_[i].kind != Kind::name) continue;
      statement.takes_varargs = statement.takes_varargs || tokens_[i].text == "varargs";
      statement.takes_kwargs = statement.takes_kwargs || tokens_[i].text == "kwargs";
      statement.takes_caller = statement.takes_caller || tokens_[i].text == "caller";
    }
  }

  // {% macro name(a, b=1) %}: its body is rendered where it is called.
  void macro_block(Statement& statement) {
    statement.kind = Statement::Kind::macro;
    statement.names.push_back(expect_name());
    parameters(statement);
    macro_body(statement, "endmacro");
  }

  // {% call(a) f() %}: f gets what is in it as the macro `caller`.
  void call_block(Statement& statement) {
    Statement caller;
    caller.kind = Statement::Kind::macro;
    caller.at = statement.at;
    caller.names.emplace_back("caller");
    if (is_symbol("(")) parameters(caller);
    statement.kind = Statement::Kind::call;
    statement.condition = call_expression();
    macro_body(caller, "endcall");
    statement.branches.emplace_back();
    statement.branches[0].body.push_back(std::move(caller));
  }

  void filter_block(Statement& statement) {
    statement.kind = Statement::Kind::filter;
    statement.filter = named_filters();
    outside_loops([&] { block_body(statement, "endfilter"); });
  }

  void with_block(Statement& statement) {
    statement.kind = Statement::Kind::with;
    while (peek().kind != Kind::block_end) {
      if (!statement.names.empty()) expect_symbol(",");
      statement.names.push_back(expect_name());
      expect_symbol("=");
      statement.values.push_back(expression());
    }
    block_body(statement, "endwith");
  }

  int loops_ = 0;  // loops around the statement that is read
};

}  // namespace

Body parse(const Source& source) { return Parser(source).run(); }

}  // namespace trireme::text::jinja
