#include "text/jinja_eval.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

namespace {

Value loop_state(const List& items, size_t index) {
  const auto number = static_cast<int64_t>(index);
  const auto count = static_cast<int64_t>(items.size());
  Members members;
  members.emplace_back("index", number + 1);
  members.emplace_back("index0", number);
  members.emplace_back("revindex", count - number);
  members.emplace_back("revindex0", count - number - 1);
  members.emplace_back("first", index == 0);
  members.emplace_back("last", index + 1 == items.size());
  members.emplace_back("length", count);
  members.emplace_back("depth", int64_t{1});  // of recursion
  members.emplace_back("depth0", int64_t{0});
  if (index > 0) members.emplace_back("previtem", items[index - 1]);
  if (index + 1 < items.size()) members.emplace_back("nextitem", items[index + 1]);
  return Value::dict(std::move(members));
}

// As in Python, a key that is set again keeps its place.
void set_member(Members& members, const std::string& key, Value value) {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const auto& member) { return member.first == key; });
  if (found != members.end()) {
    found->second = std::move(value);
  } else {
    members.emplace_back(key, std::move(value));
  }
}

}  // namespace

Renderer::Renderer(const Source& source, std::string date)
    : meter_(source), scopes_(1), date_(std::move(date)) {
  if (!date_.empty()) define("strftime_now", Builtin::strftime_now);
}

std::string Renderer::run(const Body& body) {
  scopes_.resize(
      2);  // templates may set names that the caller defined, without changing the latter
  execute(body);
  return std::move(out_);
}

void Renderer::emit(size_t at, const std::string& text) {
  place(at).check_length(out_.size() + text.size());
  out_ += text;
}

Renderer::Flow Renderer::execute(const Body& body) {
  for (const Statement& statement : body) {
    if (const Flow flow = execute(statement); flow != Flow::next) return flow;
  }
  return Flow::next;
}

Renderer::Flow Renderer::execute(const Statement& statement) {
  meter_.charge(statement.at, 1);
  const Deeper deeper(*this, statement.at);
  switch (statement.kind) {
    case Statement::Kind::text: emit(statement.at, statement.text); return Flow::next;
    case Statement::Kind::output: {
      std::string problem;
      const std::string text = to_text(evaluate(*statement.condition), problem);
      if (!problem.empty()) meter_.fail(statement.at, problem);
      emit(statement.at, text);
      return Flow::next;
    }
    case Statement::Kind::branches:
      for (const auto& branch : statement.branches) {
        if (!branch.condition || evaluate(*branch.condition).truth()) return execute(branch.body);
      }
      return Flow::next;
    case Statement::Kind::loop: return loop(statement);
    case Statement::Kind::assign: assign(statement); return Flow::next;
    case Statement::Kind::unpack: unpack(statement); return Flow::next;
    case Statement::Kind::macro:
      scopes_.back()[statement.names[0]] = Macro{&statement, scopes_.size()};
      return Flow::next;
    case Statement::Kind::break_loop: return Flow::leave_loop;
    case Statement::Kind::continue_loop: return Flow::next_round;
  }
  return Flow::next;
}

void Renderer::bind(const Statement& statement, const Value& item, Scope& scope) {
  const auto& names = statement.names;
  if (names.size() == 1) {
    scope[names[0]] = item;
    return;
  }
  if (!item.is_list() || item.items().size() != names.size()) {
    meter_.fail(statement.at,
                base::text("cannot unpack ", item.type_name(), " into ", names.size(), " names"));
  }
  for (size_t i = 0; i < names.size(); ++i) scope[names[i]] = item.items()[i];
}

List Renderer::loop_items(const Statement& statement) {
  List items = iterate(place(statement.at), evaluate(*statement.condition));
  if (!statement.filter) return items;
  List kept;
  for (const Value& item : items) {
    meter_.charge(statement.at, 1);
    scopes_.emplace_back();
    bind(statement, item, scopes_.back());
    if (evaluate(*statement.filter).truth()) kept.push_back(item);
    scopes_.pop_back();
  }
  return kept;
}

