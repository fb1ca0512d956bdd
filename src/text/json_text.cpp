#include "trireme/text/json_text.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "trireme/base/decimal.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/foreign_file.hpp"
#include "trireme/text/json_brackets.hpp"
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
  const size_t too_deep = find_bracket(text, [&depth](size_t, char c) {
    depth += c == '[' || c == '{' ? 1 : -1;
    return depth > deepest;
  });
  VALIDATE(too_deep == std::string_view::npos, ExitCode::bad_data, position(text, too_deep, place),
           ": JSON nested deeper than ", deepest, ": no such file is meant to be read here");
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

[[noreturn]] void refuse_json(std::string_view text, const TextPlace& place,
                              const nlohmann::json::exception& error) {
  if (const auto* parse_error = dynamic_cast<const nlohmann::json::parse_error*>(&error)) {
    const size_t at = parse_error->byte > 0 ? parse_error->byte - 1 : 0;
    throw UserError(ExitCode::bad_data, base::text(position(text, at, place), ": not JSON (",
                                                   reason_of(error), "): correct or remove it"));
  }
  throw UserError(ExitCode::bad_data, base::text(place.file, ":", place.line, ": ",
                                                 reason_of(error), ": correct the value"));
}

// Builds a record, refuses keys that stand twice in one object (nlohmann would keep the last one
// without a word), and keeps numbers whose digits a double would lose.
class RecordBuilder : public nlohmann::json_sax<OrderedJson> {
 public:
  RecordBuilder(std::string_view text, const TextPlace& place, Numbers numbers, Repeated repeated)
      : text_(text), place_(place), numbers_(numbers), repeated_(repeated) {}
  OrderedJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const std::string& digits) override {
    if (numbers_ == Numbers::as_double) return add(value);
    const OrderedJson as_double = value;
    if (base::Decimal::parse(as_double.dump()) == base::Decimal::parse(digits)) return add(value);
    return add(OrderedJson::binary({digits.begin(), digits.end()}));
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // only in formats other than JSON
  bool start_object(size_t) override { return open(OrderedJson::object()); }
  bool start_array(size_t) override { return open(OrderedJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& key) override {
    const bool fresh = open_.back().keys.insert(key).second;
    VALIDATE(fresh || repeated_ == Repeated::last, ExitCode::bad_data, place_.file, ":",
             place_.line, ": the key \"", key,
             "\" stands twice in one object: remove one of the two");
    open_.back().key = std::move(key);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    refuse_json(text_, place_, error);
  }

 private:
  struct Open {
    OrderedJson value;
    std::set<std::string> keys;
    std::string key;
  };
  bool open(OrderedJson empty) {
    open_.push_back({std::move(empty), {}, {}});
    return true;
  }
  bool close() {
    OrderedJson value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }
  bool add(OrderedJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      open_.back().value[open_.back().key] = std::move(value);
    }
    return true;
  }

  std::string_view text_;
  const TextPlace& place_;
  Numbers numbers_;
  Repeated repeated_;
  OrderedJson root_;
  std::vector<Open> open_;
};

void append(std::string& out, const OrderedJson& value) {
  if (value.is_binary()) {
    const auto& digits = value.get_binary();
    out.append(digits.begin(), digits.end());
  } else if (value.is_array()) {
    char separator = '[';
    for (const OrderedJson& element : value) {
      out += std::exchange(separator, ',');
      append(out, element);
    }
    out += separator == '[' ? "[]" : "]";
  } else if (value.is_object()) {
    char separator = '{';
    for (const auto& [key, member] : value.items()) {
      out.append(1, std::exchange(separator, ',')).append(OrderedJson(key).dump()).append(":");
      append(out, member);
    }
    out += separator == '{' ? "{}" : "}";
  } else {
    out += value.dump();
  }
}

}  // namespace

Json parse_json(std::string_view text, const TextPlace& place) {
  check_text(text, place);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) { refuse_json(text, place, error); }
}

OrderedJson parse_record(std::string_view text, const TextPlace& place, Numbers numbers,
                         Repeated repeated) {
  check_text(text, place);
  RecordBuilder builder(text, place, numbers, repeated);
  OrderedJson::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string dump(const OrderedJson& value) {
  std::string out;
  append(out, value);
  return out;
}

std::string text_or_json(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : dump(value);
}

Json read_json_file(const std::string& file, uint64_t limit) {
  std::string text = base::read_file(file, limit);
  base::refuse_foreign_file(text, file, base::Expected::json);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  return parse_json(text, {file, 1});
}

std::string kind_of(const Json& value) { return value.type_name(); }
std::string kind_of(const OrderedJson& value) {
  return value.is_binary() ? "number" : value.type_name();
}

}  // namespace trireme::text
