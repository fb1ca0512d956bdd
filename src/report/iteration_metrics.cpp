#include "trireme/report/iteration_metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <numeric>
#include <string_view>

#include "trireme/base/text.hpp"
#include "trireme/data/jsonl.hpp"

namespace trireme::report {
namespace {

template <class Map>
std::string object(const Map& map) {
  data::JsonObject out;
  for (const auto& [name, value] : map) out.add(name, value);
  return out.str();
}

std::string environment_of(const IterationMetrics& metrics) {
  data::JsonObject out, tools;
  for (const auto& [name, value] : metrics.environment) out.add(name, value);
  for (const auto& [name, numbers] : metrics.tools) tools.add_json(name, object(numbers));
  if (!metrics.tools.empty()) out.add_json("tools", tools.str());
  return out.str();
}

// A piece of the line: pieces of small weight are omitted first.
struct Piece {
  int weight;
  std::string text;
};

// Rollout against training log-probs: one 0 where they are the same.
void add_mismatch(const IterationMetrics& metrics, std::vector<Piece>& pieces) {
  const double largest = metrics.get("mismatch_max");
  if (std::isnan(largest)) return;
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "mismatch max %.1e mean %.1e", largest,
                metrics.get("mismatch_mean"));
  pieces.push_back({2, largest == 0 ? "mismatch 0" : buffer.data()});
}

// "judge/accuracy 0.125": metrics of reward sources besides rewards.
void add_reward_metrics(const IterationMetrics& metrics, std::vector<Piece>& pieces) {
  for (const auto& [name, value] : metrics.values) {
    if (is_reward_metric(name) && !std::isnan(value))
      pieces.push_back({8, base::text(name.substr(std::string_view(reward_prefix).size()), " ",
                                      base::fixed(value, 3))});
  }
}

// Adds the metrics of the last evaluation that training does not have under the same name.
void add_evaluation(const IterationMetrics& metrics, std::vector<Piece>& pieces) {
  constexpr std::array<std::string_view, 3> important{"eval_reward", "eval_loss", "eval_accuracy"};
  for (const auto& [name, value] : metrics.values) {
    if (!name.starts_with("eval_") || std::isnan(value)) continue;
    const bool first = std::ranges::find(important, name) != important.end();
    const bool pass = name.starts_with("eval_pass");
    pieces.push_back({first ? 10 : pass ? 8 : 0, base::text(name, " ", base::fixed(value, 3))});
  }
}

void add_times(const IterationMetrics& metrics, double seconds_left, std::vector<Piece>& pieces) {
  const auto total = metrics.seconds.find("total");
  if (total == metrics.seconds.end() || total->second <= 0) return;
  pieces.push_back(
      {5,
       base::text(base::fixed(static_cast<double>(metrics.tokens) / total->second, 0), " tok/s")});
  pieces.push_back({9, base::human_seconds(total->second)});
  if (seconds_left > 0) pieces.push_back({10, base::human_seconds(seconds_left) + " left"});
  std::string phases;
  for (const auto& [name, seconds] : metrics.seconds) {
    if (name != "total" && seconds >= 0.005)
      phases += base::text(phases.empty() ? "" : ", ", name, " ", base::fixed(seconds, 2));
  }
  if (!phases.empty()) pieces.push_back({1, base::text("(", phases, ")")});
}

}  // namespace

bool is_reward_metric(std::string_view name) {
  return name.starts_with(reward_prefix) && name.find('/') != std::string_view::npos;
}

void IterationMetrics::set(const std::string& name, double value) {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == values.end()) {
    values.emplace_back(name, value);
  } else {
    found->second = value;
  }
}

double IterationMetrics::get(const std::string& name) const {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  return found == values.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::string to_json(const IterationMetrics& metrics) {
  data::JsonObject line;
  line.add("iteration", metrics.iteration);
  for (const auto& [name, value] : metrics.values) line.add(name, value);
  line.add("tokens", metrics.tokens).add("version", metrics.version);
  if (metrics.time > 0) line.add("time", metrics.time);
  if (metrics.iterations > 0) line.add("iterations", metrics.iterations);
  if (metrics.epoch > 0) line.add("epoch", metrics.epoch);
  line.add_json("seconds", object(metrics.seconds)).add_json("memory", object(metrics.memory));
  if (!metrics.busy.empty()) line.add_json("busy", object(metrics.busy));
  if (!metrics.weight_sync.empty()) line.add_json("weight_sync", object(metrics.weight_sync));
  if (!metrics.generation.empty()) line.add_json("generation", object(metrics.generation));
  if (!metrics.plugins.empty()) line.add_json("plugins", object(metrics.plugins));
  if (!metrics.judges.empty()) line.add_json("judges", object(metrics.judges));
  if (!metrics.environment.empty()) line.add_json("environment", environment_of(metrics));
  if (!metrics.threads.empty()) line.add_json("threads", object(metrics.threads));
  return line.str();
}

std::string to_console(const IterationMetrics& metrics, double seconds_left, int columns) {
  std::vector<Piece> pieces{
      {11, base::text("iteration ", metrics.iteration,
                      metrics.iterations > 0 ? base::text("/", metrics.iterations) : "")}};
  const auto show = [&](int weight, const char* name, const char* label, int decimals) {
    const double value = metrics.get(name);
    if (!std::isnan(value))
      pieces.push_back({weight, base::text(label, " ", base::fixed(value, decimals))});
  };
  show(10, "reward", "reward", 3);
  add_reward_metrics(metrics, pieces);
  show(10, "loss", "loss", 4);
  show(9, "accuracy", "accuracy", 3);
  show(8, "margin", "margin", 3);
  add_evaluation(metrics, pieces);
  show(8, "kl", "kl", 4);
  show(4, "policy_loss", "loss", 4);
  show(3, "value_loss", "value", 4);
  show(4, "clip_ratio", "clip", 3);
  show(6, "response_length", "length", 1);
  show(3, "grad_norm", "grad", 3);
  add_mismatch(metrics, pieces);
  add_times(metrics, seconds_left, pieces);
  // The heaviest first, each where it fits; in the line they stay in their order.
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return pieces[i].weight; });
  std::vector<bool> fits(pieces.size(), false);
  size_t length = 0;
  for (const size_t i : order) {
    const size_t more = pieces[i].text.size() + 2;
    if (i != 0 && length + more > static_cast<size_t>(columns) + 2) continue;
    fits[i] = true;
    length += more;
  }
  std::vector<std::string> shown;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (fits[i]) shown.push_back(pieces[i].text);
  return base::join(shown, "  ");
}

}  // namespace trireme::report
