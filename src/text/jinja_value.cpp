#include "text/jinja_value.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "text/jinja_meter.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace {

void widen(Extent& extent, const Value& part) {
  const Extent inner = part.extent();
  extent.depth = std::max(extent.depth, inner.depth + 1);
  extent.has_namespace = extent.has_namespace || inner.has_namespace;
}

}  // namespace

Value Value::list(List items, Form form) {
  Extent extent{1, false};
  for (const Value& item : items) widen(extent, item);
  return Value(std::make_shared<const Array>(Array{std::move(items), extent, form}));
}

Value Value::dict(Members members) {
  Extent extent{1, false};
  for (const auto& [key, value] : members) widen(extent, value);
  return Value(std::make_shared<Dict>(Dict{std::move(members), false, extent}));
}

Value Value::make_namespace(Members members) {
  return Value(std::make_shared<Dict>(Dict{std::move(members), true, {1, true}}));
}

Extent Value::extent() const {
  if (is_list()) return array().extent;
  if (is_object()) return {1, true};
  return is_dict() ? dict().extent : Extent{};
}

namespace {

// A number that JSON holds by its digits, as Python reads it.
Value from_digits(const std::string& digits) {
  if (digits.find_first_of(".eE") == std::string::npos) return BigInteger{digits};
  return std::strtod(digits.c_str(), nullptr);
}

}  // namespace

Value Value::from_json(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean: return json.get<bool>();
    case OrderedJson::value_t::number_integer: return json.get<int64_t>();
    case OrderedJson::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) return BigInteger{std::to_string(json.get<uint64_t>())};
      return json.get<int64_t>();
    case OrderedJson::value_t::binary: return from_digits(dump(json));
    case OrderedJson::value_t::number_float: return json.get<double>();
    case OrderedJson::value_t::string: return json.get<std::string>();
    case OrderedJson::value_t::array: {
      List items;
      for (const auto& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      Members members;
      for (const auto& [key, item] : json.items()) members.emplace_back(key, from_json(item));
      return dict(std::move(members));
    }
    default: return None{};
  }
}

const Value* Value::find(std::string_view key) const {
  if (!is_dict()) return nullptr;
  for (const auto& [name, value] : dict().members) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool Value::truth() const {
  if (is_bool() || is_int()) return integer() != 0;
  if (is_float()) return number() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return form() == Form::generator || !items().empty();
  if (is_dict()) return dict().assignable || !dict().members.empty();
  return !is_undefined() && !is_none();
}

std::string Value::type_name() const {
  if (is_undefined())
    return undefined_name().empty() ? "Undefined"
                                    : "'" + undefined_name() + "', which is undefined,";
  if (is_none()) return "None";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_big()) return "int";
  if (is_list()) {
    static constexpr std::array names{"list",      "tuple",       "tuple",      "range",
                                      "dict_keys", "dict_values", "dict_items", "generator"};
    return names[static_cast<size_t>(form())];
  }
  if (is_dict()) return dict().assignable ? "Namespace" : "dict";
  if (is_object()) return "object";
  return "function";
}

void set_member(Members& members, const std::string& key, Value value) {
  const auto found = std::ranges::find(members, key, &Members::value_type::first);
  if (found != members.end()) {
    found->second = std::move(value);
  } else {
    members.emplace_back(key, std::move(value));
  }
}

bool same(const Value& a, const Value& b) {
  if (a.is_list() && b.is_list()) return &a.array() == &b.array();
  if (a.is_dict() && b.is_dict()) return &a.dict() == &b.dict();
  if (a.is_object() && b.is_object()) return &a.object() == &b.object();
  if (a.is_undefined() || b.is_undefined()) return false;
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_number() && b.is_number())
    return a.type_name() == b.type_name() && a.number() == b.number();
  return a.is_none() && b.is_none();
}

namespace {

bool equal_members(const Members& a, const Dict& b, const Value& other, const Place& place) {
  if (a.size() != b.members.size()) return false;
  return std::ranges::all_of(a, [&](const auto& member) {
    place.charge_search(b.members.size());
    const Value* found = other.find(member.first);
    return found != nullptr && equal(member.second, *found, place);
  });
}

}  // namespace

bool equal(const Value& a, const Value& b, const Place& place) {
  place.charge();
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? a.number() == b.number() : a.integer() == b.integer();
  }
  if (a.is_string() && b.is_string()) {
    if (a.string().size() != b.string().size()) return false;
    place.charge_text(a.string().size());
    return a.string() == b.string();
  }
  if (a.data_.index() != b.data_.index()) return false;
  if (a.is_list()) {
    if (same(a, b)) return true;
    const bool comparable = (a.form() == b.form() || (a.is_tuple() && b.is_tuple())) &&
                            a.form() != Form::values && a.form() != Form::generator;
    return comparable &&
           std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                      [&place](const Value& x, const Value& y) { return equal(x, y, place); });
  }
  if (a.is_dict()) {
    if (a.dict().assignable || b.dict().assignable) return same(a, b);
    return equal_members(a.dict().members, b.dict(), b, place);
  }
  if (a.is_macro()) return a.macro().statement == b.macro().statement;
  if (a.is_big()) return a.digits() == b.digits();
  if (a.is_object()) return same(a, b);
  return !a.is_builtin() || a.builtin() == b.builtin();
}

std::u32string code_points(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    out += step.kind == Utf8::valid ? step.character : char32_t{0xFFFD};
    text.remove_prefix(step.length);
  }
  return out;
}

std::string from_code_points(std::u32string_view text) {
  std::string out;
  for (const char32_t c : text) append_utf8(out, c);
  return out;
}

}  // namespace trireme::text::jinja
