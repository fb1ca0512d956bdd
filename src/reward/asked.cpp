#include "reward/asked.hpp"

#include <nlohmann/json.hpp>

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

// As a float.
bool is_finite(const nlohmann::json& value) {
  return value.is_number() && std::abs(value.get<double>()) <= std::numeric_limits<float>::max();
}

}  // namespace

std::string excerpt(std::string_view line) {
  return std::string(line.substr(0, 200)) + (line.size() > 200 ? "..." : "");
}

const std::string& Asked::add(const Request& request) {
  const auto [place, fresh] = entries_.emplace(
      request.id, Entry{.line = request_line(request), .reward = {}, .metrics = {}});
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

std::optional<uint64_t> Asked::accept(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) {
    // Python's json writes NaN, which is no JSON; a line that tries to be an answer must not pass
    // for noise.
    const bool answer = line.starts_with('{') && line.find("\"reward\"") != std::string_view::npos;
    VALIDATE(!answer, ExitCode::bad_data, "reward plugin ", source_,
             ": this answer is no JSON (NaN and Infinity are none either): ", excerpt(line));
    return std::nullopt;
  }
  if (!json.is_object() || (!json.contains("reward") && !json.contains("id"))) return std::nullopt;
  auto& [id, entry] = *entry_of(json, line);
  entry.reward = reward_of(json, line);
  if (json.contains("metrics")) add_metrics(json["metrics"], entry, line);
  entry.line.clear();
  return id;
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
           ": an answer for id ", text,
           ", which was not asked for: send the id of the request back as it came");
  VALIDATE(!found->second.reward, ExitCode::bad_data, "reward plugin ", source_,
           ": a second answer for id ", text);
  return found;
}

float Asked::reward_of(const nlohmann::json& json, std::string_view line) const {
  const auto reward = json.find("reward");
  VALIDATE(reward != json.end() && is_finite(*reward), ExitCode::bad_data, "reward plugin ",
           source_, ": the reward is no finite number: ", excerpt(line));
  return reward->get<float>();
}

void Asked::add_metrics(const nlohmann::json& metrics, Entry& entry, std::string_view line) const {
  VALIDATE(metrics.is_object(), ExitCode::bad_data, "reward plugin ", source_,
           ": metrics must be an object of numbers: ", excerpt(line));
  for (const auto& [key, value] : metrics.items()) {
    VALIDATE(is_finite(value), ExitCode::bad_data, "reward plugin ", source_, ": the metric \"",
             key, "\" is no finite number: ", excerpt(line));
    entry.metrics[key] = value.get<float>();
  }
}

}  // namespace trireme::reward
