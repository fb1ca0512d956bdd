#include "trireme/report/run_history.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <system_error>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/report/iteration_metrics.hpp"

namespace trireme::report {
namespace {

constexpr size_t most_problems = 100;
constexpr size_t newest_iterations = 10;  // for how long one takes

// "section.key" -> value, of texts that config::dump_deck wrote.
std::vector<std::pair<std::string, std::string>> entries_of(const std::string& deck) {
  std::vector<std::pair<std::string, std::string>> entries;
  std::string section;
  std::map<std::string, int> elements;  // of lists of tables
  size_t begin = 0;
  while (begin < deck.size()) {
    const size_t end = std::min(deck.find('\n', begin), deck.size());
    const std::string line = deck.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("[[")) {
      const std::string name = line.substr(2, line.find("]]") - 2);
      section = base::text(name, ".", elements[name]++);
    } else if (line.starts_with("[")) {
      section = line.substr(1, line.find(']') - 1);
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos) {
      entries.emplace_back(base::text(section, ".", line.substr(0, equals)),
                           line.substr(equals + 3));
    }
  }
  return entries;
}

double number(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// N of step-NNNNNN, -1: another name.
int64_t step_of(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  int64_t step = -1;
  if (!name.starts_with(prefix)) return -1;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, step);
  return error == std::errc() && rest == end ? step : -1;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> deck_differences(const std::string& deck,
                                                                  const std::string& defaults) {
  const auto known = entries_of(defaults);
  const std::set<std::pair<std::string, std::string>> same(known.begin(), known.end());
  auto entries = entries_of(deck);
  std::erase_if(entries, [&](const auto& entry) { return same.contains(entry); });
  return entries;
}

RunHistory::RunHistory(std::filesystem::path folder)
    : folder_(std::move(folder)),
      metrics_(folder_ / "metrics.jsonl"),
      sample_lines_(folder_ / "samples.jsonl"),
      log_(folder_ / "log.txt") {}

void RunHistory::update() {
  record_ = read_run_record(folder_);
  metrics_.read([this](std::string_view line) {
    if (const auto parsed = parse_metric_line(line)) take(*parsed);
  });
  sample_lines_.read([this](std::string_view line) { samples_.add(line); });
  log_.read([this](std::string_view line) { take_log(line); });
  read_summary();
  deck_ = deck_differences(base::read_if_there(folder_ / "deck.toml"),
                           config::dump_deck(config::Options{}));
  look_for_checkpoints();
}

std::string RunHistory::name() const {
  if (!record_.name.empty()) return record_.name;
  const auto path = std::filesystem::absolute(folder_).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

const Series& RunHistory::series(const std::string& name) const {
  static const Series none;
  const auto found = series_.find(name);
  return found == series_.end() ? none : found->second;
}

std::vector<std::string> RunHistory::reward_parts() const {
  constexpr std::array own{"reward_std", "reward_min", "reward_max", "reward_mean"};
  std::vector<std::string> parts;
  std::ranges::copy_if(names_, std::back_inserter(parts), [&](const std::string& name) {
    return name.starts_with(reward_prefix) && std::ranges::find(own, name) == own.end();
  });
  return parts;
}

int64_t RunHistory::iterations() const { return std::max(record_.iterations, int64_t{0}); }

double RunHistory::seconds_per_iteration() const {
  if (newest_seconds_.empty()) return 0;
  return std::accumulate(newest_seconds_.begin(), newest_seconds_.end(), 0.0) /
         static_cast<double>(newest_seconds_.size());
}

void RunHistory::take(const MetricLine& line) {
  // A line of an earlier branch: the run went back to a checkpoint while somebody read.
  if (line.iteration <= last_.iteration) return;
  last_ = line;
  const double seconds = line.get("seconds.total");
  if (seconds > 0) {
    last_.values.emplace_back("tokens_per_second", line.get("tokens") / seconds);
    newest_seconds_.push_back(seconds);
    if (newest_seconds_.size() > newest_iterations) newest_seconds_.erase(newest_seconds_.begin());
  }
  for (const auto& [name, value] : last_.values) {
    const auto [place, fresh] = series_.try_emplace(name);
    if (fresh) names_.push_back(name);
    place->second.add(line.iteration, value);
  }
}

// "[2026-11-27 01:11:36.105] warning: text"
void RunHistory::take_log(std::string_view line) {
  const size_t close = line.find("] ");
  if (!line.starts_with('[') || close == std::string_view::npos) return;
  const std::string_view text = line.substr(close + 2);
  for (const std::string_view word : {"warning: ", "error: "}) {
    if (!text.starts_with(word)) continue;
    Problem problem{.time = std::string(line.substr(1, std::min<size_t>(close - 1, 19))),
                    .error = word.starts_with('e'),
                    .text = std::string(text.substr(word.size()))};
    const auto known = std::ranges::find(problems_, problem.text, &Problem::text);
    if (known != problems_.end()) {
      problem.times = known->times + 1;
      problems_.erase(known);
    }
    problems_.push_back(std::move(problem));
    if (problems_.size() > most_problems) problems_.erase(problems_.begin());
  }
}

void RunHistory::read_summary() {
  roles_.clear();
  const auto json =
      nlohmann::json::parse(base::read_if_there(folder_ / "summary.json"), nullptr, false);
  if (!json.is_object() || !json.contains("roles") || !json["roles"].is_array()) return;
  for (const auto& role : json["roles"]) {
    if (!role.is_object()) continue;
    const auto name = role.find("role");
    roles_.push_back(
        {.role = name != role.end() && name->is_string() ? name->get<std::string>() : "",
         .ranks = static_cast<int64_t>(number(role, "ranks")),
         .seconds = number(role, "seconds"),
         .communication = number(role, "communication"),
         .wait = number(role, "wait"),
         .io = number(role, "io"),
         .host_peak = number(role, "host_peak"),
         .device_peak = number(role, "device_peak")});
  }
}

std::filesystem::path RunHistory::checkpoints() const {
  const auto key =
      std::ranges::find(deck_, "ckpt.path", &std::pair<std::string, std::string>::first);
  if (key == deck_.end() || key->second.size() <= 2) return folder_ / "ckpt";
  const std::filesystem::path path = key->second.substr(1, key->second.size() - 2);  // unquoted
  const auto& starts = record_.starts;
  return starts.empty() ? path : std::filesystem::path(starts.back().folder) / path;
}

void RunHistory::look_for_checkpoints() {
  newest_checkpoint_ = -1;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints(), error))
    newest_checkpoint_ = std::max(newest_checkpoint_, step_of(entry.path().filename().string()));
}

RunState state_of(const RunHistory& run, bool alive) {
  if (alive) return {Standing::running, "running"};
  const auto& starts = run.record().starts;
  if (starts.empty()) return {Standing::unknown, "not running"};
  const RunStart& start = starts.back();
  const std::string code = base::text(" (exit code ", start.exit_code, ")");
  if (start.ended == 0)
    return {Standing::ended, "ended without a word: killed, or crashed; see its last output"};
  if (start.how == "done") return {Standing::done, "done" + (start.exit_code == 0 ? "" : code)};
  if (start.how == "stopped")
    return {Standing::stopped, "stopped" + code + ": the same command continues"};
  return {Standing::failed, "ended with an error"};
}

}  // namespace trireme::report