Renderer::Flow Renderer::loop(const Statement& statement) {
  const List items = loop_items(statement);
  bool completed = false;  // Jinja runs `else` unless one round came to its end
  for (size_t i = 0; i < items.size(); ++i) {
    meter_.charge(statement.at, 1);
    Scope scope;
    scope["loop"] = loop_state(items, i);
    bind(statement, items[i], scope);
    scopes_.push_back(std::move(scope));
    const Flow flow = execute(statement.branches[0].body);
    scopes_.pop_back();
    if (flow == Flow::leave_loop) break;
    completed = completed || flow == Flow::next;
  }
  if (completed) return Flow::next;
  scopes_.emplace_back();
  const Flow flow = execute(statement.branches[1].body);
  scopes_.pop_back();
  return flow;
}

Renderer::Deeper::Deeper(Renderer& renderer, size_t at) : renderer_(renderer) {
  constexpr int deepest = 800;
  if (++renderer_.depth_ <= deepest) return;
  --renderer_.depth_;
  renderer_.meter_.fail(at, "macros call each other too deeply");
}

std::string Renderer::rendered(const Body& body) {
  std::string outer = std::exchange(out_, {});
  scopes_.emplace_back();
  execute(body);
  scopes_.pop_back();
  return std::exchange(out_, std::move(outer));
}

void Renderer::unpack(const Statement& statement) {
  bind(statement, evaluate(*statement.condition), scopes_.back());
}

void Renderer::bind_parameters(const Statement& macro, const Arguments& arguments) {
  const size_t count = macro.names.size() - 1;
  if (arguments.positional.size() > count)
    arguments.fail(
        base::text("takes at most ", count, " arguments, found ", arguments.positional.size()));
  for (const auto& [name, value] : arguments.keywords) {
    if (std::find(macro.names.begin() + 1, macro.names.end(), name) == macro.names.end())
      arguments.fail("the argument '" + name + "' is not known");
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.names[i + 1];
    const size_t first_default = count - macro.defaults.size();
    Value value = Undefined::of(name);
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else if (const auto found = arguments.keywords.find(name);
               found != arguments.keywords.end()) {
      value = found->second;
    } else if (i >= first_default) {
      value = evaluate(*macro.defaults[i - first_default]);
    }
    scopes_.back()[name] = std::move(value);
  }
}

Value Renderer::call_macro(const Macro& macro, const Arguments& arguments) {
  if (scopes_.size() < macro.scopes) arguments.fail("is called outside of where it was defined");
  const auto open = scopes_.begin() + static_cast<int64_t>(macro.scopes);
  std::vector<Scope> aside(std::make_move_iterator(open), std::make_move_iterator(scopes_.end()));
  scopes_.resize(macro.scopes + 1);
  scopes_.back().clear();
  bind_parameters(*macro.statement, arguments);
  std::string text = rendered(macro.statement->branches[0].body);
  scopes_.resize(macro.scopes);
  scopes_.insert(scopes_.end(), std::make_move_iterator(aside.begin()),
                 std::make_move_iterator(aside.end()));
  arguments.place.charge_text(text.size());
  return Value(std::move(text));
}

void Renderer::assign(const Statement& statement) {
  Value value = statement.condition ? evaluate(*statement.condition)
                                    : Value(rendered(statement.branches[0].body));
  const auto& names = statement.names;
  if (names.size() == 1) {
    scopes_.back()[names[0]] = std::move(value);
    return;
  }
  Expression target;
  target.text = names[0];
  const Value object = lookup(target);
  if (!object.is_dict() || !object.dict().assignable) {
    meter_.fail(statement.at,
                "only attributes of a namespace can be set, '" + names[0] + "' is none");
  }
  if (value.extent().has_namespace)
    meter_.fail(statement.at, "a namespace in a namespace is not known");
  place(statement.at).charge_search(object.dict().members.size());
  set_member(object.dict().members, names[1], std::move(value));
}

