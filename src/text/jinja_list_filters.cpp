// Filters that work on lists and mappings.
#include <algorithm>

#include "text/jinja_call.hpp"
#include "text/python_text.hpp"
#include "trireme/base/text.hpp"

namespace trireme::text::jinja {

namespace list_filter {
namespace {

Value without_case(const Arguments& arguments, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  arguments.place.charge_text(value.string().size());
  return python::lower(value.string());
}

Value member_or_none(const Arguments& arguments, const Value& item, size_t index) {
  return member_of(arguments.place, item,
                   arguments.at(index) != nullptr ? arguments.value(index) : Value(None{}));
}

struct Keyed {
  Value key, item;
};

void sort_by_key(const Arguments& arguments, std::vector<Keyed>& items, bool reverse) {
  const auto less = [&](const Keyed& a, const Keyed& b) {
    arguments.place.charge();
    return compare(arguments.place, "<", a.key, b.key) < 0;
  };
  if (reverse) std::ranges::reverse(items);  // as Python, which keeps the order of equal ones
  std::ranges::stable_sort(items, less);
  if (reverse) std::ranges::reverse(items);
}

List items_of(std::vector<Keyed> keyed) {
  List items;
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return items;
}

// Of "a,b" a list of the members a and b.
Value sort_key(const Arguments& arguments, const Value& item, bool case_sensitive) {
  const Value* const attribute = arguments.at(2);
  if (attribute == nullptr || !attribute->is_string() ||
      attribute->string().find(',') == std::string::npos)
    return without_case(arguments, member_or_none(arguments, item, 2), case_sensitive);
  List keys;
  std::string_view rest = attribute->string();
  for (;;) {
    const std::string part(rest.substr(0, rest.find(',')));
    keys.push_back(without_case(arguments, member_of(arguments.place, item, part), case_sensitive));
    if (part.size() == rest.size()) return Value::list(std::move(keys));
    rest.remove_prefix(part.size() + 1);
  }
}

Value sorted(const Arguments& arguments, const Value& self) {
  const bool case_sensitive = arguments.truth(1, false);
  std::vector<Keyed> items;
  for (const Value& item : iterate(arguments.place, self))
    items.push_back({sort_key(arguments, item, case_sensitive), item});
  sort_by_key(arguments, items, arguments.truth(0, false));
  return Value::list(items_of(std::move(items)));
}

Value sorted_mapping(const Arguments& arguments, const Value& self) {
  if (!self.is_mapping()) arguments.fail("needs a mapping, found " + self.type_name());
  const bool case_sensitive = arguments.truth(0, false);
  const std::string by = arguments.text(1, "key");
  if (by != "key" && by != "value") arguments.fail("by must be key or value");
  std::vector<Keyed> items;
  for (const auto& [key, value] : self.dict().members) {
    const Value part = by == "key" ? Value(key) : value;
    items.push_back({without_case(arguments, part, case_sensitive), Value::tuple({key, value})});
  }
  sort_by_key(arguments, items, arguments.truth(2, false));
  return Value::list(items_of(std::move(items)));
}

Value grouped(const Arguments& arguments, const Value& self) {
  const bool case_sensitive = arguments.truth(2, false);
  std::vector<Keyed> items;
  for (const Value& item : iterate(arguments.place, self)) {
    Value key = member_or_none(arguments, item, 0);
    if (key.is_undefined() && arguments.at(1) != nullptr) key = arguments.value(1);
    items.push_back({without_case(arguments, key, case_sensitive), Value::tuple({key, item})});
  }
  sort_by_key(arguments, items, false);
  List groups;
  for (size_t first = 0; first < items.size();) {
    size_t end = first;
    List members;
    while (end < items.size() && equal(items[end].key, items[first].key, arguments.place))
      members.push_back(items[end++].item.items()[1]);
    groups.push_back(
        Value::list({items[first].item.items()[0], Value::list(std::move(members))}, Form::group));
    first = end;
  }
  return Value::list(std::move(groups));
}

Value unique(const Arguments& arguments, const Value& self) {
  List kept, seen;
  for (const Value& item : iterate(arguments.place, self)) {
    const Value key =
        without_case(arguments, member_or_none(arguments, item, 1), arguments.truth(0, false));
    const bool known = std::ranges::any_of(
        seen, [&](const Value& other) { return equal(other, key, arguments.place); });
    if (known) continue;
    seen.push_back(key);
    kept.push_back(item);
  }
  return Value::generator(std::move(kept));
}

template <bool largest>
Value extreme(const Arguments& arguments, const Value& self) {
  const bool case_sensitive = arguments.truth(0, false);
  const List items = iterate(arguments.place, self);
  if (items.empty()) return Undefined{"an item of an empty list"};
  const auto key = [&](const Value& item) {
    return without_case(arguments, member_or_none(arguments, item, 1), case_sensitive);
  };
  size_t best = 0;
  Value best_key = key(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value next = key(items[i]);
    const int sign = compare(arguments.place, largest ? ">" : "<", next, best_key);
    if (largest ? sign <= 0 : sign >= 0) continue;
    best = i;
    best_key = std::move(next);
  }
  return items[best];
}

Value sum(const Arguments& arguments, const Value& self) {
  Value total = arguments.at(1) != nullptr ? arguments.value(1) : Value(int64_t{0});
  for (const Value& item : iterate(arguments.place, self))
    total = apply_binary(arguments.place, "+", total, member_or_none(arguments, item, 0));
  return total;
}

Value join(const Arguments& arguments, const Value& self) {
  const std::string separator =
      arguments.at(0) != nullptr ? to_text(arguments.value(0), arguments.place) : "";
  std::string out;
  bool first = true;
  for (const Value& item : iterate(arguments.place, self)) {
    const std::string text = to_text(member_or_none(arguments, item, 1), arguments.place);
    arguments.place.check_length(out.size() + separator.size() + text.size());
    arguments.place.charge_text(separator.size());
    if (!first) out += separator;
    first = false;
    out += text;
  }
  return out;
}

Value reversed(const Arguments& arguments, const Value& self) {
  if (self.is_string()) {
    arguments.place.charge_text(self.string().size());
    std::u32string characters = code_points(self.string());
    std::ranges::reverse(characters);
    return from_code_points(characters);
  }
  List items = iterate(arguments.place, self);
  std::ranges::reverse(items);
  return Value::generator(std::move(items));
}

Value batches(const Arguments& arguments, const Value& self) {
  const int64_t count = arguments.integer(0);
  if (count < 1) arguments.fail("needs a number above 0");
  List out, batch;
  const auto close = [&] { out.push_back(Value::list(std::exchange(batch, {}))); };
  for (const Value& item : iterate(arguments.place, self)) {
    if (static_cast<int64_t>(batch.size()) == count) close();
    batch.push_back(item);
  }
  const bool filled = arguments.at(1) != nullptr && !arguments.value(1).is_none();
  if (batch.empty()) return Value::generator(std::move(out));
  while (filled && static_cast<int64_t>(batch.size()) < count) {
    arguments.place.charge();
    batch.push_back(arguments.value(1));
  }
  close();
  return Value::generator(std::move(out));
}

Value slices(const Arguments& arguments, const Value& self) {
  const List items = iterate(arguments.place, self);
  const int64_t count = arguments.integer(0);
  if (count < 1) arguments.fail("needs a number above 0");
  const int64_t size = static_cast<int64_t>(items.size()), each = size / count, more = size % count;
  const bool filled = arguments.at(1) != nullptr && !arguments.value(1).is_none();
  List out;
  auto next = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    arguments.place.charge();
    const int64_t length = each + (i < more ? 1 : 0);
    List slice(next, next + length);
    next += length;
    if (filled && i >= more) slice.push_back(arguments.value(1));
    out.push_back(Value::list(std::move(slice)));
  }
  return Value::generator(std::move(out));
}

Value members_of(const Arguments& arguments, const Value& self) {
  if (self.is_undefined()) return Value::generator({});
  if (!self.is_mapping()) arguments.fail("needs a mapping, found " + self.type_name());
  List items;
  for (const auto& [key, value] : self.dict().members) {
    arguments.place.charge();
    arguments.place.charge_text(key.size());
    items.push_back(Value::tuple({key, value}));
  }
  return Value::generator(std::move(items));
}

// map(attribute="name", default=x), or map("filter", its arguments).
Value mapped(const Arguments& arguments, const Value& self) {
  List out;
  if (!self.truth()) return Value::generator(std::move(out));
  if (arguments.positional.empty()) {
    Arguments named = arguments;
    named.bind("attribute default", 1);
    for (const Value& item : iterate(arguments.place, self)) {
      Value member = member_of(arguments.place, item, named.value(0));
      if (member.is_undefined() && named.at(1) != nullptr) member = named.value(1);
      out.push_back(std::move(member));
    }
    return Value::generator(std::move(out));
  }
  const Callee* const filter = find_filter(arguments.text(0));
  if (filter == nullptr) arguments.fail("the filter '" + arguments.text(0) + "' is not known");
  const Arguments inner = arguments.rest(1, "filter " + arguments.text(0));
  for (const Value& item : iterate(arguments.place, self)) {
    arguments.place.charge();
    out.push_back(invoke(*filter, inner, item));
  }
  return Value::generator(std::move(out));
}

// select, reject: items that pass a test or do not; selectattr, rejectattr: items whose attribute
// does. Without a test their truth counts.
template <bool by_attribute, bool wanted>
Value chosen(const Arguments& arguments, const Value& self) {
  List kept;
  if (!self.truth()) return Value::generator(std::move(kept));  // Jinja looks at nothing else then
  const size_t place = by_attribute ? 1 : 0;                    // of the test's name
  if (by_attribute && arguments.at(0) == nullptr) arguments.fail("needs the name of an attribute");
  const Callee* test = nullptr;
  Arguments inner = arguments.rest(place + 1, "");
  if (arguments.at(place) != nullptr) {
    test = find_test(arguments.text(place));
    if (test == nullptr) arguments.fail("the test '" + arguments.text(place) + "' is not known");
    inner.callee = "test " + arguments.text(place);
  }
  for (const Value& item : iterate(arguments.place, self)) {
    arguments.place.charge();
    const Value tested = by_attribute ? member_of(arguments.place, item, arguments.value(0)) : item;
    const bool passed = test != nullptr ? invoke(*test, inner, tested).truth() : tested.truth();
    if (passed == wanted) kept.push_back(item);
  }
  return Value::generator(std::move(kept));
}

Value first(const Arguments& arguments, const Value& self) {
  if (self.is_indexed() && !self.items().empty()) return self.items().front();
  if (self.is_list() && self.form() == Form::generator) {
    const Array& array = self.array();
    if (array.taken < array.items.size()) return array.items[array.taken++];
    return Undefined{"the first item"};
  }
  const List items = iterate(arguments.place, self);
  return items.empty() ? Value(Undefined{"the first item"}) : items.front();
}

Value last(const Arguments& arguments, const Value& self) {
  if (self.is_list() && self.form() == Form::generator)
    arguments.fail("needs a list, found a generator (use list)");
  if (self.is_indexed() && !self.items().empty()) return self.items().back();
  const List items = iterate(arguments.place, self);
  return items.empty() ? Value(Undefined{"the last item"}) : items.back();
}

Value as_list(const Arguments& arguments, const Value& self) {
  return Value::list(iterate(arguments.place, self));
}

}  // namespace
}  // namespace list_filter

std::span<const Callee> list_filters() {
  using namespace list_filter;
  static constexpr Callee filters[] = {
      {"first", "", 0, first},
      {"last", "", 0, last},
      {"list", "", 0, as_list},
      {"join", "d attribute", 0, join},
      {"map", "*", 0, mapped},
      {"select", "*", 0, chosen<false, true>},
      {"reject", "*", 0, chosen<false, false>},
      {"selectattr", "*", 0, chosen<true, true>},
      {"rejectattr", "*", 0, chosen<true, false>},
      {"reverse", "", 0, reversed},
      {"sort", "reverse case_sensitive attribute", 0, sorted},
      {"dictsort", "case_sensitive by reverse", 0, sorted_mapping},
      {"groupby", "attribute default case_sensitive", 1, grouped},
      {"unique", "case_sensitive attribute", 0, unique},
      {"min", "case_sensitive attribute", 0, extreme<false>},
      {"max", "case_sensitive attribute", 0, extreme<true>},
      {"sum", "attribute start", 0, sum},
      {"batch", "linecount fill_with", 1, batches},
      {"slice", "slices fill_with", 1, slices},
      {"items", "", 0, members_of},
  };
  return filters;
}

}  // namespace trireme::text::jinja
