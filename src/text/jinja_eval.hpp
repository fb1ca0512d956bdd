// Runs a parsed template.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/jinja_meter.hpp"
#include "text/jinja_syntax.hpp"

namespace trireme::text::jinja {

// Arguments of a filter, a method or a function, with their names in the text for messages.
struct Arguments {
  Place place;
  std::string callee;
  std::vector<Value> positional;
  std::map<std::string, Value> keywords;

  [[noreturn]] void fail(const std::string& problem) const { place.fail(callee + ": " + problem); }
  void expect_count(size_t least, size_t most) const;
  void expect_keywords(std::initializer_list<std::string_view> known) const;
  const std::string& text(size_t index) const;
  int64_t integer(size_t index) const;
};

Value apply_filter(const Value& value, const Arguments& arguments);
bool apply_test(const std::string& test, const Value& value);
// Filters and methods of jinja_filters.cpp; nullopt for other names.
std::optional<Value> apply_more_filters(const std::string& name, const Value& value,
                                        const Arguments& arguments);
std::optional<Value> call_more_methods(const std::string& text, const std::string& method,
                                       const Arguments& arguments);
// Python's str() of a value; fails for lists and mappings.
std::string text_of(const Arguments& arguments, const Value& value);
Value call_method(const Value& object, const std::string& method, const Arguments& arguments);
bool has_method(const Value& object, const std::string& method);
// Whether `object.name` is a method or a forbidden attribute of Python's, so that a key of that
// name is only found by ['name'].
bool hides_key(const Value& object, const std::string& name);
Value call_builtin(Builtin builtin, const Arguments& arguments);
// Python's datetime(date).strftime(format).
std::string strftime_of(const Arguments& arguments, const std::string& date);
Value apply_binary(const Place& place, const Expression& expression, const Value& left,
                   const Value& right);
// object[key]; Undefined when there is no such item.
Value subscript(const Place& place, const Value& object, const Value& key);
// object[from:to:step]; bounds that are None are left out.
Value slice(const Place& place, const Value& object, const Value& from, const Value& to,
            const Value& step);
// What a loop runs over: items, keys or characters.
List iterate(const Place& place, const Value& value);
// The first place of `part` in `text` from `from` on, npos without one; linear in their lengths,
// which std::string::find is not.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);

class Renderer {
 public:
  // `date` is what strftime_now formats; "": the function is not defined.
  explicit Renderer(const Source& source, std::string date = "");
  void define(const std::string& name, Value value) { scopes_[0][name] = std::move(value); }
  std::string run(const Body& body);

 private:
  enum class Flow { next, leave_loop, next_round };
  using Scope = std::map<std::string, Value>;

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow loop(const Statement& statement);
  void bind(const Statement& statement, const Value& item, Scope& scope);
  List loop_items(const Statement& statement);
  void assign(const Statement& statement);
  void unpack(const Statement& statement);
  std::string rendered(const Body& body);  // instead of into the output
  Value call_macro(const Macro& macro, const Arguments& arguments);
  void bind_parameters(const Statement& macro, const Arguments& arguments);
  void emit(size_t at, const std::string& text);
  Place place(size_t at) { return {meter_, at}; }

  Value evaluate(const Expression& expression);
  Value compute(const Expression& expression);
  Value evaluate_or_none(const ExpressionPtr& expression) {
    return expression ? evaluate(*expression) : Value(None{});
  }
  Value lookup(const Expression& expression) const;
  Value attribute(const Expression& expression);
  Value binary(const Expression& expression);
  Value call(const Expression& expression);
  Arguments arguments(const Expression& expression, std::string callee);

  // Macros may call themselves: what is evaluated within each other is bounded.
  class Deeper {
   public:
    Deeper(Renderer& renderer, size_t at);
    ~Deeper() { --renderer_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Renderer& renderer_;
  };

  Meter meter_;
  std::vector<Scope> scopes_;
  std::string date_;
  int depth_ = 0;
  std::string out_;
};

}  // namespace trireme::text::jinja
