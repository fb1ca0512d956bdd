// Statements of templates; jinja_evaluate.cpp has the expressions.
#include "text/jinja_eval.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

Renderer::Renderer(const Source& source, std::string date)
    : meter_(source), date_(std::move(date)) {
  if (!date_.empty()) define("strftime_now", Builtin::strftime_now);
}

Renderer::Scope::Scope(Renderer& renderer, Environment* outer)
    : renderer_(renderer),
      before_(renderer.current_),
      own_(std::make_unique<Environment>(Environment{.outer = outer})) {
  renderer.current_ = own_.get();
}

Renderer::Scope::~Scope() {
  renderer_.current_ = before_;
  if (own_->captured) renderer_.kept_.push_back(std::move(own_));
}

std::string Renderer::run(const Body& body) {
  // templates may set names that the caller defined, without changing the latter
  const Scope scope(*this, &globals_);
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
  using Kind = Statement::Kind;
  switch (statement.kind) {
    case Kind::text: emit(statement.at, statement.text); return Flow::next;
    case Kind::output:
      emit(statement.at, to_text(evaluate(*statement.condition), place(statement.at)));
      return Flow::next;
    case Kind::branches:
      for (const auto& branch : statement.branches) {
        if (!branch.condition || evaluate(*branch.condition).truth()) return execute(branch.body);
      }
      return Flow::next;
    case Kind::loop: return loop(statement);
    case Kind::assign: assign(statement); return Flow::next;
    case Kind::with: {
      const Scope scope(*this, current_);
      with(statement);
      return execute(statement.branches[0].body);
    }
    case Kind::filter:
      emit(statement.at, to_text(through_filters(statement, rendered(statement.branches[0].body)),
                                 place(statement.at)));
      return Flow::next;
    case Kind::macro:
      current_->names[statement.names[0]] = define_macro(statement);
      return Flow::next;
    case Kind::call: call_block(statement); return Flow::next;
    case Kind::break_loop: return Flow::leave_loop;
    case Kind::continue_loop: return Flow::next_round;
  }
  return Flow::next;
}

void Renderer::bind(const Statement& statement, const Value& item) {
  const auto& names = statement.names;
  if (!statement.several) {
    current_->names[names[0]] = item;
    return;
  }
  const bool fits = item.is_list() || item.is_string() || item.is_mapping();
  const List items = fits ? iterate(place(statement.at), item) : List();
  if (!fits || items.size() != names.size()) {
    meter_.fail(statement.at,
                base::text("cannot unpack ", item.type_name(), " into ", names.size(), " names"));
  }
  for (size_t i = 0; i < names.size(); ++i) current_->names[names[i]] = items[i];
}

List Renderer::loop_items(const Statement& statement, const Value& iterated) {
  List items = iterate(place(statement.at), iterated);
  if (!statement.filter) return items;
  List kept;
  for (const Value& item : items) {
    meter_.charge(statement.at, 1);
    const Scope scope(*this, current_);
    bind(statement, item);
    if (evaluate(*statement.filter).truth()) kept.push_back(item);
  }
  return kept;
}

Renderer::Flow Renderer::loop(const Statement& statement) {
  if (statement.recursive) {  // the environment may be entered again while the loop is in use
    for (Environment* e = current_; e != nullptr && !e->captured; e = e->outer) e->captured = true;
  }
  return loop_over(statement, evaluate(*statement.condition), 1);
}

Renderer::Flow Renderer::loop_over(const Statement& statement, const Value& iterated, int depth) {
  const auto state = std::make_shared<Object>();
  state->items = loop_items(statement, iterated);
  state->depth = depth;
  state->around = current_;
  if (statement.recursive) state->statement = &statement;
  bool completed = false;  // Jinja runs `else` unless one round came to its end
  for (size_t i = 0; i < state->items.size(); ++i) {
    meter_.charge(statement.at, 1);
    state->index = i;
    const Scope scope(*this, state->around);
    current_->names["loop"] = Value(state);
    bind(statement, state->items[i]);
    const Flow flow = execute(statement.branches[0].body);
    if (flow == Flow::leave_loop) break;
    completed = completed || flow == Flow::next;
  }
  if (completed) return Flow::next;
  const Scope scope(*this, current_);
  return execute(statement.branches[1].body);
}

Renderer::Deeper::Deeper(Renderer& renderer, size_t at) : renderer_(renderer) {
  constexpr int deepest = 800;
  if (++renderer_.depth_ <= deepest) return;
  --renderer_.depth_;
  renderer_.meter_.fail(at, "macros call each other too deeply");
}

std::string Renderer::rendered(const Body& body) {
  std::string outer = std::exchange(out_, {});
  const Scope scope(*this, current_);
  execute(body);
  return std::exchange(out_, std::move(outer));
}

