#include "trireme/text/json_text.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

constexpr int deepest = 128;  // serde's limit, so HF refuses such files too

std::string position(std::string_view text, size_t at, const TextPlace& place) {
  int64_t line = place.line;
  size_t line_start = 0;
  for (size_t i = 0; i < at && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      line_start = i + 1;
    }
  }
  return base::text(place.file, ":", line, ":", at - line_start + 1);
}

void check_text(std::string_view text, const TextPlace& place) {
  const size_t invalid = first_invalid_utf8(text);
  VALIDATE(invalid == std::string_view::npos, ExitCode::bad_data, position(text, invalid, place),
           ": not UTF-8: save the file in that encoding");
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      VALIDATE(++depth <= deepest, ExitCode::bad_data, position(text, i, place),
               ": JSON nested deeper than ", deepest, ": no such file is meant to be read here");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

// The reason out of nlohmann's "[json.exception.parse_error.101] parse error at line 1, column 5:
// <reason>"
std::string reason_of(const std::exception& error) {
  const std::string what = error.what();
  size_t start = what.find("] ");
  start = start == std::string::npos ? 0 : start + 2;
  if (what.compare(start, 11, "parse error") == 0) {
    const size_t colon = what.find(": ", start);
    if (colon != std::string::npos) start = colon + 2;
  }
  return what.substr(start);
}

template <class Value, class Callback>
Value parse_with(std::string_view text, const TextPlace& place, const Callback& callback) {
  try {
    return Value::parse(text.begin(), text.end(), callback);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t at = error.byte > 0 ? error.byte - 1 : 0;
    throw UserError(ExitCode::bad_data, base::text(position(text, at, place), ": not JSON (",
                                                   reason_of(error), "): correct or remove it"));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(ExitCode::bad_data, base::text(place.file, ":", place.line, ": ",
                                                   reason_of(error), ": correct the value"));
  }
}

// Finds keys that stand twice in one object; nlohmann would keep the last one without a word.
class KeyCheck {
 public:
  explicit KeyCheck(const TextPlace& place) : place_(place) {}
  bool operator()(OrderedJson::parse_event_t event, const OrderedJson& value) {
    if (event == OrderedJson::parse_event_t::object_start) open_.emplace_back();
    if (event == OrderedJson::parse_event_t::object_end) open_.pop_back();
    if (event == OrderedJson::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      VALIDATE(open_.back().insert(key).second, ExitCode::bad_data, place_.file, ":", place_.line,
               ": the key \"", key, "\" stands twice in one object: remove one of the two");
    }
    return true;
  }

 private:
  const TextPlace& place_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Json parse_json(std::string_view text, const TextPlace& place) {
  check_text(text, place);
  return parse_with<Json>(text, place, nullptr);
}

OrderedJson parse_record(std::string_view text, const TextPlace& place) {
  check_text(text, place);
  KeyCheck keys(place);
  return parse_with<OrderedJson>(
      text, place, [&keys](int, OrderedJson::parse_event_t event, OrderedJson& value) {
        return keys(event, value);
      });
}

Json read_json_file(const std::string& file, uint64_t limit) {
  std::string text = base::read_file(file, limit);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  return parse_json(text, {file, 1});
}

std::string kind_of(const Json& value) { return value.type_name(); }
std::string kind_of(const OrderedJson& value) { return value.type_name(); }

}  // namespace trireme::text
