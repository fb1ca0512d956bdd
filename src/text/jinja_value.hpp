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
  std::string name;  // what was looked up, for messages
  static Undefined of(std::string_view name) { return {std::string(name.substr(0, 100))}; }
};
struct None {};
enum class Builtin {
  raise_exception,
  make_namespace,
  range,
  strftime_now,
  method
};                 // method: `text.strip` without a call
struct Statement;  // jinja_syntax.hpp
// A macro of the template: it sees the scopes that were open where it stands.
struct Macro {
  const Statement* statement;
  size_t scopes;
};
// What bounds the work on a value.
struct Extent {
  int depth = 0;  // lists and mappings in one another, itself among them; of a namespace 1,
                  // whatever it holds
  bool has_namespace = false;  // is a namespace or has one in it
};
struct Array {
  List items;
  Extent extent;
};
// A mapping; `assignable` for namespace(), whose attributes templates may set. Namespaces do not
// hold namespaces: so there are no cycles, and no value is deeper than two extents and the
// namespace between them.
struct Dict {
  Members members;
  bool assignable = false;
  Extent extent;
};
struct Place;  // jinja_meter.hpp

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Data = std::variant<Undefined, None, bool, int64_t, double, Text,
                            std::shared_ptr<const Array>, std::shared_ptr<Dict>, Builtin, Macro>;
  Value() = default;
  Value(std::string text)
      : data_(std::make_shared<const std::string>(std::move(text))) {
  }                                                      // NOLINT: implicit on purpose
  Value(const char* text) : Value(std::string(text)) {}  // NOLINT
  template <class T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, Value> && !std::is_convertible_v<T, std::string>)
      Value(T&& data)
      : data_(std::forward<T>(data)) {}  // NOLINT
  static Value list(List items);
  static Value dict(Members members);
  // The caller sees to it that no member has a namespace.
  static Value make_namespace(Members members);
  static Value from_json(const OrderedJson& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return std::holds_alternative<Text>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const Array>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(data_); }
  bool is_builtin() const { return std::holds_alternative<Builtin>(data_); }
  bool is_macro() const { return std::holds_alternative<Macro>(data_); }

  const std::string& string() const { return *std::get<Text>(data_); }
  const List& items() const { return std::get<std::shared_ptr<const Array>>(data_)->items; }
  Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  Builtin builtin() const { return std::get<Builtin>(data_); }
  Macro macro() const { return std::get<Macro>(data_); }
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
// Python's json.dumps(value, ensure_ascii=False, indent=indent); indent < 0 = on one line.
// `problem` is set, and the text is of no use, when a part has no JSON form. Charged as well.
std::string to_json(const Value& value, int indent, const Place& place, std::string& problem);
// Python's str() of a value; `problem` is set for lists and mappings, which templates should not
// print.
std::string to_text(const Value& value, std::string& problem);
// Code points of a text, as Python indexes it.
std::u32string code_points(std::string_view text);
std::string from_code_points(std::u32string_view text);

}  // namespace trireme::text::jinja
