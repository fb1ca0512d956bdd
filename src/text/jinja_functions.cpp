#include <algorithm>
#include <cmath>
#include <cstring>

#include "text/jinja_eval.hpp"
#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace {

constexpr int64_t longest_range = 10'000;

// Python's upper() and lower() for other scripts need tables that templates never use.
std::string change_case(const Arguments& arguments, const std::string& text, bool upper) {
  arguments.place.charge_text(text.size());
  std::string out = text;
  for (char& c : out) {
    if (static_cast<unsigned char>(c) >= 0x80)
      arguments.fail("letters outside ASCII are not known");
    if (upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    if (!upper && c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

enum class Side { left, right, both };

std::string strip(const Arguments& arguments, const std::string& text, Side side) {
  arguments.expect_count(0, 1);
  arguments.place.charge_text(text.size());
  if (arguments.positional.empty()) {
    std::string_view rest = text;
    if (side != Side::right) rest.remove_prefix(leading_space(rest, is_python_space));
    if (side != Side::left) rest.remove_suffix(trailing_space(rest, is_python_space));
    return std::string(rest);
  }
  arguments.place.charge_text(arguments.text(0).size());
  std::u32string drop = code_points(arguments.text(0));
  std::sort(drop.begin(), drop.end());
  const auto dropped = [&drop](char32_t c) {
    return std::binary_search(drop.begin(), drop.end(), c);
  };
  const std::u32string all = code_points(text);
  std::u32string_view rest = all;
  while (side != Side::right && !rest.empty() && dropped(rest.front())) rest.remove_prefix(1);
  while (side != Side::left && !rest.empty() && dropped(rest.back())) rest.remove_suffix(1);
  return from_code_points(rest);
}

std::string replace_all(const Arguments& arguments, const std::string& text) {
  arguments.expect_count(2, 2);
  const std::string& from = arguments.text(0);
  const std::string& to = arguments.text(1);
  if (from.empty()) arguments.fail("an empty text cannot be replaced");
  arguments.place.charge_text(text.size());
  size_t count = 0;
  for (size_t at = find_text(text, from); at != std::string::npos;
       at = find_text(text, from, at + from.size()))
    ++count;
  arguments.place.charge_text(text.size() - count * from.size() +
                              count * to.size());  // of texts <= 64 MiB: no overflow
  std::string out;
  size_t done = 0;
  for (size_t at = find_text(text, from); at != std::string::npos;
       at = find_text(text, from, done)) {
    out.append(text, done, at - done);
    out += to;
    done = at + from.size();
  }
  return out.append(text, done);
}

List split(const Arguments& arguments, const std::string& text) {
  arguments.expect_count(1, 2);
  const std::string& separator = arguments.text(0);
  if (separator.empty()) arguments.fail("an empty separator");
  arguments.place.charge_text(text.size());
  int64_t left = arguments.positional.size() > 1 ? arguments.integer(1) : -1;
  List parts;
  size_t done = 0;
  for (size_t at = find_text(text, separator); at != std::string::npos && left != 0;
       at = find_text(text, separator, done), --left) {
    arguments.place.charge();
    parts.emplace_back(text.substr(done, at - done));
    done = at + separator.size();
  }
  parts.emplace_back(text.substr(done));
  return parts;
}

// A key as a value of its own.
Value key_value(const Place& place, const std::string& key) {
  place.charge();
  place.charge_text(key.size());
  return Value(key);
}

List items_of(const Place& place, const Dict& dict) {
  List items;
  for (const auto& [key, value] : dict.members)
    items.push_back(Value::list({key_value(place, key), value}));
  return items;
}

int64_t length_of(const Arguments& arguments, const Value& value) {
  if (value.is_string()) {
    arguments.place.charge_text(value.string().size());
    return static_cast<int64_t>(code_points(value.string()).size());
  }
  if (value.is_list()) return static_cast<int64_t>(value.items().size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().members.size());
  if (value.is_undefined()) return 0;
  arguments.fail(value.type_name() + " has no length");
}

std::string json_of(const Arguments& arguments, const Value& value) {
  arguments.expect_count(0, 0);
  arguments.expect_keywords({"indent", "ensure_ascii"});
  int indent = -1;
  if (const auto found = arguments.keywords.find("indent");
      found != arguments.keywords.end() && !found->second.is_none()) {
    if (!found->second.is_int() || found->second.integer() < 0 || found->second.integer() > 16)
      arguments.fail("indent must be 0 to 16");
    indent = static_cast<int>(found->second.integer());
  }
  if (const auto found = arguments.keywords.find("ensure_ascii");
      found != arguments.keywords.end() && found->second.truth()) {
    arguments.fail("ensure_ascii=true is not known");
  }
  std::string problem;
  std::string text = to_json(value, indent, arguments.place, problem);
  if (!problem.empty()) arguments.fail(problem);
  return text;
}

std::string join(const Arguments& arguments, const Value& value) {
  arguments.expect_count(0, 1);
  const std::string separator = arguments.positional.empty() ? "" : arguments.text(0);
  arguments.place.charge_text(separator.size());
  std::string out;
  bool first = true;
  for (const Value& item : iterate(arguments.place, value)) {
    const std::string text = text_of(arguments, item);
    arguments.place.check_length(out.size() + separator.size() + text.size());
    arguments.place.charge_text(separator.size());
    if (!first) out += separator;
    first = false;
    out += text;
  }
  return out;
}

Value default_of(const Arguments& arguments, const Value& value) {
  arguments.expect_count(0, 2);
  const bool falsy_too = arguments.positional.size() > 1 && arguments.positional[1].truth();
  const bool replace = value.is_undefined() || (falsy_too && !value.truth());
  if (!replace) return value;
  return arguments.positional.empty() ? Value(std::string()) : arguments.positional[0];
}

Value end_of(const Arguments& arguments, const Value& value, bool first) {
  const List made = value.is_list() ? List() : iterate(arguments.place, value);
  const List& items = value.is_list() ? value.items() : made;
  if (items.empty()) return Undefined{first ? "first" : "last"};
  return first ? items.front() : items.back();
}

// The test named by argument `index`, its own argument behind it.
bool passes(const Arguments& arguments, size_t index, const Value& value) {
  const std::string& test = arguments.text(index);
  const bool compared = arguments.positional.size() > index + 1;
  if (compared && (test == "equalto" || test == "eq" || test == "=="))
    return equal(value, arguments.positional[index + 1], arguments.place);
  if (compared && (test == "ne" || test == "!="))
    return !equal(value, arguments.positional[index + 1], arguments.place);
  if (compared || !is_test(test)) arguments.fail("the test '" + test + "' is not known there");
  return apply_test(test, value);
}

// select, reject: items that pass a test or do not; selectattr, rejectattr: items whose attribute
// does. Without a test their truth counts.
List choose(const Arguments& arguments, const Value& value, const std::string& name) {
  const bool by_attribute = name.ends_with("attr");
  const size_t test = by_attribute ? 1 : 0;  // index of the test's name
  if (!value.truth()) return {};             // Jinja looks at nothing else then
  arguments.expect_count(test, test + 2);
  List kept;
  for (const Value& item : iterate(arguments.place, value)) {
    const Value* tested = &item;
    const Value missing;
    if (by_attribute) {
      if (item.is_dict()) arguments.place.charge_search(item.dict().members.size());
      const Value* member = item.find(arguments.text(0));
      tested = member != nullptr ? member : &missing;
    }
    const bool passed =
        arguments.positional.size() <= test ? tested->truth() : passes(arguments, test, *tested);
    if (passed == name.starts_with("select")) kept.push_back(item);
  }
  return kept;
}

}  // namespace

std::string text_of(const Arguments& arguments, const Value& value) {
  if (value.is_string()) arguments.place.charge_text(value.string().size());
  std::string problem;
  std::string text = to_text(value, problem);
  if (!problem.empty()) arguments.fail(problem);
  return text;
}

void Arguments::expect_count(size_t least, size_t most) const {
  if (positional.size() < least || positional.size() > most) {
    fail(base::text("takes ", least, " to ", most, " arguments here, found ", positional.size()));
  }
}

void Arguments::expect_keywords(std::initializer_list<std::string_view> known) const {
  for (const auto& [name, value] : keywords) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail("the argument '" + name + "' is not known");
  }
}

const std::string& Arguments::text(size_t index) const {
  if (!positional[index].is_string())
    fail(base::text("argument ", index + 1, " must be a text, found ",
                    positional[index].type_name()));
  return positional[index].string();
}

int64_t Arguments::integer(size_t index) const {
  if (!positional[index].is_int())
    fail(base::text("argument ", index + 1, " must be a whole number, found ",
                    positional[index].type_name()));
  return positional[index].integer();
}

Value apply_filter(const Value& value, const Arguments& arguments) {
  const std::string name = arguments.callee.substr(arguments.callee.find(' ') + 1);
  if (name == "tojson") return json_of(arguments, value);
  if (auto found = apply_more_filters(name, value, arguments)) return *found;
  arguments.expect_keywords({});
  if (name == "trim") return strip(arguments, text_of(arguments, value), Side::both);
  if (name == "default" || name == "d") return default_of(arguments, value);
  if (name == "join") return join(arguments, value);
  if (name == "replace") return replace_all(arguments, text_of(arguments, value));
  if (name.starts_with("select") || name.starts_with("reject"))
    return Value::list(choose(arguments, value, name));
  arguments.expect_count(0, 0);
  if (name == "length" || name == "count") return length_of(arguments, value);
  if (name == "upper" || name == "lower")
    return change_case(arguments, text_of(arguments, value), name == "upper");
  if (name == "string" || name == "safe") return text_of(arguments, value);
  if (name == "first" || name == "last") return end_of(arguments, value, name == "first");
  if (name == "list") return Value::list(iterate(arguments.place, value));
  if (name != "items") arguments.fail("is not known");
  if (value.is_undefined()) return Value::list({});
  if (!value.is_dict()) arguments.fail("needs a mapping, found " + value.type_name());
  return Value::list(items_of(arguments.place, value.dict()));
}

bool apply_test(const std::string& test, const Value& value) {
  if (test == "defined") return !value.is_undefined();
  if (test == "undefined") return value.is_undefined();
  if (test == "none") return value.is_none();
  if (test == "string") return value.is_string();
  if (test == "mapping") return value.is_dict();
  if (test == "number") return value.is_number();
  if (test == "integer") return value.is_int();
  if (test == "float") return value.is_float();
  if (test == "boolean") return value.is_bool();
  if (test == "true") return value.is_bool() && value.truth();
  if (test == "false") return value.is_bool() && !value.truth();
  if (test == "odd") return value.is_int() && value.integer() % 2 != 0;
  if (test == "even") return value.is_int() && value.integer() % 2 == 0;
  return value.is_string() || value.is_list() || value.is_dict() ||
         value.is_undefined();  // iterable, sequence
}

bool has_method(const Value& object, const std::string& method) {
  static const std::vector<std::string> of_text{
      "strip",   "lstrip", "rstrip",     "startswith", "endswith", "split", "upper",   "lower",
      "replace", "title",  "capitalize", "splitlines", "find",     "count", "isdigit", "join"};
  static const std::vector<std::string> of_dict{"items", "keys", "values", "get"};
  const auto among = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), method) != names.end();
  };
  const bool mapping = object.is_dict() && !object.dict().assignable;
  return (object.is_string() && among(of_text)) || (mapping && among(of_dict));
}

