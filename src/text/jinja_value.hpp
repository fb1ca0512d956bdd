// Values of the template interpreter: those of Python that chat templates handle. Copies are cheap:
// texts, lists and mappings are shared and, but for namespaces, never changed.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/text/json_text.hpp"

namespace trireme::text::jinja {

class Value;
using List = std::vector<Value>;
using Members = std::vector<std::pair<std::string, Value>>;  // in order of insertion

struct Undefined {
  std::string name;  // looked up; for messages
  static Undefined of(std::string_view name) { return {std::string(name.substr(0, 100))}; }
};
struct None {};
// An integer beyond 64 bits, canonical: it is printed and compared, not computed with.
struct BigInteger {
  std::string digits;
};
enum class Builtin {
  raise_exception,
  make_namespace,
  make_dict,
  make_joiner,
  make_cycler,
  range,
  strftime_now,
  method  // `text.strip` without a call
};
struct Statement;    // jinja_syntax.hpp
struct Environment;  // jinja_eval.hpp
// A macro of the template: it sees the names that are visible where it was defined.
struct Macro {
  const Statement* statement;
  Environment* defined_in;
};
// What bounds the work on a value.
struct Extent {
  int depth = 0;  // lists and mappings in one another, itself among them; of a namespace or object
                  // 1, whatever it holds
  bool has_namespace = false;  // is a namespace or an object, or has one in it
};
// Python's type in place of a list: it decides how the items are printed, compared and indexed.
enum class Form { list, tuple, group, range, keys, values, items, generator };
struct Array {
  List items;
  Extent extent;
  Form form = Form::list;
  mutable size_t taken = 0;  // of a generator: items already read, which are gone
};
// A mapping; `assignable` for namespace(), whose attributes templates may set. Namespaces do not
// hold namespaces: so there are no cycles, and no value is deeper than two extents and the
// namespace between them.
struct Dict {
  Members members;
  bool assignable = false;
  Extent extent;
};
struct Object;  // loop, joiner, cycler: jinja_eval.hpp
struct Place;   // jinja_meter.hpp

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  // A text that needs no HTML escapes any more: + and `escape` know it.
  struct Markup {
    Text text;
  };
  using Data = std::variant<Undefined, None, bool, int64_t, double, Text,
                            std::shared_ptr<const Array>, std::shared_ptr<Dict>, Builtin, Macro,
                            BigInteger, Markup, std::shared_ptr<Object>>;
  Value() = default;
  Value(std::string text)
      : data_(std::make_shared<const std::string>(std::move(text))) {
  }                                                      // NOLINT: implicit on purpose
  Value(const char* text) : Value(std::string(text)) {}  // NOLINT
  template <class T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, Value> && !std::is_convertible_v<T, std::string>)
      Value(T&& data)
      : data_(std::forward<T>(data)) {}  // NOLINT
  static Value list(List items, Form form = Form::list);
  static Value tuple(List items) { return list(std::move(items), Form::tuple); }
  static Value generator(List items) { return list(std::move(items), Form::generator); }
  static Value dict(Members members);
  static Value markup(std::string text) {
    return Markup{std::make_shared<const std::string>(std::move(text))};
  }
  // The caller sees to it that no member has a namespace.
  static Value make_namespace(Members members);
  static Value from_json(const OrderedJson& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_big() const { return std::holds_alternative<BigInteger>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return std::holds_alternative<Text>(data_) || is_markup(); }
  bool is_markup() const { return std::holds_alternative<Markup>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const Array>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(data_); }
  bool is_mapping() const { return is_dict() && !dict().assignable; }
  bool is_builtin() const { return std::holds_alternative<Builtin>(data_); }
  bool is_macro() const { return std::holds_alternative<Macro>(data_); }
  bool is_object() const { return std::holds_alternative<std::shared_ptr<Object>>(data_); }
  // A list, a tuple or a range: it has a length and items by their places.
  bool is_indexed() const { return is_list() && form() <= Form::range; }
  bool is_tuple() const { return is_list() && (form() == Form::tuple || form() == Form::group); }

  const std::string& string() const {
    return is_markup() ? *std::get<Markup>(data_).text : *std::get<Text>(data_);
  }
  // All items, those that were read from a generator too.
  const List& items() const { return array().items; }
  const Array& array() const { return *std::get<std::shared_ptr<const Array>>(data_); }
  Form form() const { return array().form; }
  Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  Object& object() const { return *std::get<std::shared_ptr<Object>>(data_); }
  Builtin builtin() const { return std::get<Builtin>(data_); }
  Macro macro() const { return std::get<Macro>(data_); }
  const std::string& digits() const { return std::get<BigInteger>(data_).digits; }
  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  // True and False count as 1 and 0, as in Python. The value is an integer or a bool.
  int64_t integer() const {
    return is_bool() ? int64_t{std::get<bool>(data_)} : std::get<int64_t>(data_);
  }
  double number() const {
    return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
  }

  // The member of a mapping; nullptr when there is none or this is no mapping.
  const Value* find(std::string_view key) const;
  bool truth() const;
  // Python's type name: "str", "dict", ...
  std::string type_name() const;
  Extent extent() const;

 private:
  friend bool equal(const Value& a, const Value& b, const Place& place);
  Data data_;
};

// Python's a == b. Charged, as a list that holds one list many times is short to write down and
// long to go through.
bool equal(const Value& a, const Value& b, const Place& place);
// Whether both are the same object, as far as that can be told of values that are shared.
bool same(const Value& a, const Value& b);
// As Python, a key that is set again keeps its place.
void set_member(Members& members, const std::string& key, Value value);

// Arguments of json.dumps.
struct JsonStyle {
  std::string indent;  // of a level
  bool lines = false;  // an entry a line
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false, sorted = false;
};
// Python's json.dumps(value). `problem` is set, and the text is of no use, when a part has no JSON
// form. Charged as well.
std::string to_json(const Value& value, const JsonStyle& style, const Place& place,
                    std::string& problem);
// Python's str() of a value, for lists and mappings the text that Python prints. Charged. Fails for
// values without a text of their own, as functions and generators.
std::string to_text(const Value& value, const Place& place);
// Python's repr().
std::string to_repr(const Value& value, const Place& place);
// Code points of a text, as Python indexes it.
std::u32string code_points(std::string_view text);
std::string from_code_points(std::u32string_view text);

}  // namespace trireme::text::jinja