Value Renderer::through_filters(const Statement& statement, std::string text) {
  Value value(std::move(text));
  if (!statement.filter) return value;
  const Value* const outer = std::exchange(piped_, &value);
  Value filtered = evaluate(*statement.filter);
  piped_ = outer;
  return filtered;
}

void Renderer::with(const Statement& statement) {
  List values;  // they see the names around the block
  for (const auto& value : statement.values) values.push_back(evaluate(*value));
  for (size_t i = 0; i < values.size(); ++i)
    current_->names[statement.names[i]] = std::move(values[i]);
}

Value Renderer::define_macro(const Statement& statement) {
  for (Environment* e = current_; e != nullptr && !e->captured; e = e->outer) e->captured = true;
  return Macro{&statement, current_};
}

void Renderer::call_block(const Statement& statement) {
  const Expression& e = *statement.condition;
  const Statement& caller = statement.branches[0].body[0];
  const Value function = evaluate(*e.parts[0]);
  if (!function.is_macro()) meter_.fail(e.at, "what is called is not a macro");
  Arguments made = arguments(e, "macro " + e.parts[0]->text);
  made.keywords.emplace_back("caller", define_macro(caller));
  emit(statement.at, call_macro(function.macro(), std::move(made)).string());
}

void Renderer::bind_parameters(const Statement& macro, Arguments& arguments) {
  auto& names = current_->names;
  const size_t count = macro.names.size() - 1;
  const size_t first_default = count - macro.values.size();
  const auto given = [&](const std::string& name) {
    return std::ranges::find(arguments.keywords, name, &Members::value_type::first);
  };
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.names[i + 1];
    Value value = Undefined::of(name);
    if (i < arguments.positional.size()) {
      value = arguments.value(i);
    } else if (const auto found = given(name); found != arguments.keywords.end()) {
      value = found->second;
      arguments.keywords.erase(found);
    } else if (i >= first_default) {
      value = evaluate(*macro.values[i - first_default]);
    }
    names[name] = std::move(value);
  }
  if (const auto found = given("caller"); macro.takes_caller) {
    names["caller"] =
        found == arguments.keywords.end() ? Value(Undefined{"caller"}) : found->second;
    if (found != arguments.keywords.end()) arguments.keywords.erase(found);
  }
  if (macro.takes_varargs) {
    List more;
    for (size_t i = count; i < arguments.positional.size(); ++i) more.push_back(arguments.value(i));
    names["varargs"] = Value::tuple(std::move(more));
  } else if (arguments.positional.size() > count) {
    arguments.fail(
        base::text("takes at most ", count, " arguments, found ", arguments.positional.size()));
  }
  if (macro.takes_kwargs) {
    names["kwargs"] = Value::dict(std::move(arguments.keywords));
  } else if (!arguments.keywords.empty()) {
    arguments.fail("the argument '" + arguments.keywords[0].first + "' is not known");
  }
}

Value Renderer::call_macro(const Macro& macro, Arguments arguments) {
  const Scope scope(*this, macro.defined_in);
  bind_parameters(*macro.statement, arguments);
  std::string text = rendered(macro.statement->branches[0].body);
  arguments.place.charge_text(text.size());
  return Value(std::move(text));
}

// loop(items) of a recursive loop, and a joiner.
Value Renderer::call_object(const Value& object, const Arguments& arguments) {
  Object& called = object.object();
  if (called.kind == Object::Kind::joiner) {
    const bool begun = std::exchange(called.begun, true);
    return begun ? called.items[0] : Value(std::string());
  }
  if (called.kind != Object::Kind::loop || called.statement == nullptr)
    arguments.fail("is not a recursive loop");
  if (arguments.positional.size() != 1 || !arguments.keywords.empty())
    arguments.fail("takes what the loop is to go through");
  std::string outer = std::exchange(out_, {});
  const Scope scope(*this, called.around);
  loop_over(*called.statement, arguments.value(0), called.depth + 1);
  return std::exchange(out_, std::move(outer));
}

void Renderer::assign(const Statement& statement) {
  Value value = statement.condition
                    ? evaluate(*statement.condition)
                    : through_filters(statement, rendered(statement.branches[0].body));
  if (!statement.attribute.empty()) return set_attribute(statement, std::move(value));
  bind(statement, value);
}

void Renderer::set_attribute(const Statement& statement, Value value) {
  const std::string& name = statement.names[0];
  const Value object = lookup(name);
  if (!object.is_dict() || !object.dict().assignable) {
    meter_.fail(statement.at, "only attributes of a namespace can be set, '" + name + "' is none");
  }
  if (value.extent().has_namespace)
    meter_.fail(statement.at, "a namespace in a namespace is not known");
  place(statement.at).charge_search(object.dict().members.size());
  set_member(object.dict().members, statement.attribute, std::move(value));
}

}  // namespace trireme::text::jinja
