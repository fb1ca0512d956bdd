#include "reward/asked.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::reward {
namespace {

// `of_group`: its answers follow as a list.
data::JsonObject opened_line(const Request& r, uint64_t id, bool of_group) {
  data::JsonObject line;
  line.add("v", 1).add("id", std::to_string(id)).add("prompt", r.prompt);
  if (!of_group) line.add("response", r.response);
  if (!r.messages.empty()) line.add_json("messages", data::messages_json(r.messages));
  line.add("label", r.label);
  if (!r.extra.empty()) line.add_json("extra", r.extra);
  if (!of_group) line.add("finish_reason", to_string(r.finish_reason));
  line.add("iteration", r.iteration);
  return line;
}

std::string group_line(std::span<const Request> group, uint64_t id) {
  std::vector<std::string> answers;
  for (const Request& r : group) {
    data::JsonObject answer;
    answer.add("response", r.response).add("finish_reason", to_string(r.finish_reason));
    answers.push_back(answer.str());
  }
  data::JsonObject line = opened_line(group.front(), id, true);
  return line.add_json("group", "[" + base::join(answers) + "]").str() + "\n";
}

}  // namespace

uint64_t Asked::line_of(uint64_t request) const {
  return whole_groups_ ? group_of(request) << 20 : request;
}

bool Asked::has(const Request& request) const {
  const auto entry = entries_.find(line_of(request.id));
  return entry != entries_.end() &&
         std::ranges::find(entry->second.members, request.id) != entry->second.members.end();
}

const std::string& Asked::add(std::span<const Request> requests) {
  const Request& first = requests.front();
  const uint64_t id = line_of(first.id);
  Entry entry{
      .line = whole_groups_ ? group_line(requests, id) : opened_line(first, id, false).str() + "\n",
      .where = described(first)};
  for (const Request& request : requests) entry.members.push_back(request.id);
  const auto [place, fresh] = entries_.emplace(id, std::move(entry));
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
    const auto found = entries_.find(line_of(requests[i].id));
    Entry& entry = found->second;
    const auto member = static_cast<size_t>(std::ranges::find(entry.members, requests[i].id) -
                                            entry.members.begin());
    const bool answered = !entry.rewards.empty();
    scores.values.push_back(answered ? entry.rewards[member] : 0);
    if (entry.given_up) {
      scores.missing.resize(requests.size());
      scores.missing[i] = 1;
    }
    if (answered) {
      for (const auto& [name, value] : entry.metrics[member]) {
        auto& column = scores.metrics[name];
        column.resize(requests.size(), std::numeric_limits<float>::quiet_NaN());
        column[i] = value;
      }
    }
    if (++entry.taken == entry.members.size()) entries_.erase(found);
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
    const bool answer = line.starts_with('{') && line.find(answer_mark()) != std::string_view::npos;
    const auto id = plugin::id_near(line);
    VALIDATE(!answer, ExitCode::bad_data, who_,
             id && entries_.contains(*id) ? ", " + where(*id) : "",
             ": this answer is not JSON (nor are NaN and Infinity, which Python writes): ",
             plugin::excerpt(line));
    return std::nullopt;
  }
  const char* const rewards = whole_groups_ ? "rewards" : "reward";
  if (!json.is_object() || (!json.contains(rewards) && !json.contains("id"))) return std::nullopt;
  auto& [id, entry] = *entry_of(json, line);
  whole_groups_ ? read_group(json, entry, line) : read_one(json, entry, line);
  entry.line.clear();
  return id;
}

void Asked::read_one(const nlohmann::json& answer, Entry& entry, std::string_view line) {
  const auto reward = answer.find("reward");
  const float value =
      checked_reward(reward == answer.end() ? nlohmann::json() : *reward, entry, line);
  entry.metrics = {metrics_.read(answer, entry.where, line)};
  entry.rewards = {value};
}

void Asked::read_group(const nlohmann::json& answer, Entry& entry, std::string_view line) {
  const auto list = answer.find("rewards");
  VALIDATE(list != answer.end() && list->is_array(), ExitCode::bad_data, who_, ", ", entry.where,
           ": \"rewards\" is not a list (of a reward for each answer of the group): ",
           plugin::excerpt(line));
  VALIDATE(list->size() == entry.members.size(), ExitCode::bad_data, who_, ", ", entry.where,
           ": \"rewards\" has ", list->size(), " numbers for the ", entry.members.size(),
           " answers of the group: give one each, in their order: ", plugin::excerpt(line));
  std::vector<float> rewards;
  for (const auto& reward : *list) rewards.push_back(checked_reward(reward, entry, line));
  std::vector<std::map<std::string, float>> metrics(rewards.size());
  if (const auto of_each = answer.find("metrics"); of_each != answer.end()) {
    VALIDATE(of_each->is_array() && of_each->size() == rewards.size(), ExitCode::bad_data, who_,
             ", ", entry.where,
             ": \"metrics\" is not a list of an object for each answer of the group: ",
             plugin::excerpt(line));
    for (size_t i = 0; i < rewards.size(); ++i)
      metrics[i] = metrics_.read({{"metrics", (*of_each)[i]}}, entry.where, line);
  }
  entry.metrics = std::move(metrics);
  entry.rewards = std::move(rewards);
}

Asked::Entries::iterator Asked::entry_of(const nlohmann::json& json, std::string_view line) {
  const auto id = plugin::id_of(json, line, who_);
  const auto found = id ? entries_.find(*id) : entries_.end();
  VALIDATE(
      found != entries_.end(), ExitCode::bad_data, who_, ": an answer for id ",
      plugin::excerpt(json["id"].is_string() ? json["id"].get<std::string>() : json["id"].dump()),
      ", which was not asked for: send the id of the request back as it came");
  VALIDATE(found->second.rewards.empty(), ExitCode::bad_data, who_, ": a second answer for id ",
           *id, " (", found->second.where, "): answer each request once");
  return found;
}

float Asked::checked_reward(const nlohmann::json& reward, const Entry& entry,
                            std::string_view line) const {
  VALIDATE(plugin::is_finite(reward), ExitCode::bad_data, who_, ", ", entry.where,
           ": the reward is not a finite number: ", plugin::excerpt(line));
  return reward.get<float>();
}

}  // namespace trireme::reward
