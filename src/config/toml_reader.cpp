// The one file that sees toml++. Header-only even where the package has a library, for a lower cap on nesting than the library
// was built with: its parser recurses.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
// Malformed decks reach assertions of toml++ 3.3 that its parser survives: they must neither abort a debug build nor become the
// optimizer's assumptions in a release build.
#undef NDEBUG
#define TOML_ASSERT(condition) static_assert(true)
#define TOML_MAX_NESTED_VALUES 64
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <algorithm>

#include "config/convert.hpp"
#include "config/value.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {

namespace {

Value to_value(const toml::node& node) {
  if (const auto* x = node.as_boolean()) return Value{x->get()};
  if (const auto* x = node.as_integer()) return Value{x->get()};
  if (const auto* x = node.as_floating_point()) return Value{x->get()};
  if (const auto* x = node.as_string()) return Value{x->get()};
  if (const auto* array = node.as_array()) {
    std::vector<Value> list;
    list.reserve(array->size());
    for (const auto& element : *array) list.push_back(to_value(element));
    return Value{std::move(list)};
  }
  return Value{OtherValue{node.is_table() ? "a table" : "a date or time"}};
}

bool is_list_of_tables(const toml::node& node) {
  const auto* array = node.as_array();
  return array && !array->empty() && array->is_homogeneous(toml::node_type::table);
}

void flatten(const toml::table& table, const std::string& prefix, std::vector<Entry>& out) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const auto* sub = node.as_table()) {
      flatten(*sub, name + ".", out);
    } else if (is_list_of_tables(node)) {
      size_t index = 0;
      for (const auto& element : *node.as_array()) {
        // An empty table still is an element of the list.
        if (element.as_table()->empty()) {
          out.push_back({base::text(name, ".", index), Value{OtherValue{"an empty table"}},
                         static_cast<int>(element.source().begin.line), ""});
        }
        flatten(*element.as_table(), base::text(name, ".", index++, "."), out);
      }
    } else {
      out.push_back({name, to_value(node), static_cast<int>(node.source().begin.line), ""});
    }
  }
}

}  // namespace

std::vector<Entry> read_toml(std::string_view text, std::string_view name, std::vector<std::string>& mistakes) {
  std::vector<Entry> out;
  const toml::parse_result result = toml::parse(text, name);
  if (!result) {
    const auto& error = result.error();
    mistakes.push_back(
        base::text(name, ":", error.source().begin.line, ":", error.source().begin.column, ": ", error.description()));
    return out;
  }
  flatten(result.table(), "", out);
  std::stable_sort(out.begin(), out.end(), [](const Entry& a, const Entry& b) { return a.line < b.line; });
  return out;
}

bool read_toml_value(std::string_view text, Value& out) {
  if (text.find_first_of("\r\n") != std::string_view::npos) return false;
  const auto parse = [&](const std::string& document) {
    const toml::parse_result result = toml::parse(document);
    if (!result || result.table().size() != 1) return false;
    out = to_value(*result.table().get("x"));
    return true;
  };
  return parse(base::text("x = ", text)) || parse(base::text("x = ", quoted(text)));
}

}  // namespace trireme::config