bool hides_key(const Value& object, const std::string& name) {
  if (has_method(object, name)) return true;
  static const std::vector<std::string> forbidden{"clear", "pop", "popitem", "setdefault",
                                                  "update"};
  return object.is_dict() && !object.dict().assignable &&
         std::find(forbidden.begin(), forbidden.end(), name) != forbidden.end();
}

Value call_method(const Value& object, const std::string& method, const Arguments& arguments) {
  arguments.expect_keywords({});
  if (object.is_string()) {
    const std::string& text = object.string();
    if (auto found = call_more_methods(text, method, arguments)) return *found;
    if (method == "strip") return strip(arguments, text, Side::both);
    if (method == "lstrip") return strip(arguments, text, Side::left);
    if (method == "rstrip") return strip(arguments, text, Side::right);
    if (method == "split") return Value::list(split(arguments, text));
    if (method == "replace") return replace_all(arguments, text);
    if (method == "startswith" || method == "endswith") {
      arguments.expect_count(1, 1);
      return method == "startswith" ? text.starts_with(arguments.text(0))
                                    : text.ends_with(arguments.text(0));
    }
    arguments.expect_count(0, 0);
    return change_case(arguments, text, method == "upper");
  }
  if (method == "get") {
    arguments.expect_count(1, 2);
    arguments.place.charge_search(object.dict().members.size());
    if (const Value* found = object.find(arguments.text(0))) return *found;
    return arguments.positional.size() > 1 ? arguments.positional[1] : Value(None{});
  }
  arguments.expect_count(0, 0);
  if (method == "items") return Value::list(items_of(arguments.place, object.dict()));
  List list;
  for (const auto& [key, value] : object.dict().members) {
    arguments.place.charge();
    list.push_back(method == "keys" ? key_value(arguments.place, key) : value);
  }
  return Value::list(std::move(list));
}

