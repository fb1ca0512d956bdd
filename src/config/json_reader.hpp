// Typed access to a JSON object with messages that name the file and the key.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/base/error.hpp"

namespace trireme::config {

using Json = nlohmann::json;

class JsonReader {
 public:
  JsonReader(const Json& object, std::string_view file) : object_(object), file_(file) {}

  // Present at all; a key may be present and null.
  bool contains(const char* key) const { return object_.contains(key); }
  bool has(const char* key) const {
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }
  const Json& at(const char* key) const { return object_.at(key); }

  int64_t integer(const char* key) const { return checked_integer(key, required(key)); }
  int64_t integer(const char* key, int64_t otherwise) const {
    return has(key) ? integer(key) : otherwise;
  }
  // A size in 1 ... limit
  int64_t size(const char* key, int64_t limit) const {
    const int64_t value = integer(key);
    VALIDATE(value > 0 && value <= limit, ExitCode::bad_data, file_, ": ", key, " is ", value,
             " (must be 1 ... ", limit, ")");
    return value;
  }
  int64_t size(const char* key, int64_t limit, int64_t otherwise) const {
    return has(key) ? size(key, limit) : otherwise;
  }
  double number(const char* key, double otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = at(key);
    VALIDATE(value.is_number(), ExitCode::bad_data, file_, ": ", key, " must be a number, not ",
             value.type_name());
    return value.get<double>();
  }
  double positive(const char* key, double otherwise) const {
    const double value = number(key, otherwise);
    VALIDATE(value > 0, ExitCode::bad_data, file_, ": ", key, " is ", value, " (must be positive)");
    return value;
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = at(key);
    VALIDATE(value.is_boolean(), ExitCode::bad_data, file_, ": ", key,
             " must be true or false, not ", value.type_name());
    return value.get<bool>();
  }
  std::string string(const char* key, std::string otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = at(key);
    VALIDATE(value.is_string(), ExitCode::bad_data, file_, ": ", key, " must be a text, not ",
             value.type_name());
    return value.get<std::string>();
  }
  int64_t checked_integer(const char* key, const Json& value) const {
    VALIDATE(value.is_number_integer(), ExitCode::bad_data, file_, ": ", key,
             " must be an integer, not ", value.type_name());
    VALIDATE(!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX},
             ExitCode::bad_data, file_, ": ", key, " is too large");
    return value.get<int64_t>();
  }
  const std::string& file() const { return file_; }

 private:
  const Json& required(const char* key) const {
    VALIDATE(has(key), ExitCode::bad_data, file_, ": the key ", key,
             " is missing (the model's shape needs it)");
    return at(key);
  }

  const Json& object_;
  std::string file_;
};

}  // namespace trireme::config
