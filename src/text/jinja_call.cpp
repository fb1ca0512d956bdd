#include "text/jinja_call.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "text/jinja_eval.hpp"
#include "trireme/base/text.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text::jinja {

namespace {

constexpr int64_t longest_range = 100'000;  // as in Jinja's sandbox

const Callee* find_callee(std::span<const Callee> callees, std::string_view name) {
  const auto found = std::ranges::find(callees, name, &Callee::name);
  return found == callees.end() ? nullptr : &*found;
}

size_t count_words(std::string_view text) {
  return text.empty() ? 0 : static_cast<size_t>(std::ranges::count(text, ' ')) + 1;
}

// A key as a value of its own.
Value key_value(const Place& place, const std::string& key) {
  place.charge();
  place.charge_text(key.size());
  return Value(key);
}

}  // namespace

void Arguments::bind(std::string_view parameters, size_t least) {
  const size_t most = count_words(parameters);
  if (positional.size() > most)
    fail(base::text("takes at most ", most, " arguments, found ", positional.size()));
  std::string_view rest = parameters;
  for (size_t i = 0; i < most; ++i) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    const auto found = std::ranges::find(keywords, name, &Members::value_type::first);
    if (found != keywords.end()) {
      if (positional.size() <= i) positional.resize(i + 1);
      if (positional[i].has_value()) fail("the argument '" + found->first + "' is given twice");
      positional[i] = std::move(found->second);
      keywords.erase(found);
    }
    if (i < least && at(i) == nullptr) fail("needs the argument '" + std::string(name) + "'");
  }
  expect_no_keywords();
}

void Arguments::expect_no_keywords() const {
  if (!keywords.empty()) fail("the argument '" + keywords[0].first + "' is not known");
}

const Value* Arguments::at(size_t index) const {
  return index < positional.size() && positional[index].has_value() ? &*positional[index] : nullptr;
}

bool Arguments::truth(size_t index, bool otherwise) const {
  const Value* const value = at(index);
  return value == nullptr ? otherwise : value->truth();
}

const std::string& Arguments::text(size_t index) const {
  const Value* const value = at(index);
  if (value == nullptr) fail(base::text("needs an argument ", index + 1));
  if (!value->is_string())
    fail(base::text("argument ", index + 1, " must be a text, found ", value->type_name()));
  return value->string();
}

std::string Arguments::text(size_t index, const std::string& otherwise) const {
  return at(index) == nullptr ? otherwise : text(index);
}

int64_t Arguments::integer(size_t index) const {
  const Value* const value = at(index);
  if (value == nullptr) fail(base::text("needs an argument ", index + 1));
  if (!value->is_int() && !value->is_bool())
    fail(base::text("argument ", index + 1, " must be a whole number, found ", value->type_name()));
  return value->integer();
}

int64_t Arguments::integer(size_t index, int64_t otherwise) const {
  return at(index) == nullptr || at(index)->is_none() ? otherwise : integer(index);
}

Arguments Arguments::rest(size_t first, std::string other) const {
  Arguments made{place, std::move(other), {}, keywords};
  for (size_t i = first; i < positional.size(); ++i) made.positional.push_back(positional[i]);
  return made;
}

const Callee* find_filter(std::string_view name) {
  for (const auto callees : {text_filters(), list_filters(), value_filters()}) {
    if (const Callee* const found = find_callee(callees, name)) return found;
  }
  return nullptr;
}

const Callee* find_test(std::string_view name) { return find_callee(value_tests(), name); }

Value invoke(const Callee& callee, Arguments arguments, const Value& self) {
  if (callee.parameters != "*") arguments.bind(callee.parameters, callee.least);
  return callee.call(arguments, self);
}

