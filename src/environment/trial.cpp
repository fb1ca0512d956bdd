#include <algorithm>
#include <set>

#include "environment/tool_calls.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/environment/environments.hpp"

namespace trireme::environment {
namespace {

// Replies by episode, once `wanted` of them have come.
std::vector<Reply> replies_of(Environments& environments, size_t wanted) {
  comm::Progress progress;
  std::vector<Reply> replies;
  progress.until("answers of an environment", [&] {
    std::ranges::move(environments.poll(), std::back_inserter(replies));
    return replies.size() == wanted;
  });
  std::ranges::sort(replies, {}, &Reply::episode);
  return replies;
}

std::string observation_text(const Reply& reply) {
  if (reply.done) return "ends the episode";
  if (!reply.text.empty())
    return base::text("is answered by ", reply.text.size(), " bytes of text");
  return base::text("is answered by ", reply.messages.size(),
                    reply.messages.size() == 1 ? " message" : " messages");
}

// The first record of every file.
std::vector<Reset> resets_of(std::span<const data::PromptSet* const> sets) {
  std::vector<Reset> resets;
  for (const data::PromptSet* set : sets) {
    std::set<int32_t> files;
    for (int64_t row = 0; row < set->size(); ++row) {
      if (!files.insert((*set)[row].origin.file).second) continue;
      resets.push_back(reset_for(*set, row));
      resets.back().episode = resets.back().seed = resets.size() - 1;
    }
  }
  return resets;
}

}  // namespace

void check_environment(const config::Options& options) {
  if (options.environment.wanted()) CallReader{options.environment};
}

std::vector<std::string> try_environment(const config::Options& options,
                                         std::span<const data::PromptSet* const> sets) {
  const std::vector<Reset> resets = resets_of(sets);
  if (!options.environment.wanted() || resets.empty()) return {};
  config::Options once = options;
  once.environment.processes = 1;
  once.environment.retries = 0;
  once.environment.outage = config::PluginOutage::stop;
  once.environment.max_time = {};
  const base::Stopwatch watch;
  try {
    Environments environments(once, {}, 0);
    for (const Reset& reset : resets) environments.reset(reset);
    replies_of(environments, resets.size());
    for (const Reset& reset : resets) {
      Step empty;
      empty.episode = reset.episode;
      environments.step(empty);
    }
    const Reply first = replies_of(environments, resets.size()).front();
    return {base::text("environment: an empty turn after ", resets.front().where, " ",
                       observation_text(first), ", with reward ", first.reward, " (",
                       2 * resets.size(), " requests in ", base::human_seconds(watch.seconds()),
                       ")")};
  } catch (const UserError& error) {
    throw UserError(
        error.code(),
        base::text(error.what(), "\n  (a reset and an empty turn, played by --dry-run for ",
                   resets.front().where, ", with environment.timeout = ",
                   base::human_seconds(options.environment.timeout.seconds),
                   "; --dry-run=files starts no program)"));
  }
}

}  // namespace trireme::environment
