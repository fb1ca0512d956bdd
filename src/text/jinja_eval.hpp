// Runs a parsed template.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja_call.hpp"
#include "text/jinja_syntax.hpp"

namespace trireme::text::jinja {

// Names that are visible in a part of the template, and those around it.
struct Environment {
  std::map<std::string, Value, std::less<>> names = {};
  Environment* outer = nullptr;
  bool captured = false;  // a macro was defined in it, or further in
};

// Its state while it is used.
struct Object {
  enum class Kind { loop, joiner, cycler };
  Kind kind = Kind::loop;
  List items = {};                       // of the loop, of the cycler; the separator of the joiner
  size_t index = 0;                      // the round of the loop
  bool begun = false;                    // joiner: a text has come before
  int depth = 1;                         // of recursion
  List changed = {};                     // what loop.changed was called with last
  const Statement* statement = nullptr;  // of a recursive loop, which may be called
  Environment* around = nullptr;
};
// object.name of a loop or a cycler.
Value object_attribute(const Object& object, std::string_view name);
bool has_object_method(const Object& object, std::string_view name);
Value call_object_method(Object& object, const std::string& method, const Arguments& arguments);

class Renderer {
 public:
  // `date` is what strftime_now formats; "": the function is not defined.
  explicit Renderer(const Source& source, std::string date = "");
  void define(const std::string& name, Value value) { globals_.names[name] = std::move(value); }
  std::string run(const Body& body);

 private:
  enum class Flow { next, leave_loop, next_round };
  // A new environment, within `outer`, while it lives. Those that macros see are kept.
  class Scope {
   public:
    Scope(Renderer& renderer, Environment* outer);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Renderer& renderer_;
    Environment* before_;
    std::unique_ptr<Environment> own_;
  };

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow loop(const Statement& statement);
  Flow loop_over(const Statement& statement, const Value& iterated, int depth);
  void bind(const Statement& statement, const Value& item);
  List loop_items(const Statement& statement, const Value& iterated);
  void assign(const Statement& statement);
  void set_attribute(const Statement& statement, Value value);
  void with(const Statement& statement);
  void call_block(const Statement& statement);
  Value through_filters(const Statement& statement, std::string text);
  Value define_macro(const Statement& statement);
  void bind_parameters(const Statement& macro, Arguments& arguments);
  Value call_macro(const Macro& macro, Arguments arguments);
  Value call_object(const Value& object, const Arguments& arguments);
  std::string rendered(const Body& body);  // instead of into the output
  void emit(size_t at, const std::string& text);
  Place place(size_t at) { return {meter_, at}; }

  Value evaluate(const Expression& expression);
  Value compute(const Expression& expression);
  Value evaluate_or_none(const ExpressionPtr& expression) {
    return expression ? evaluate(*expression) : Value(None{});
  }
  Value lookup(std::string_view name) const;
  Value attribute(const Expression& expression);
  Value mapping(const Expression& expression);
  Value sequence(const Expression& expression);
  Value binary(const Expression& expression);
  Value comparison(const Expression& expression);
  Value signed_number(const Expression& expression);
  Value call(const Expression& expression);
  Value call_function(const Expression& expression, const Value& function, Arguments arguments);
  Arguments arguments(const Expression& expression, std::string callee);

  // Macros may call themselves: the depth of evaluation is bounded.
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
  Environment globals_;
  Environment* current_ = &globals_;
  std::vector<std::unique_ptr<Environment>> kept_;
  const Value* piped_ = nullptr;  // input of a block's filters
  std::string date_;
  int depth_ = 0;
  std::string out_;
};

}  // namespace trireme::text::jinja
