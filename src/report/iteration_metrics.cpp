#include "trireme/report/iteration_metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

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

// Rollout against training log-probs: one 0 where they are the same.
std::string mismatch_text(const IterationMetrics& metrics) {
  const double largest = metrics.get("mismatch_max");
  if (std::isnan(largest)) return "";
  if (largest == 0) return "  mismatch 0";
  std::array<char, 96> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "  mismatch max %.1e mean %.1e p99.9 %.1e kl %.1e",
                largest, metrics.get("mismatch_mean"), metrics.get("mismatch_p999"),
                metrics.get("mismatch_kl"));
  return buffer.data();
}

// "  judge/accuracy 0.125  judge/format 0.970": the first ones, and how many more there are.
std::string reward_metrics_text(const IterationMetrics& metrics) {
  constexpr int most = 6;
  std::string out;
  int count = 0;
  for (const auto& [name, value] : metrics.values) {
    if (!is_reward_metric(name) || std::isnan(value) || ++count > most) continue;
    out += base::text("  ", name.substr(std::string_view(reward_prefix).size()), " ",
                      base::fixed(value, 3));
  }
  return count > most ? base::text(out, "  (", count - most, " more)") : out;
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
  line.add_json("seconds", object(metrics.seconds)).add_json("memory", object(metrics.memory));
  if (!metrics.weight_sync.empty()) line.add_json("weight_sync", object(metrics.weight_sync));
  if (!metrics.generation.empty()) line.add_json("generation", object(metrics.generation));
  if (!metrics.plugins.empty()) line.add_json("plugins", object(metrics.plugins));
  if (!metrics.threads.empty()) line.add_json("threads", object(metrics.threads));
  return line.str();
}

std::string to_console(const IterationMetrics& metrics, int64_t iterations) {
  std::string out = base::text("iteration ", metrics.iteration, "/", iterations);
  const auto show = [&](const char* name, const char* label, int decimals) {
    const double value = metrics.get(name);
    if (!std::isnan(value)) out += base::text("  ", label, " ", base::fixed(value, decimals));
  };
  show("reward", "reward", 3);
  out += reward_metrics_text(metrics);
  show("loss", "loss", 4);
  show("kl", "kl", 4);
  show("policy_loss", "loss", 4);
  show("value_loss", "value", 4);
  show("clip_ratio", "clip", 3);
  show("response_length", "length", 1);
  show("grad_norm", "grad", 3);
  out += mismatch_text(metrics);
  const auto total = metrics.seconds.find("total");
  if (total != metrics.seconds.end() && total->second > 0) {
    out += base::text("  ", base::fixed(static_cast<double>(metrics.tokens) / total->second, 0),
                      " tok/s  ", base::human_seconds(total->second));
    std::string phases;
    for (const auto& [name, seconds] : metrics.seconds) {
      if (name != "total" && seconds >= 0.005)
        phases += base::text(phases.empty() ? "" : ", ", name, " ", base::fixed(seconds, 2));
    }
    if (!phases.empty()) out += base::text(" (", phases, ")");
  }
  return out;
}

}  // namespace trireme::report
