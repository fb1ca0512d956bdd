// The common fields of all programs' answers: the number of the request, numbers, metrics.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace trireme::plugin {

// The start of a line, for messages.
std::string excerpt(std::string_view line, size_t bytes = 200);

// The number in an answer's "id", a text or a whole number. `who`: the program, for messages.
// Throws UserError(bad_data) for an answer without an id or with another type of id; nullopt: no
// request can have this number.
std::optional<uint64_t> id_of(const nlohmann::json& answer, std::string_view line,
                              const std::string& who);
// The digits after "id" in a line that cannot be read.
std::optional<uint64_t> id_near(std::string_view line);

// A number that is finite as a float.
bool is_finite(const nlohmann::json& value);

// "metrics" of answers: numbers by name; true and false count as 1 and 0, null as absent.
class MetricReader {
 public:
  // `who`: the program, for messages.
  explicit MetricReader(std::string who) : who_(std::move(who)) {}
  // Empty if the answer has none. Throws UserError(bad_data) for values that are not finite
  // numbers, for invalid names, and for more names in all answers so far than a run can log.
  std::map<std::string, float> read(const nlohmann::json& answer, const std::string& where,
                                    std::string_view line);

 private:
  void check(const std::string& name, const nlohmann::json& value, const std::string& where,
             std::string_view line);

  std::string who_;
  std::set<std::string> names_;  // of all answers so far
};

}  // namespace trireme::plugin
