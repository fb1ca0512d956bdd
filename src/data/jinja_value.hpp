// Values of the template interpreter: those of Python that chat templates handle.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/json_text.hpp"

namespace trireme::data::jinja {

class Value;
using List = std::vector<Value>;
using Members = std::vector<std::pair<std::string, Value>>;  // in order of insertion

struct Undefined {
  std::string name;  // what was looked up, for messages
};
struct None {};
enum class Builtin { raise_exception, make_namespace, range, method };  // method: `text.strip` without a call
// A mapping; `assignable` for namespace(), whose attributes templates may set.
struct Dict {
  Members members;
  bool assignable = false;
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>, std::shared_ptr<Dict>, Builtin>;
  Value() = default;
  template <class T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, Value>)
  Value(T&& data) : data_(std::forward<T>(data)) {}  // NOLINT: implicit on purpose
  static Value list(List items) { return Value(std::make_shared<List>(std::move(items))); }
  static Value dict(Members members) { return Value(std::make_shared<Dict>(Dict{std::move(members), false})); }
  static Value from_json(const OrderedJson& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<List>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(data_); }
  bool is_builtin() const { return std::holds_alternative<Builtin>(data_); }

  const std::string& string() const { return std::get<std::string>(data_); }
  const List& items() const { return *std::get<std::shared_ptr<List>>(data_); }
  Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  Builtin builtin() const { return std::get<Builtin>(data_); }
  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  // True and False count as 1 and 0, as in Python. The value is an integer or a bool.
  int64_t integer() const { return is_bool() ? int64_t{std::get<bool>(data_)} : std::get<int64_t>(data_); }
  double number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }

  // The member of a mapping; nullptr when there is none or this is no mapping.
  const Value* find(std::string_view key) const;
  bool truth() const;
  // Python's type name: "str", "dict", ...
  std::string type_name() const;
  friend bool operator==(const Value& a, const Value& b);

 private:
  Data data_;
};

// Python's json.dumps(value, ensure_ascii=False, indent=indent); indent < 0 = on one line. `problem` is set, and the text
// is of no use, when a part has no JSON form.
std::string to_json(const Value& value, int indent, std::string& problem);
// Python's str() of a value; `problem` is set for lists and mappings, which templates should not print.
std::string to_text(const Value& value, std::string& problem);
// Code points of a text, as Python indexes it.
std::u32string code_points(std::string_view text);
std::string from_code_points(std::u32string_view text);

}  // namespace trireme::data::jinja
