// Members of the objects of tokenizer.json, with messages that name them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::text {

[[noreturn]] inline void refuse(const std::string& where, const std::string& problem) {
  throw UserError(ExitCode::bad_data, where + ": " + problem);
}

inline const Json& member(const Json& json, const char* key, const std::string& name,
                          const std::string& where) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (found == json.end())
    refuse(where, name + "." + key + " is missing: the file is damaged or no tokenizer.json");
  return *found;
}

inline bool absent(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null();
}

inline std::string type_of(const Json& json, const std::string& name, const std::string& where) {
  const Json& type = member(json, "type", name, where);
  if (!type.is_string()) refuse(where, name + ".type is no text: the file is damaged");
  return type.get<std::string>();
}

inline bool is_true(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && *found == true;
}

}  // namespace trireme::text
