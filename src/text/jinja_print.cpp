// Values as texts: Python's str(), repr() and json.dumps().
#include <algorithm>
#include <array>
#include <cstdio>

#include "text/jinja_meter.hpp"
#include "text/jinja_value.hpp"
#include "text/python_text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace {

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return python::float_text(value);
}

void append_escape(unsigned unit, std::string& out) {
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "\\u%04x", unit);
  out += buffer.data();
}

// A character outside ASCII as \u escapes, of UTF-16 where it needs two.
void append_ascii(char32_t c, std::string& out) {
  if (c < 0x10000) return append_escape(static_cast<unsigned>(c), out);
  append_escape(0xD800 + ((static_cast<unsigned>(c) - 0x10000) >> 10), out);
  append_escape(0xDC00 + ((static_cast<unsigned>(c) - 0x10000) & 0x3FF), out);
}

void quote(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for (size_t length; !text.empty(); text.remove_prefix(length)) {
    const Utf8Step step = utf8_step(text);
    length = step.length;
    switch (text[0]) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(text[0]) < 0x20) {
          append_escape(static_cast<unsigned char>(text[0]), out);
        } else if (ascii && length > 1) {
          append_ascii(step.character, out);
        } else {
          out += text.substr(0, length);
        }
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, const Place& place, std::string& problem)
      : style_(style), place_(place), problem_(problem) {}

  void write(const Value& value, int depth) {
    place_.charge();
    place_.check_length(out_.size());
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.integer() != 0 ? "true" : "false";
    } else if (value.is_int()) {
      out_ += std::to_string(value.integer());
    } else if (value.is_big()) {
      out_ += value.digits();
    } else if (value.is_float()) {
      out_ += json_float(value.number());
    } else if (value.is_string()) {
      put(value.string());
    } else if (value.is_list() && (value.form() == Form::list || value.is_tuple())) {
      const auto item = [&](const Value& entry) { write(entry, depth + 1); };
      sequence('[', ']', value.items(), depth, item);
    } else if (value.is_dict()) {
      mapping(value.dict().members, depth);
    } else {
      problem_ = value.type_name() + " has no JSON form";
    }
  }
  size_t size() const { return out_.size(); }
  std::string take() { return std::move(out_); }

 private:
  void mapping(const Members& members, int depth) {
    const auto write_member = [&](const auto& member) {
      put(member.first);
      out_ += style_.key_separator;
      write(member.second, depth + 1);
    };
    if (!style_.sorted) return sequence('{', '}', members, depth, write_member);
    place_.charge(members.size());
    Members sorted = members;
    std::ranges::sort(sorted, {},
                      [](const auto& member) { return std::string_view(member.first); });
    sequence('{', '}', sorted, depth, write_member);
  }
  void put(const std::string& text) {
    place_.charge_text(text.size());
    quote(text, style_.ascii, out_);
  }
  template <class Entries, class Write>
  void sequence(char open, char close, const Entries& entries, int depth,
                const Write& write_entry) {
    out_ += open;
    bool first = true;
    for (const auto& entry : entries) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line(depth + 1);
      write_entry(entry);
    }
    if (!first) new_line(depth);
    out_ += close;
  }
  void new_line(int depth) {
    if (!style_.lines) return;
    place_.charge_text(style_.indent.size() * static_cast<size_t>(depth));
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += style_.indent;
  }

  const JsonStyle& style_;
  const Place& place_;
  std::string& problem_;
  std::string out_;
};

class ReprWriter {
 public:
  explicit ReprWriter(const Place& place) : place_(place) {}

  void write(const Value& value) {
    place_.charge();
    place_.check_length(out_.size());
    if (value.is_markup()) {
      put("Markup(");
      put(python::repr(value.string()));
      put(")");
    } else if (value.is_string()) {
      place_.charge_text(value.string().size());
      put(python::repr(value.string()));
    } else if (value.is_undefined()) {
      put("Undefined");
    } else if (value.is_list()) {
      sequence(value);
    } else if (value.is_dict()) {
      put(value.dict().assignable ? "<Namespace {" : "{");
      for (bool first = true; const auto& [key, member] : value.dict().members) {
        if (!first) put(", ");
        first = false;
        place_.charge_text(key.size());
        put(python::repr(key) + ": ");
        write(member);
      }
      put(value.dict().assignable ? "}>" : "}");
    } else {
      put(to_text(value, place_));
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void put(std::string_view text) { out_ += text; }
  void sequence(const Value& value) {
    struct Brackets {
      const char *open, *close;
    };
    Brackets brackets{"[", "]"};
    switch (value.form()) {
      case Form::list: break;
      case Form::tuple:
      case Form::group: brackets = {"(", value.items().size() == 1 ? ",)" : ")"}; break;
      case Form::keys: brackets = {"dict_keys([", "])"}; break;
      case Form::values: brackets = {"dict_values([", "])"}; break;
      case Form::items: brackets = {"dict_items([", "])"}; break;
      case Form::range:
      case Form::generator:
        place_.fail("the text form of a " + value.type_name() + " is not known (use list or join)");
    }
    put(brackets.open);
    for (bool first = true; const Value& item : value.items()) {
      if (!first) put(", ");
      first = false;
      write(item);
    }
    put(brackets.close);
  }

  const Place& place_;
  std::string out_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style, const Place& place,
                    std::string& problem) {
  JsonWriter writer(style, place, problem);
  writer.write(value, 0);
  place.check_length(writer.size());
  return writer.take();
}

std::string to_repr(const Value& value, const Place& place) {
  ReprWriter writer(place);
  writer.write(value);
  std::string text = writer.take();
  place.check_length(text.size());
  return text;
}

std::string to_text(const Value& value, const Place& place) {
  if (value.is_string()) {
    place.charge_text(value.string().size());
    return value.string();
  }
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.integer() != 0 ? "True" : "False";
  if (value.is_int()) return std::to_string(value.integer());
  if (value.is_big()) return value.digits();
  if (value.is_float()) return python::float_text(value.number());
  if (value.is_list() || value.is_dict()) return to_repr(value, place);
  place.fail("the text form of a " + value.type_name() + " is not known");
}

}  // namespace trireme::text::jinja