Value Renderer::lookup(const Expression& expression) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->find(expression.text); found != scope->end())
      return found->second;
  }
  return Undefined::of(expression.text);
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
    case Kind::name: return lookup(e);
    case Kind::attribute: return attribute(e);
    case Kind::index: return subscript(place(e.at), evaluate(*e.parts[0]), evaluate(*e.parts[1]));
    case Kind::slice:
      return slice(place(e.at), evaluate(*e.parts[0]), evaluate_or_none(e.parts[1]),
                   evaluate_or_none(e.parts[2]), evaluate_or_none(e.parts[3]));
    case Kind::call: return call(e);
    case Kind::filter: return apply_filter(evaluate(*e.parts[0]), arguments(e, "filter " + e.text));
    case Kind::test: return apply_test(e.text, evaluate(*e.parts[0]));
    case Kind::logical_not: return !evaluate(*e.parts[0]).truth();
    case Kind::binary: return binary(e);
    case Kind::conditional:
      return evaluate(*e.parts[1]).truth() ? evaluate(*e.parts[0])
             : e.parts[2]                  ? evaluate(*e.parts[2])
                                           : Value();
    case Kind::negate: {
      const Value value = evaluate(*e.parts[0]);
      if (!value.is_number()) meter_.fail(e.at, "cannot negate " + value.type_name());
      return value.is_float() ? Value(-value.number())
                              : apply_binary(place(e.at), e, Value(int64_t{0}), value);
    }
    case Kind::list: {
      List items;
      for (const auto& part : e.parts) items.push_back(evaluate(*part));
      return Value::list(std::move(items));
    }
    case Kind::dict: {
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
  }
  return Value();
}

Value Renderer::attribute(const Expression& e) {
  const Value object = evaluate(*e.parts[0]);
  if (hides_key(object, e.text))
    return has_method(object, e.text) ? Value(Builtin::method) : Value(Undefined::of(e.text));
  if (object.is_dict()) place(e.at).charge_search(object.dict().members.size());
  if (const Value* member = object.find(e.text)) return *member;
  if (object.is_undefined())
    meter_.fail(e.at, base::text("'", e.text, "' of ", object.type_name(), " was asked for"));
  return Undefined::of(e.text);
}

Value Renderer::binary(const Expression& e) {
  if (e.text == "and" || e.text == "or") {
    Value left = evaluate(*e.parts[0]);
    return left.truth() == (e.text == "and") ? evaluate(*e.parts[1]) : left;
  }
  const Value left = evaluate(*e.parts[0]);
  return apply_binary(place(e.at), e, left, evaluate(*e.parts[1]));
}

Arguments Renderer::arguments(const Expression& e, std::string callee) {
  Arguments made{place(e.at), std::move(callee), {}, {}};
  for (size_t i = 1; i < e.parts.size(); ++i) made.positional.push_back(evaluate(*e.parts[i]));
  for (const auto& [name, value] : e.keywords) made.keywords[name] = evaluate(*value);
  return made;
}

Value Renderer::call(const Expression& e) {
  const Expression& callee = *e.parts[0];
  if (callee.kind == Expression::Kind::attribute) {
    const Value object = evaluate(*callee.parts[0]);
    if (has_method(object, callee.text)) {
      return call_method(object, callee.text, arguments(e, "." + callee.text + "()"));
    }
    meter_.fail(callee.at, base::text("the method '", callee.text, "' of ", object.type_name(),
                                      " is not known"));
  }
  const Value function = evaluate(callee);
  if (function.is_builtin() && function.builtin() == Builtin::strftime_now)
    return strftime_of(arguments(e, callee.text), date_);
  if (function.is_macro())
    return call_macro(function.macro(), arguments(e, "macro " + callee.text));
  if (function.is_builtin() && function.builtin() != Builtin::method)
    return call_builtin(function.builtin(), arguments(e, callee.text));
  meter_.fail(e.at, base::text("the function '", callee.text, "' is not known",
                               " (known: raise_exception, namespace, range, strftime_now)"));
}

}  // namespace trireme::text::jinja
