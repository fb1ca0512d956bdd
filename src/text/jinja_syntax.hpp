// Tokens and syntax trees of the template interpreter.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.hpp"

namespace trireme::text::jinja {

// The template's text; positions are byte offsets into it.
struct Source {
  std::string text;
  std::string name;  // file
  // Throws UserError(bad_data): "file: template line L, column C: problem".
  [[noreturn]] void fail(size_t at, const std::string& problem) const;
};

struct Token {
  enum class Kind {
    text,
    block_begin,
    block_end,
    output_begin,
    output_end,
    name,
    string,
    integer,
    number,
    symbol,
    end
  };
  Kind kind = Kind::end;
  std::string text;  // of literals: their value
  size_t at = 0;
};
std::vector<Token> tokenize(const Source& source);

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    literal,      // value
    list,         // parts
    tuple,        // parts
    dict,         // parts: key, value, key, value, ...
    name,         // text
    attribute,    // parts[0] . text
    index,        // parts[0] [ parts[1] ]
    slice,        // parts[0] [ parts[1] : parts[2] : parts[3] ], any of the last three may be null
    call,         // parts[0] ( parts[1..], keywords )
    filter,       // parts[0] | text ( parts[1..], keywords )
    test,         // parts[0] is text ( parts[1..], keywords )
    negate,       // - parts[0]
    plus,         // + parts[0]
    logical_not,  // not parts[0]
    binary,       // parts[0] text parts[1]
    comparison,   // parts[0] operations[0] parts[1] operations[1] parts[2] ...
    conditional   // parts[0] if parts[1] else parts[2] (may be null)
  };
  Kind kind = Kind::literal;
  size_t at = 0;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  std::vector<std::string> operations;
  int height = 1;  // 1 + that of the highest part
};

struct Statement;
using Body = std::vector<Statement>;

struct Statement {
  enum class Kind {
    text,      // text
    output,    // condition
    branches,  // if / elif / else: one Branch each
    loop,      // for names in condition if filter: branches[0]; else: branches[1]
    assign,    // set names = condition, or names[0].attribute; without condition: branches[0],
               // through the filters of `filter`
    with,      // names[i] = values[i]: branches[0]
    filter,    // branches[0], through the filters of `filter`
    macro,     // names[0](names[1..]): branches[0]; the last parameters have `values` as defaults
    call,      // condition is a call, which gets branches[0] as the macro `caller`
    break_loop,
    continue_loop
  };
  struct Branch;
  Kind kind = Kind::text;
  size_t at = 0;
  std::string text;
  std::vector<std::string> names;
  std::string attribute;  // of a namespace
  bool several = false;   // names are unpacked, even one
  bool recursive = false;
  // Names that a macro's body uses without being parameters: it takes more arguments then.
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;
  ExpressionPtr condition;
  ExpressionPtr filter;  // of a loop: its condition
  std::vector<ExpressionPtr> values;
  std::vector<Branch> branches;
};
struct Statement::Branch {
  ExpressionPtr condition;  // null: always
  Body body;
};

// Throws UserError(bad_data) with the position of the first construct that is not known.
Body parse(const Source& source);

}  // namespace trireme::text::jinja
