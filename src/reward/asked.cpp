#include "reward/asked.hpp"

#include <nlohmann/json.hpp>

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

}  // namespace

const std::string& Asked::add(const Request& request) {
  const auto [place, fresh] = entries_.emplace(
      request.id,
      Entry{
          .line = request_line(request), .where = described(request), .reward = {}, .metrics = {}});
  VALIDATE(fresh, ExitCode::internal, who_, ": two requests have one id");
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
    const auto id = plugin::id_near(line);
    VALIDATE(!answer, ExitCode::bad_data, who_,
             id && entries_.contains(*id) ? ", " + where(*id) : "",
             ": this answer is not JSON (nor are NaN and Infinity, which Python writes): ",
             plugin::excerpt(line));
    return std::nullopt;
  }
  if (!json.is_object() || (!json.contains("reward") && !json.contains("id"))) return std::nullopt;
  auto& [id, entry] = *entry_of(json, line);
  entry.reward = reward_of(json, entry, line);
  entry.metrics = metrics_.read(json, entry.where, line);
  entry.line.clear();
  return id;
}

Asked::Entries::iterator Asked::entry_of(const nlohmann::json& json, std::string_view line) {
  const auto id = plugin::id_of(json, line, who_);
  const auto found = id ? entries_.find(*id) : entries_.end();
  VALIDATE(
      found != entries_.end(), ExitCode::bad_data, who_, ": an answer for id ",
      plugin::excerpt(json["id"].is_string() ? json["id"].get<std::string>() : json["id"].dump()),
      ", which was not asked for: send the id of the request back as it came");
  VALIDATE(!found->second.reward, ExitCode::bad_data, who_, ": a second answer for id ", *id, " (",
           found->second.where, "): answer each request once");
  return found;
}

float Asked::reward_of(const nlohmann::json& json, const Entry& entry,
                       std::string_view line) const {
  const auto reward = json.find("reward");
  VALIDATE(reward != json.end() && plugin::is_finite(*reward), ExitCode::bad_data, who_, ", ",
           entry.where, ": the reward is not a finite number: ", plugin::excerpt(line));
  return reward->get<float>();
}

}  // namespace trireme::reward
