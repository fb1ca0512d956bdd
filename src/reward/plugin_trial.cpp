#include <cmath>

#include "reward/file_rows.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/reward/checks.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::reward {
namespace {

Request trial_of(const FileRows& file, size_t number) {
  const data::PromptRecord& record = (*file.set)[file.first];
  Request request = request_for(*file.set, file.first);
  request.id = request_id(0, static_cast<int64_t>(number), 0);
  request.ids.assign(record.ids.begin(), record.ids.end());
  request.prompt_len = static_cast<int64_t>(record.ids.size());
  return request;
}

std::string answers_text(const Scores& scores) {
  std::vector<std::string> parts{base::text("reward ", scores.values.front())};
  for (const auto& [name, values] : scores.metrics) {
    if (!std::isnan(values.front())) parts.push_back(base::text(name, " ", values.front()));
  }
  return base::join(parts);
}

}  // namespace

std::vector<std::string> try_plugins(const config::Options& options, Sets sets) {
  std::vector<Request> requests;
  for (const FileRows& file : files_of(sets)) requests.push_back(trial_of(file, requests.size()));
  PluginEnvironment once;
  once.retries = 0;
  std::vector<std::string> lines;
  for (size_t i = 0; i < options.reward.source.size(); ++i) {
    config::RewardSource source = options.reward.source[i];
    if (source.kind != config::RewardKind::plugin) continue;
    source.processes = 1;
    const std::string name = config::source_name(source, i);
    const base::Stopwatch watch;
    try {
      const Scores scores = make_plugin(source, name, once)->score(requests);
      lines.push_back(base::text("plugin ", name, ": an empty answer to ", requests.front().where,
                                 " gets ", answers_text(scores), " (", requests.size(),
                                 requests.size() == 1 ? " request in " : " requests in ",
                                 base::human_seconds(watch.seconds()), ")"));
    } catch (const UserError& error) {
      throw UserError(error.code(),
                      base::text(error.what(), "\n  (asked by --dry-run for an empty answer to ",
                                 requests.front().where, ", with reward.source.", i,
                                 ".timeout = ", base::human_seconds(source.timeout.seconds),
                                 "; --dry-run=files starts no plugin)"));
    }
  }
  return lines;
}

}  // namespace trireme::reward
