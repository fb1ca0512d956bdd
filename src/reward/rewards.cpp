#include <algorithm>
#include <cmath>

#include "trireme/base/error.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {

std::vector<std::string> source_names(const config::Options& options) {
  std::vector<std::string> names;
  for (size_t i = 0; i < options.reward.source.size(); ++i)
    names.push_back(config::source_name(options.reward.source[i], i));
  if (options.environment.wanted()) names.emplace_back(config::environment_source);
  return names;
}

namespace {

class EnvironmentSource : public Source {
 public:
  const std::string& name() const override { return name_; }
  Scores score(std::span<const Request> requests) override {
    Scores out;
    for (const Request& request : requests) out.values.push_back(request.turn_rewards);
    return out;
  }

 private:
  std::string name_{config::environment_source};
};

}  // namespace

std::unique_ptr<Source> make_environment_source() { return std::make_unique<EnvironmentSource>(); }

void Rewards::add(std::unique_ptr<Source> source, double weight) {
  sources_.push_back({std::move(source), weight});
}

bool Rewards::takes_time() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Entry& entry) { return entry.source->takes_time(); });
}

bool Rewards::has_models() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Entry& entry) { return entry.source->collective(); });
}

void Rewards::ask(std::span<const Request> requests) {
  for (const Entry& entry : sources_) entry.source->ask(requests);
}

PluginCounters& PluginCounters::operator+=(const PluginCounters& other) {
  requests += other.requests;
  retries += other.retries;
  restarts += other.restarts;
  skipped_groups += other.skipped_groups;
  wait_seconds += other.wait_seconds;
  return *this;
}

JudgeCounters& JudgeCounters::operator+=(const JudgeCounters& other) {
  votes += other.votes;
  without_score += other.without_score;
  too_long += other.too_long;
  tokens += other.tokens;
  prompt_tokens += other.prompt_tokens;
  shared_tokens += other.shared_tokens;
  seconds += other.seconds;
  return *this;
}

PluginCounters Rewards::take_counters() {
  PluginCounters all;
  for (const Entry& entry : sources_) all += entry.source->take_counters();
  return all;
}

JudgeCounters Rewards::take_judge_counters() {
  JudgeCounters all;
  for (const Entry& entry : sources_) all += entry.source->take_judge_counters();
  return all;
}

void Rewards::poll() {
  for (const Entry& entry : sources_) entry.source->poll();
}

namespace {

std::vector<float> checked(const Source& source, const Scores& scores,
                           std::span<const Request> requests) {
  VALIDATE(scores.values.size() == requests.size(), ExitCode::internal, "reward source ",
           source.name(), " gave ", scores.values.size(), " scores for ", requests.size(),
           " requests");
  for (size_t i = 0; i < requests.size(); ++i) {
    VALIDATE(std::isfinite(scores.values[i]), ExitCode::bad_data, "reward source ", source.name(),
             " gave ", scores.values[i], " for ", described(requests[i]),
             " (a reward must be a finite number): check the source");
  }
  return scores.values;
}

}  // namespace

std::optional<Rewards::LocalScores> Rewards::score_locally(
    std::span<const Request> requests, const std::function<bool(bool)>& any_stopped) {
  trace::Region region{"score"};
  LocalScores out;
  for (const Entry& entry : sources_) {
    if (entry.source->collective()) {
      out.parts.emplace_back(requests.size(), 0.0f);
      continue;
    }
    Scores answer = entry.source->score(requests);
    if (entry.source->takes_time() && any_stopped(answer.left)) return std::nullopt;
    for (size_t i = 0; i < answer.missing.size(); ++i) {
      out.missing.resize(requests.size());
      if (answer.missing[i]) out.missing[i] = 1;
    }
    out.parts.push_back(checked(*entry.source, answer, requests));
    if (!entry.source->takes_time()) continue;
    for (auto& [name, values] : answer.metrics)
      out.metrics[base::text(entry.source->name(), "/", name)] = std::move(values);
    if (!answer.judgements.empty())
      out.judgements[entry.source->name()] = std::move(answer.judgements);
  }
  return out;
}

comm::Then Rewards::score_with_models(std::span<const Request> requests, Parts& parts) {
  parts.resize(sources_.size());  // a rank without sequences has received none
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = *sources_[i].source;
    if (!source.collective()) continue;
    const Scores scores = source.score(requests);
    if (scores.left) return comm::Then::leave;
    parts[i] = checked(source, scores, requests);
  }
  return comm::Then::go_on;
}

std::vector<float> Rewards::sum(const Parts& parts) const {
  std::vector<double> total(parts.empty() ? 0 : parts.front().size(), 0.0);
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t k = 0; k < total.size(); ++k)
      total[k] += sources_[i].weight * static_cast<double>(parts[i][k]);
  }
  return {total.begin(), total.end()};
}

}  // namespace trireme::reward