namespace {

constexpr std::array<std::string_view, 5> dict_methods{"items", "keys", "values", "get", "copy"};
constexpr std::array<std::string_view, 6> forbidden_methods{"clear",      "pop",    "popitem",
                                                            "setdefault", "update", "fromkeys"};
constexpr std::array<std::string_view, 2> list_methods{"index", "count"};

Value view_of(const Place& place, const Dict& dict, const std::string& method) {
  List list;
  for (const auto& [key, value] : dict.members) {
    if (method == "values") {
      place.charge();
      list.push_back(value);
    } else if (method == "keys") {
      list.push_back(key_value(place, key));
    } else {
      list.push_back(Value::tuple({key_value(place, key), value}));
    }
  }
  return Value::list(std::move(list), method == "items"  ? Form::items
                                      : method == "keys" ? Form::keys
                                                         : Form::values);
}

Value call_dict_method(const Value& object, const std::string& method, Arguments arguments) {
  if (method != "get") {
    arguments.bind("", 0);
    if (method == "copy") return Value::dict(object.dict().members);
    return view_of(arguments.place, object.dict(), method);
  }
  arguments.expect_no_keywords();
  arguments.bind("key default", 1);
  arguments.place.charge_search(object.dict().members.size());
  const Value* const found =
      arguments.value(0).is_string() ? object.find(arguments.value(0).string()) : nullptr;
  if (found != nullptr) return *found;
  return arguments.at(1) != nullptr ? arguments.value(1) : Value(None{});
}

Value call_list_method(const Value& object, const std::string& method, Arguments arguments) {
  arguments.bind("value", 1);
  int64_t count = 0, index = 0;
  for (const Value& item : object.items()) {
    const bool hit = equal(item, arguments.value(0), arguments.place);
    if (hit && method == "index") return index;
    count += hit ? 1 : 0;
    ++index;
  }
  if (method == "index") arguments.fail("the value is not in the list");
  return count;
}

}  // namespace

bool has_method(const Value& object, std::string_view method) {
  if (object.is_string()) return find_callee(text_methods(), method) != nullptr;
  if (object.is_object()) return has_object_method(object.object(), method);
  if (object.is_mapping()) return std::ranges::find(dict_methods, method) != dict_methods.end();
  return object.is_indexed() && std::ranges::find(list_methods, method) != list_methods.end();
}

bool hides_key(const Value& object, std::string_view name) {
  return object.is_mapping() &&
         (std::ranges::find(dict_methods, name) != dict_methods.end() ||
          std::ranges::find(forbidden_methods, name) != forbidden_methods.end());
}

Value call_method(const Value& object, const std::string& method, const Arguments& arguments) {
  if (object.is_string()) return invoke(*find_callee(text_methods(), method), arguments, object);
  if (object.is_object()) return call_object_method(object.object(), method, arguments);
  if (object.is_mapping()) return call_dict_method(object, method, arguments);
  return call_list_method(object, method, arguments);
}

Value attribute_of(const Place& place, const Value& object, std::string_view name) {
  if (object.is_object()) return object_attribute(object.object(), name);
  if (object.is_list() && object.form() == Form::group && (name == "grouper" || name == "list"))
    return object.items()[name == "list" ? 1 : 0];
  if (hides_key(object, name)) return Undefined::of(name);
  if (object.is_dict()) place.charge_search(object.dict().members.size());
  const Value* const member = object.find(name);
  return member != nullptr ? *member : Value(Undefined::of(name));
}

