// Expressions of templates are evaluated.
#include <algorithm>
#include <utility>

#include "text/jinja_eval.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

Value Renderer::lookup(std::string_view name) const {
  for (const Environment* e = current_; e != nullptr; e = e->outer) {
    if (const auto found = e->names.find(name); found != e->names.end()) return found->second;
  }
  return Undefined::of(name);
}

Value Renderer::evaluate(const Expression& e) {
  meter_.charge(e.at, 1);
  const Deeper deeper(*this, e.at);
  Value value = compute(e);
  // Here every list and mapping comes by, before another is put around it.
  if (value.extent().depth > deepest_value)
    meter_.fail(e.at, base::text("lists and mappings nested deeper than ", deepest_value));
  return value;
}

Value Renderer::compute(const Expression& e) {
  using Kind = Expression::Kind;
  switch (e.kind) {
    case Kind::literal: return e.value;
    case Kind::name: return lookup(e.text);
    case Kind::attribute: return attribute(e);
    case Kind::index: return subscript(place(e.at), evaluate(*e.parts[0]), evaluate(*e.parts[1]));
    case Kind::slice:
      return slice(place(e.at), evaluate(*e.parts[0]), evaluate_or_none(e.parts[1]),
                   evaluate_or_none(e.parts[2]), evaluate_or_none(e.parts[3]));
    case Kind::call: return call(e);
    case Kind::filter: {
      const Value value = e.parts[0] ? evaluate(*e.parts[0]) : *piped_;
      return invoke(*find_filter(e.text), arguments(e, "filter " + e.text), value);
    }
    case Kind::test:
      return invoke(*find_test(e.text), arguments(e, "test " + e.text), evaluate(*e.parts[0]));
    case Kind::logical_not: return !evaluate(*e.parts[0]).truth();
    case Kind::binary: return binary(e);
    case Kind::comparison: return comparison(e);
    case Kind::conditional:
      return evaluate(*e.parts[1]).truth() ? evaluate(*e.parts[0])
             : e.parts[2]                  ? evaluate(*e.parts[2])
                                           : Value();
    case Kind::negate:
    case Kind::plus: return signed_number(e);
    case Kind::list:
    case Kind::tuple: return sequence(e);
    case Kind::dict: return mapping(e);
  }
  return Value();
}

Value Renderer::signed_number(const Expression& e) {
  const bool negative = e.kind == Expression::Kind::negate;
  const Value value = evaluate(*e.parts[0]);
  if (value.is_big()) {
    const std::string& digits = value.digits();
    if (!negative) return value;
    return BigInteger{digits.starts_with('-') ? digits.substr(1) : "-" + digits};
  }
  if (!value.is_number())
    meter_.fail(e.at, base::text("cannot ", negative ? "negate " : "take the value of ",
                                 value.type_name()));
  if (value.is_float()) return negative ? -value.number() : value.number();
  return apply_binary(place(e.at), negative ? "-" : "+", Value(int64_t{0}), value);
}

Value Renderer::sequence(const Expression& e) {
  List items;
  for (const auto& part : e.parts) items.push_back(evaluate(*part));
  return Value::list(std::move(items),
                     e.kind == Expression::Kind::tuple ? Form::tuple : Form::list);
}

Value Renderer::mapping(const Expression& e) {
  Members members;
  for (size_t i = 0; i + 1 < e.parts.size(); i += 2) {
    const Value key = evaluate(*e.parts[i]);
    if (!key.is_string())
      meter_.fail(e.at, "a key of a mapping must be a text, found " + key.type_name());
    place(e.at).charge_text(key.string().size());
    place(e.at).charge_search(members.size());
    set_member(members, key.string(), evaluate(*e.parts[i + 1]));
  }
  return Value::dict(std::move(members));
}

Value Renderer::attribute(const Expression& e) {
  const Value object = evaluate(*e.parts[0]);
  if (object.is_undefined())
    meter_.fail(e.at, base::text("'", e.text, "' of ", object.type_name(), " was asked for"));
  if (has_method(object, e.text)) return Builtin::method;
  return attribute_of(place(e.at), object, e.text);
}

Value Renderer::binary(const Expression& e) {
  if (e.text == "and" || e.text == "or") {
    Value left = evaluate(*e.parts[0]);
    return left.truth() == (e.text == "and") ? evaluate(*e.parts[1]) : left;
  }
  const Value left = evaluate(*e.parts[0]);
  return apply_binary(place(e.at), e.text, left, evaluate(*e.parts[1]));
}

// a < b < c: as Python, up to the first that does not hold.
Value Renderer::comparison(const Expression& e) {
  Value left = evaluate(*e.parts[0]);
  Value result;
  for (size_t i = 0; i < e.operations.size(); ++i) {
    Value right = evaluate(*e.parts[i + 1]);
    result = apply_binary(place(e.at), e.operations[i], left, right);
    if (!result.truth()) break;
    left = std::move(right);
  }
  return result;
}

Arguments Renderer::arguments(const Expression& e, std::string callee) {
  Arguments made{place(e.at), std::move(callee), {}, {}};
  for (size_t i = 1; i < e.parts.size(); ++i) made.positional.emplace_back(evaluate(*e.parts[i]));
  for (const auto& [name, value] : e.keywords) set_member(made.keywords, name, evaluate(*value));
  return made;
}

Value Renderer::call(const Expression& e) {
  const Expression& callee = *e.parts[0];
  if (callee.kind != Expression::Kind::attribute)
    return call_function(e, evaluate(callee), arguments(e, callee.text));
  const Value object = evaluate(*callee.parts[0]);
  if (object.is_undefined())
    meter_.fail(callee.at,
                base::text("'", callee.text, "' of ", object.type_name(), " was asked for"));
  if (has_method(object, callee.text))
    return call_method(object, callee.text, arguments(e, "." + callee.text + "()"));
  const Value member = attribute_of(place(callee.at), object, callee.text);
  if (!member.is_macro() && !member.is_builtin() && !member.is_object()) {
    meter_.fail(callee.at, base::text("the method '", callee.text, "' of ", object.type_name(),
                                      " is not known"));
  }
  return call_function(e, member, arguments(e, callee.text));
}

Value Renderer::call_function(const Expression& e, const Value& function, Arguments arguments) {
  if (function.is_macro()) {
    arguments.callee = "macro " + arguments.callee;
    return call_macro(function.macro(), std::move(arguments));
  }
  if (function.is_object()) return call_object(function, arguments);
  if (function.is_builtin() && function.builtin() == Builtin::strftime_now)
    return strftime_of(arguments, date_);
  if (function.is_builtin() && function.builtin() != Builtin::method)
    return call_builtin(function.builtin(), arguments);
  meter_.fail(e.at, base::text("the function '", arguments.callee.substr(0, 100),
                               "' is not known (known: raise_exception, namespace, range, dict, "
                               "joiner, cycler, strftime_now)"));
}

}  // namespace trireme::text::jinja
