#include <cmath>

#include "trireme/base/error.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {

std::string source_name(const config::RewardSource& options, size_t index) {
  if (!options.name.empty()) return options.name;
  return std::string(config::to_string(options.kind)) + std::to_string(index);
}

std::vector<std::string> source_names(const config::Options& options) {
  std::vector<std::string> names;
  for (size_t i = 0; i < options.reward.source.size(); ++i) names.push_back(source_name(options.reward.source[i], i));
  return names;
}

void Rewards::add(std::unique_ptr<Source> source, double weight) { sources_.push_back({std::move(source), weight}); }

namespace {

std::optional<Scores> unless_stopped(Source& source, std::span<const Request> requests) {
  try {
    return source.score(requests);
  } catch (const Stopped&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<Rewards::Result> Rewards::score(std::span<const Request> requests, const std::function<bool(bool)>& any_stopped) {
  trace::Region region{"score"};
  Result out;
  std::vector<double> total(requests.size(), 0.0);
  for (const Entry& entry : sources_) {
    const std::string& name = entry.source->name();
    std::optional<Scores> answer = unless_stopped(*entry.source, requests);
    if (entry.source->may_stop() && any_stopped(!answer)) return std::nullopt;
    Scores& scores = answer.value();
    VALIDATE(scores.values.size() == requests.size(), ExitCode::internal, "reward source ", name, " gave ", scores.values.size(),
             " scores for ", requests.size(), " requests");
    for (size_t i = 0; i < requests.size(); ++i) {
      VALIDATE(std::isfinite(scores.values[i]), ExitCode::bad_data, "reward source ", name, " gave ", scores.values[i],
               " for request ", requests[i].id, " (a reward must be a finite number): check the source");
      total[i] += entry.weight * static_cast<double>(scores.values[i]);
    }
    for (auto& [metric, values] : scores.metrics) out.metrics[name + "/" + metric] = std::move(values);
    out.names.push_back(name);
    out.parts.push_back(std::move(scores.values));
  }
  out.reward.assign(total.begin(), total.end());
  return out;
}

}  // namespace trireme::reward
