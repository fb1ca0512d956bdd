#include "trireme/plugin/answers.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "trireme/base/error.hpp"

namespace trireme::plugin {
namespace {

// Names of metrics go into metrics.jsonl, the log and checkpoints.
constexpr size_t most_metrics = 64;
constexpr size_t longest_name = 100;

}  // namespace

std::string excerpt(std::string_view line, size_t bytes) {
  return std::string(line.substr(0, bytes)) + (line.size() > bytes ? "..." : "");
}

std::optional<uint64_t> id_of(const nlohmann::json& answer, std::string_view line,
                              const std::string& who) {
  const auto id = answer.find("id");
  VALIDATE(id != answer.end(), ExitCode::bad_data, who,
           ": an answer without an id (which request is it for?): ", excerpt(line));
  VALIDATE(id->is_string() || id->is_number_integer(), ExitCode::bad_data, who,
           ": the id of an answer is neither a text nor a whole number: ", excerpt(line));
  const std::string text = id->is_string() ? id->get<std::string>() : id->dump();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<uint64_t> id_near(std::string_view line) {
  constexpr std::string_view key = "\"id\"";
  const size_t found = line.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  const size_t digits = line.find_first_not_of(" \t:\"", found + key.size());
  if (digits == std::string_view::npos) return std::nullopt;
  uint64_t id = 0;
  const auto read = std::from_chars(line.data() + digits, line.data() + line.size(), id);
  return read.ec == std::errc() ? std::optional(id) : std::nullopt;
}

bool is_finite(const nlohmann::json& value) {
  return value.is_number() && std::abs(value.get<double>()) <= std::numeric_limits<float>::max();
}

std::map<std::string, float> MetricReader::read(const nlohmann::json& answer,
                                                const std::string& where, std::string_view line) {
  std::map<std::string, float> out;
  const auto metrics = answer.find("metrics");
  if (metrics == answer.end() || metrics->is_null()) return out;
  VALIDATE(metrics->is_object(), ExitCode::bad_data, who_, ", ", where,
           ": \"metrics\" is not an object (of numbers by name): ", excerpt(line));
  for (const auto& [name, value] : metrics->items()) {
    if (value.is_null()) continue;  // this answer has none
    check(name, value, where, line);
    out[name] = value.is_boolean() ? static_cast<float>(value.get<bool>()) : value.get<float>();
  }
  return out;
}

void MetricReader::check(const std::string& name, const nlohmann::json& value,
                         const std::string& where, std::string_view line) {
  VALIDATE(value.is_boolean() || is_finite(value), ExitCode::bad_data, who_, ", ", where,
           ": the metric \"", excerpt(name), "\" is not a finite number",
           value.is_structured() ? " (metrics are not nested)" : "", ": ", excerpt(line));
  if (!names_.insert(name).second) return;
  const auto unfit = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  VALIDATE(
      !name.empty() && name.size() <= longest_name && std::ranges::none_of(name, unfit),
      ExitCode::bad_data, who_, ", ", where, ": the metric name ",
      nlohmann::json(excerpt(name)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
      " is not a possible one: use 1 to ", longest_name, " printable bytes");
  VALIDATE(names_.size() <= most_metrics, ExitCode::bad_data, who_, ", ", where, ": \"", name,
           "\" would be metric number ", names_.size(), " (each has a mean by iteration, ",
           most_metrics, " at most): use the same few names in all answers");
}

}  // namespace trireme::plugin
