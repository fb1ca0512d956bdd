#include "reward/math_expression.hpp"

namespace trireme::reward::math {

Term Expressions::expression() {
  const Level level(*this);
  Term left = factors(Functions::allowed);
  while (is_any({"+", "-"})) {
    const bool minus = is("-");
    ++at_;
    const Term right = factors(Functions::allowed);
    left = sum(left, minus ? negative(right) : right);
  }
  return left;
}

Term Expressions::factors(Functions functions) {
  Term left = signed_product(functions);
  while (is_any({"*", "/", "mod"})) {
    const std::string operation = here().text;
    ++at_;
    const Term right = signed_product(functions);
    left = operation == "*"   ? product(left, right)
           : operation == "/" ? quotient(left, right)
                              : make(Kind::function, "mod", {left, right});
  }
  return left;
}

Term Expressions::signed_product(Functions functions) {
  const Level level(*this);
  if (accept("+")) return signed_product(functions);
  if (accept("-")) return negative(signed_product(functions));
  std::vector<Term> parts{postfix(Functions::allowed)};
  while (starts_factor(functions)) parts.push_back(postfix(functions));
  Term value = parts.back();
  for (size_t i = parts.size() - 1; i-- > 0;) value = side_by_side(parts[i], value);
  return value;
}

Term Expressions::side_by_side(const Term& left, const Term& right) {
  const bool mixed =
      left->is_integer && right->is_rational && evaluate(*right, 0).approximate.real() > 0;
  if (!mixed) return product(left, right);
  const bool minus = evaluate(*left, 0).approximate.real() < 0;
  Value value;
  value.kind = Kind::add;
  value.parts = {left, minus ? negative(right) : right};
  value.is_rational = true;
  value.is_integer = right->is_integer;
  return std::make_shared<const Value>(std::move(value));
}

bool Expressions::starts_factor(Functions functions) const {
  switch (here().kind) {
    case TokenKind::end: return false;
    case TokenKind::exponential:
    case TokenKind::function: return functions == Functions::allowed;
    case TokenKind::operation: break;
    default: return true;
  }
  if (is("sqrt") || is("operatorname")) return functions == Functions::allowed;
  return is_any({"(", "[", "{", "\\{", "lbrace", "group", "boxed", "lvert", "lfloor", "lceil",
                 "frac", "binom", "matrix", "infinity"}) ||
         (is("|") && bars_ == 0) || (is("vert") && bars_ == 0);
}

Term Expressions::postfix(Functions functions) {
  Term value = component(functions);
  for (;;) {
    if (accept("^")) {
      value = power(value, exponent());
    } else if (accept("!")) {
      value = make(Kind::function, "factorial", {value});
    } else if (!accept("degree") && !accept("transpose")) {
      return value;
    }
  }
}

Term Expressions::exponent() {
  const Level level(*this);
  if (!accept("{")) return atom();
  const Term value = expression();
  expect("}");
  return value;
}

Term Expressions::between(std::string_view open, std::string_view close) {
  expect(open);
  const int bars = std::exchange(bars_, 0);
  const Term value = expression();
  bars_ = bars;
  expect(close);
  return value;
}

Term Expressions::bars(std::string_view bar) {
  ++at_;
  const int outer = std::exchange(bars_, 1);
  const Term value = expression();
  bars_ = outer;
  expect(bar);
  return make(Kind::function, "abs", {value});
}

Term Expressions::component(Functions functions) {
  const Level level(*this);
  if (is("(")) return between("(", ")");
  if (is("[")) return between("[", "]");
  if (is("\\{")) return between("\\{", "\\}");
  if (is("lbrace")) return between("lbrace", "rbrace");
  if (is("{")) return braces();
  if (accept("group") || accept("boxed")) return between("{", "}");
  if (is("|") || is("vert")) return bars(std::string(here().text));
  if (is("lvert")) return make(Kind::function, "abs", {between("lvert", "rvert")});
  if (is("lfloor")) return make(Kind::function, "floor", {between("lfloor", "rfloor")});
  if (is("lceil")) return make(Kind::function, "ceil", {between("lceil", "rceil")});
  if (accept("frac")) return fraction();
  if (accept("binom")) return binomial(between("{", "}"));
  if (accept("matrix")) return matrix();
  if (functions == Functions::allowed) {
    if (here().kind == TokenKind::function || is("operatorname")) return function();
    if (accept("sqrt")) return root();
    if (here().kind == TokenKind::exponential) return exponential();
  }
  return atom();
}

Term Expressions::braces() {
  expect("{");
  const int bars = std::exchange(bars_, 0);
  const Term value = expression();
  Term bottom;
  if (accept("choose")) bottom = expression();
  bars_ = bars;
  expect("}");
  return bottom ? make(Kind::function, "binomial", {value, bottom}) : value;
}

Term Expressions::fraction() {
  const Term top = between("{", "}");
  return quotient(top, between("{", "}"));
}

Term Expressions::binomial(const Term& top) {
  return make(Kind::function, "binomial", {top, between("{", "}")});
}

Term Expressions::root() {
  const Term degree = is("[") ? between("[", "]") : integer(2);
  return power(between("{", "}"), quotient(integer(1), degree));
}

Term Expressions::exponential() {
  ++at_;
  if (accept("^")) return make(Kind::function, "exp", {exponent()});
  return make(Kind::constant, "e");
}

Term Expressions::matrix() {
  Value value;
  value.kind = Kind::matrix;
  do {
    if (is("end matrix")) break;  // after a last \\.
    size_t columns = 0;
    do {
      value.parts.push_back(expression());
      ++columns;
    } while (accept("&"));
    if (value.columns != 0 && columns != value.columns) throw Unreadable{};
    value.columns = columns;
  } while (accept("\\\\"));
  expect("end matrix");
  return std::make_shared<const Value>(std::move(value));
}

Term Expressions::function() {
  std::string name = function_name();
  Term base, exponent_of_all;
  while (is("_") || is("^")) {
    Term& part = is("_") ? base : exponent_of_all;
    if (part) throw Unreadable{};
    ++at_;
    part = exponent();
  }
  std::vector<Term> arguments;
  if (is("(")) {
    ++at_;
    const int bars = std::exchange(bars_, 0);
    do arguments.push_back(expression());
    while (accept(","));
    bars_ = bars;
    expect(")");
  } else {
    arguments.push_back(factors(Functions::refused));
  }
  const bool many = name == "gcd" || name == "lcm" || name == "max" || name == "min";
  if (!many && arguments.size() != 1) throw Unreadable{};
  if (exponent_of_all && is_minus_one(*exponent_of_all) && name.size() == 3) {
    name = "a" + name;
    exponent_of_all = nullptr;
  }
  Term value;
  if (name == "log" || name == "ln") {
    if (name == "log" && !base) base = integer(10);
    value = make(Kind::function, "ln", {arguments[0]});
    if (base) value = quotient(value, make(Kind::function, "ln", {base}));
  } else {
    value = make(Kind::function, std::move(name), std::move(arguments));
  }
  return exponent_of_all ? power(value, exponent_of_all) : value;
}

bool Expressions::is_minus_one(const Value& value) {
  const auto whole = evaluate(value, 0).whole;
  return whole && *whole == -1;
}

std::string Expressions::function_name() {
  std::string name = here().text;
  if (is("operatorname")) throw Unreadable{};
  ++at_;
  if (name.starts_with("arc")) return "a" + name.substr(3);
  if (name.starts_with("ar")) return "a" + name.substr(2);
  return name;
}

Term Expressions::atom() {
  const Token token = here();
  switch (token.kind) {
    case TokenKind::number:
      ++at_;
      skip_index();
      return number(token.text);
    case TokenKind::percent: ++at_; return make(Kind::percent, "", {number(token.text)});
    case TokenKind::symbol:
    case TokenKind::imaginary_unit: return symbol_with_power();
    default: break;
  }
  expect("infinity");
  return make(Kind::constant, "infinity");
}

void Expressions::skip_index() {
  if (is("_")) index_text();
}

std::string Expressions::index_text() {
  expect("_");
  std::string text;
  if (!accept("{")) {
    text = here().text;
    if (here().kind == TokenKind::end || here().kind == TokenKind::operation) throw Unreadable{};
    ++at_;
    return text;
  }
  for (int depth = 1;; ++at_) {
    if (at_end()) throw Unreadable{};
    if (is("{")) ++depth;
    if (is("}") && --depth == 0) break;
    text += here().text;
  }
  ++at_;
  return text;
}

Term Expressions::symbol_with_power() {
  const Token token = here();
  ++at_;
  if (token.kind == TokenKind::imaginary_unit) return make(Kind::constant, "i");
  std::string name = token.text;
  if (token.takes_index && is("_")) {
    const std::string index = index_text();
    name += index.size() > 1 ? "_{" + index + "}" : "_" + index;
  }
  const Term value =
      name == "pi" || name == "gamma" ? make(Kind::constant, name) : make(Kind::symbol, name);
  if (!token.takes_index) return value;
  if (const Term call = function_call(name, nullptr)) return call;
  if (!is("^")) return value;
  ++at_;
  const Term exponent_of_all = exponent();
  if (const Term call = function_call(name, exponent_of_all)) return call;
  return power(value, exponent_of_all);
}

Term Expressions::function_call(const std::string& name, const Term& exponent_of_all) {
  if (!is("(")) return nullptr;
  const size_t begin = at_;
  const bool list = opens_list();
  ++at_;
  std::vector<Term> arguments;
  try {
    if (list) {
      do arguments.push_back(expression());
      while (accept(","));
    } else {
      arguments.push_back(atom());
    }
    expect(")");
  } catch (const Unreadable&) {
    at_ = begin;
    return nullptr;
  }
  const Term call = make(Kind::function, "function " + name, std::move(arguments));
  return exponent_of_all ? power(call, exponent_of_all) : call;
}

}  // namespace trireme::reward::math