Value member_of(const Place& place, Value value, const Value& path) {
  if (path.is_none()) return value;
  if (!path.is_string()) return subscript(place, value, path);
  std::string_view rest = path.string();
  for (;;) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string part(rest.substr(0, dot));
    const bool number = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    value = subscript(place, value,
                      number ? Value(static_cast<int64_t>(std::stol(part))) : Value(part));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

Value object_attribute(const Object& object, std::string_view name) {
  const auto count = static_cast<int64_t>(object.items.size());
  const auto index = static_cast<int64_t>(object.index);
  if (object.kind == Object::Kind::cycler)
    return name == "current" ? object.items[object.index] : Value(Undefined::of(name));
  if (object.kind != Object::Kind::loop) return Undefined::of(name);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return count - index;
  if (name == "revindex0") return count - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == count;
  if (name == "length") return count;
  if (name == "depth") return int64_t{object.depth};
  if (name == "depth0") return int64_t{object.depth - 1};
  if (name == "previtem" && index > 0) return object.items[object.index - 1];
  if (name == "nextitem" && index + 1 < count) return object.items[object.index + 1];
  return Undefined::of(name);
}

bool has_object_method(const Object& object, std::string_view name) {
  if (object.kind == Object::Kind::loop) return name == "cycle" || name == "changed";
  return object.kind == Object::Kind::cycler && (name == "next" || name == "reset");
}

Value call_object_method(Object& object, const std::string& method, const Arguments& arguments) {
  arguments.expect_no_keywords();
  if (method == "reset") {
    object.index = 0;
    return None{};
  }
  if (method == "next") {
    Value current = object.items[object.index];
    object.index = (object.index + 1) % object.items.size();
    return current;
  }
  List values;
  for (size_t i = 0; i < arguments.positional.size(); ++i) values.push_back(arguments.value(i));
  if (method == "cycle") {
    if (values.empty()) arguments.fail("needs values");
    return values[object.index % values.size()];
  }
  const Value now = Value::tuple(values);
  const bool changed = object.changed.empty() || !equal(object.changed[0], now, arguments.place);
  if (changed) {
    if (now.extent().has_namespace) arguments.fail("a namespace is not known there");
    object.changed.assign(1, now);
  }
  return changed;
}

namespace {

Value make_namespace(const Arguments& arguments) {
  if (arguments.positional.size() > 1) arguments.fail("takes one mapping at most");
  Members members;
  if (const Value* const start = arguments.at(0)) {
    if (!start->is_mapping()) arguments.fail("needs a mapping, found " + start->type_name());
    members = start->dict().members;
  }
  for (const auto& [name, value] : arguments.keywords) set_member(members, name, value);
  for (const auto& [name, value] : members) {
    if (value.extent().has_namespace) arguments.fail("a namespace in a namespace is not known");
  }
  return Value::make_namespace(std::move(members));
}

Value make_dict(const Arguments& arguments) {
  if (arguments.positional.size() > 1) arguments.fail("takes one mapping or list of pairs at most");
  Members members;
  if (const Value* const start = arguments.at(0); start != nullptr && start->is_mapping()) {
    members = start->dict().members;
  } else if (start != nullptr) {
    for (const Value& pair : iterate(arguments.place, *start)) {
      const List both = pair.is_list() ? iterate(arguments.place, pair) : List();
      if (both.size() != 2 || !both[0].is_string())
        arguments.fail("needs pairs of a text and a value");
      arguments.place.charge_search(members.size());
      set_member(members, both[0].string(), both[1]);
    }
  }
  for (const auto& [name, value] : arguments.keywords) set_member(members, name, value);
  return Value::dict(std::move(members));
}

Value make_object(Object::Kind kind, const Arguments& arguments) {
  Object made;
  made.kind = kind;
  for (const auto& value : arguments.positional) made.items.push_back(*value);
  for (const auto& [name, value] : arguments.keywords) {
    if (kind != Object::Kind::joiner || name != "sep" || !made.items.empty())
      arguments.fail("the argument '" + name + "' is not known");
    made.items.push_back(value);
  }
  if (kind == Object::Kind::joiner && made.items.empty()) made.items.emplace_back(", ");
  if (made.items.empty()) arguments.fail("needs values");
  for (const Value& item : made.items) {
    if (item.extent().has_namespace) arguments.fail("a namespace is not known there");
  }
  return std::make_shared<Object>(std::move(made));
}

Value make_range(const Arguments& arguments) {
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3) arguments.fail("takes 1 to 3 arguments");
  arguments.expect_no_keywords();
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
  return Value::list(std::move(numbers), Form::range);
}

}  // namespace

Value call_builtin(Builtin builtin, const Arguments& arguments) {
  switch (builtin) {
    case Builtin::raise_exception:
      if (arguments.positional.size() != 1) arguments.fail("takes a message");
      arguments.place.fail("the template refuses these messages: " +
                           to_text(arguments.value(0), arguments.place));
    case Builtin::make_namespace: return make_namespace(arguments);
    case Builtin::make_dict: return make_dict(arguments);
    case Builtin::make_joiner: return make_object(Object::Kind::joiner, arguments);
    case Builtin::make_cycler: return make_object(Object::Kind::cycler, arguments);
    default: return make_range(arguments);
  }
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

List iterate(const Place& place, const Value& value) {
  if (value.is_list()) {
    const Array& array = value.array();
    place.charge(array.items.size());
    if (array.form != Form::generator) return array.items;
    const size_t taken = std::exchange(array.taken, array.items.size());
    return List(array.items.begin() + static_cast<int64_t>(taken), array.items.end());
  }
  if (value.is_undefined()) return {};
  List items;
  if (value.is_mapping()) {
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
