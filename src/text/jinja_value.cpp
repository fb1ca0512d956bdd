#include "text/jinja_value.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja_meter.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace {

// A float as json.dumps writes it: shortest digits that read back, exponent form below 1e-4 and
// from 1e16 on.
std::string float_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer{};
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format);
  std::string out(buffer.data(), end);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

void quote(const std::string& text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          std::array<char, 8> buffer{};
          std::snprintf(buffer.data(), buffer.size(), "\\u%04x", static_cast<unsigned>(c));
          out += buffer.data();
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(int indent, const Place& place, std::string& problem)
      : indent_(indent), place_(place), problem_(problem) {}

  void write(const Value& value, int depth) {
    place_.charge();
    place_.check_length(out_.size());
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.integer() != 0 ? "true" : "false";
    } else if (value.is_int()) {
      out_ += std::to_string(value.integer());
    } else if (value.is_float()) {
      out_ += float_text(value.number());
    } else if (value.is_string()) {
      put(value.string());
    } else if (value.is_list()) {
      const auto item = [&](const Value& entry) { write(entry, depth + 1); };
      sequence('[', ']', value.items(), depth, item);
    } else if (value.is_dict()) {
      sequence('{', '}', value.dict().members, depth, [&](const auto& member) {
        put(member.first);
        out_ += ": ";
        write(member.second, depth + 1);
      });
    } else {
      problem_ = value.type_name() + " has no JSON form";
    }
  }
  size_t size() const { return out_.size(); }
  std::string take() { return std::move(out_); }

 private:
  void put(const std::string& text) {
    place_.charge_text(text.size());
    quote(text, out_);
  }
  template <class Entries, class Write>
  void sequence(char open, char close, const Entries& entries, int depth,
                const Write& write_entry) {
    out_ += open;
    bool first = true;
    for (const auto& entry : entries) {
      if (!first) out_ += indent_ < 0 ? ", " : ",";
      first = false;
      new_line(depth + 1);
      write_entry(entry);
    }
    if (!first) new_line(depth);
    out_ += close;
  }
  void new_line(int depth) {
    if (indent_ < 0) return;
    const size_t blanks = static_cast<size_t>(indent_) * static_cast<size_t>(depth);
    place_.charge_text(blanks);
    out_ += "\n" + std::string(blanks, ' ');
  }

  int indent_;
  const Place& place_;
  std::string& problem_;
  std::string out_;
};

void widen(Extent& extent, const Value& part) {
  const Extent inner = part.extent();
  extent.depth = std::max(extent.depth, inner.depth + 1);
  extent.has_namespace = extent.has_namespace || inner.has_namespace;
}

}  // namespace

Value Value::list(List items) {
  Extent extent{1, false};
  for (const Value& item : items) widen(extent, item);
  return Value(std::make_shared<const Array>(Array{std::move(items), extent}));
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
  if (is_list()) return std::get<std::shared_ptr<const Array>>(data_)->extent;
  return is_dict() ? dict().extent : Extent{};
}

Value Value::from_json(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean: return json.get<bool>();
    case OrderedJson::value_t::number_integer: return json.get<int64_t>();
    case OrderedJson::value_t::number_unsigned:
      VALIDATE(json.get<uint64_t>() <= INT64_MAX, ExitCode::bad_data, "a field of a message holds ",
               json.get<uint64_t>(),
               " (a number beyond 64 bits, which chat templates cannot print): give it as a text");
      return json.get<int64_t>();
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
  if (is_list()) return !items().empty();
  if (is_dict()) return dict().assignable || !dict().members.empty();
  return is_builtin() || is_macro();
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
  if (is_list()) return "list";
  if (is_dict()) return "dict";
  return "function";
}

bool equal(const Value& a, const Value& b, const Place& place) {
  place.charge();
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? a.number() == b.number() : a.integer() == b.integer();
  }
  if (a.data_.index() != b.data_.index()) return false;
  if (a.is_string()) {
    if (a.string().size() != b.string().size()) return false;
    place.charge_text(a.string().size());
    return a.string() == b.string();
  }
  if (a.is_list()) {
    return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                      [&place](const Value& x, const Value& y) { return equal(x, y, place); });
  }
  if (a.is_dict()) {
    if (a.dict().members.size() != b.dict().members.size()) return false;
    for (const auto& [key, value] : a.dict().members) {
      place.charge_search(b.dict().members.size());
      const Value* other = b.find(key);
      if (other == nullptr || !equal(value, *other, place)) return false;
    }
    return true;
  }
  if (a.is_macro()) return a.macro().statement == b.macro().statement;
  return !a.is_builtin() || a.builtin() == b.builtin();
}

std::string to_json(const Value& value, int indent, const Place& place, std::string& problem) {
  JsonWriter writer(indent, place, problem);
  writer.write(value, 0);
  place.check_length(writer.size());
  return writer.take();
}

std::string to_text(const Value& value, std::string& problem) {
  if (value.is_string()) return value.string();
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.integer() != 0 ? "True" : "False";
  if (value.is_int()) return std::to_string(value.integer());
  if (value.is_float() && std::isnan(value.number())) return "nan";
  if (value.is_float() && std::isinf(value.number()))
    return value.number() > 0 ? "inf" : "-inf";  // JSON has other words for them
  if (value.is_float()) return float_text(value.number());
  problem = "the text form of a " + value.type_name() + " is not known (use tojson or join)";
  return "";
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