Value call_builtin(Builtin builtin, const Arguments& arguments) {
  if (builtin == Builtin::raise_exception) {
    arguments.expect_count(1, 1);
    arguments.place.fail("the template refuses these messages: " +
                         text_of(arguments, arguments.positional[0]));
  }
  if (builtin == Builtin::make_namespace) {
    arguments.expect_count(0, 0);
    Members members;
    for (const auto& [name, value] : arguments.keywords) {
      if (value.extent().has_namespace) arguments.fail("a namespace in a namespace is not known");
      members.emplace_back(name, value);
    }
    return Value::make_namespace(std::move(members));
  }
  arguments.expect_count(1, 3);
  arguments.expect_keywords({});
  const size_t count = arguments.positional.size();
  const int64_t from = count > 1 ? arguments.integer(0) : 0;
  const int64_t to = arguments.integer(count > 1 ? 1 : 0);
  const int64_t step = count > 2 ? arguments.integer(2) : 1;
  if (step == 0) arguments.fail("a step of 0");
  List numbers;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    if (static_cast<int64_t>(numbers.size()) == longest_range)
      arguments.fail(base::text("longer than ", longest_range));
    arguments.place.charge();
    numbers.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(numbers));
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

List iterate(const Place& place, const Value& value) {
  if (value.is_list()) {
    place.charge(value.items().size());
    return value.items();
  }
  if (value.is_undefined()) return {};
  List items;
  if (value.is_dict()) {
    for (const auto& member : value.dict().members) items.push_back(key_value(place, member.first));
  } else if (value.is_string()) {
    place.charge(value.string().size());  // a value for each character
    for (const char32_t c : code_points(value.string()))
      items.emplace_back(from_code_points({&c, 1}));
  } else {
    place.fail("cannot go through " + value.type_name());
  }
  return items;
}

}  // namespace trireme::text::jinja
