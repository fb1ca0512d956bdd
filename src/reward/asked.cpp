#include "reward/asked.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "trireme/base/error.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::reward {
namespace {

std::string request_line(const Request& r) {
  data::JsonObject line;
  line.add("v", 1)
      .add("id", std::to_string(r.id))
      .add("prompt", r.prompt)
      .add("response", r.response);
  if (!r.messages.empty()) line.add_json("messages", data::messages_json(r.messages));
  line.add("label", r.label);
  if (!r.extra.empty()) line.add_json("extra", r.extra);
  line.add("finish_reason", to_string(r.finish_reason)).add("iteration", r.iteration);
  return line.str() + "\n";
}

// Names of metrics go into metrics.jsonl, the log and checkpoints.
constexpr size_t most_metrics = 64;
constexpr size_t longest_name = 100;

// As a float.
bool is_finite(const nlohmann::json& value) {
  return value.is_number() && std::abs(value.get<double>()) <= std::numeric_limits<float>::max();
}

}  // namespace

std::string excerpt(std::string_view line, size_t bytes) {
  return std::string(line.substr(0, bytes)) + (line.size() > bytes ? "..." : "");
}

const std::string& Asked::add(const Request& request) {
  const auto [place, fresh] = entries_.emplace(
      request.id,
      Entry{
          .line = request_line(request), .where = described(request), .reward = {}, .metrics = {}});
  VALIDATE(fresh, ExitCode::internal, "reward source ", source_, ": two requests have one id");
  return place->second.line;
}

void Asked::give_up(uint64_t id) {
  Entry& entry = entries_.at(id);
  entry.given_up = true;
  entry.line.clear();
}

Scores Asked::take(std::span<const Request> requests) {
  Scores scores;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto found = entries_.find(requests[i].id);
    scores.values.push_back(found->second.reward.value_or(0));
    if (found->second.given_up) {
      scores.missing.resize(requests.size());
      scores.missing[i] = 1;
    }
    for (const auto& [name, value] : found->second.metrics) {
      auto& column = scores.metrics[name];
      column.resize(requests.size(), std::numeric_limits<float>::quiet_NaN());
      column[i] = value;
    }
    entries_.erase(found);
  }
  return scores;
}

std::string Asked::where(uint64_t id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? base::text("request ", id) : found->second.where;
}

std::optional<uint64_t> Asked::accept(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) {
    // Python's json writes NaN, which is no JSON; a line that tries to be an answer must not pass
    // for noise.
    const bool answer = line.starts_with('{') && line.find("\"reward\"") != std::string_view::npos;
    VALIDATE(!answer, ExitCode::bad_data, "reward plugin ", source_, place_in(line),
             ": this answer is not JSON (nor are NaN and Infinity, which Python writes): ",
             excerpt(line));
    return std::nullopt;
  }
  if (!json.is_object() || (!json.contains("reward") && !json.contains("id"))) return std::nullopt;
  auto& [id, entry] = *entry_of(json, line);
  entry.reward = reward_of(json, entry, line);
  if (json.contains("metrics")) add_metrics(json["metrics"], entry, line);
  entry.line.clear();
  return id;
}

// ", the prompt of FILE:LINE", where a line that cannot be read names a request.
std::string Asked::place_in(std::string_view line) const {
  constexpr std::string_view key = "\"id\"";
  const size_t found = line.find(key);
  if (found == std::string_view::npos) return {};
  const size_t digits = line.find_first_not_of(" \t:\"", found + key.size());
  uint64_t id = 0;
  if (digits == std::string_view::npos ||
      std::from_chars(line.data() + digits, line.data() + line.size(), id).ec != std::errc() ||
      !entries_.contains(id))
    return {};
  return ", " + where(id);
}

Asked::Entries::iterator Asked::entry_of(const nlohmann::json& json, std::string_view line) {
  const auto id = json.find("id");
  VALIDATE(id != json.end(), ExitCode::bad_data, "reward plugin ", source_,
           ": an answer without an id (which request is it for?): ", excerpt(line));
  VALIDATE(id->is_string() || id->is_number_integer(), ExitCode::bad_data, "reward plugin ",
           source_, ": the id of an answer is neither a text nor a whole number: ", excerpt(line));
  const std::string text = id->is_string() ? id->get<std::string>() : id->dump();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto found = error == std::errc() && end == text.data() + text.size()
                         ? entries_.find(number)
                         : entries_.end();
  VALIDATE(found != entries_.end(), ExitCode::bad_data, "reward plugin ", source_,
           ": an answer for id ", excerpt(text),
           ", which was not asked for: send the id of the request back as it came");
  VALIDATE(!found->second.reward, ExitCode::bad_data, "reward plugin ", source_,
           ": a second answer for id ", text, " (", found->second.where,
           "): answer each request once");
  return found;
}

float Asked::reward_of(const nlohmann::json& json, const Entry& entry,
                       std::string_view line) const {
  const auto reward = json.find("reward");
  VALIDATE(reward != json.end() && is_finite(*reward), ExitCode::bad_data, "reward plugin ",
           source_, ", ", entry.where, ": the reward is not a finite number: ", excerpt(line));
  return reward->get<float>();
}

void Asked::add_metrics(const nlohmann::json& metrics, Entry& entry, std::string_view line) {
  if (metrics.is_null()) return;
  VALIDATE(metrics.is_object(), ExitCode::bad_data, "reward plugin ", source_, ", ", entry.where,
           ": \"metrics\" is not an object (of numbers by name): ", excerpt(line));
  for (const auto& [name, value] : metrics.items()) {
    if (value.is_null()) continue;  // this answer has none
    check_metric(name, value, entry, line);
    entry.metrics[name] =
        value.is_boolean() ? static_cast<float>(value.get<bool>()) : value.get<float>();
  }
}

void Asked::check_metric(const std::string& name, const nlohmann::json& value, const Entry& entry,
                         std::string_view line) {
  VALIDATE(value.is_boolean() || is_finite(value), ExitCode::bad_data, "reward plugin ", source_,
           ", ", entry.where, ": the metric \"", excerpt(name), "\" is not a finite number",
           value.is_structured() ? " (metrics are not nested)" : "", ": ", excerpt(line));
  if (!metric_names_.insert(name).second) return;
  const auto unfit = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  VALIDATE(
      !name.empty() && name.size() <= longest_name && std::ranges::none_of(name, unfit),
      ExitCode::bad_data, "reward plugin ", source_, ", ", entry.where, ": the metric name ",
      nlohmann::json(excerpt(name)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
      " is not a possible one: use 1 to ", longest_name, " printable bytes");
  VALIDATE(metric_names_.size() <= most_metrics, ExitCode::bad_data, "reward plugin ", source_,
           ", ", entry.where, ": \"", name, "\" would be metric number ", metric_names_.size(),
           " (each has a mean by iteration, ", most_metrics,
           " at most): use the same few names in all answers");
}

}  // namespace trireme::reward
