#include "trireme/rollout/generation_metrics.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/config/reward_sources.hpp"

namespace trireme::rollout {

void add_generation_metrics(const comm::CommView& world, const GeneratorWork* work, int64_t slots,
                            report::IterationMetrics& metrics) {
  const auto all =
      world.all_gather<GeneratorWork>(std::span(work, static_cast<size_t>(work != nullptr)));
  GeneratorWork sum, most;
  double rate = 0;
  for (const GeneratorWork& one : all) {
    most.steps = std::max(most.steps, one.steps);
    most.tokens = std::max(most.tokens, one.tokens);
    sum.tokens += one.tokens;
    sum.preemptions += one.preemptions;
    sum.shared_tokens += one.shared_tokens;
    if (one.seconds > 0) rate += static_cast<double>(one.tokens) / one.seconds;
    sum.proposed_tokens += one.proposed_tokens;
    sum.accepted_tokens += one.accepted_tokens;
    sum.dropped_tokens += one.dropped_tokens;
    sum.page_room += one.page_room;
    sum.page_room_unused += one.page_room_unused;
  }
  if (sum.tokens == 0) return;
  const auto replicas = static_cast<double>(all.size());
  const auto tokens = static_cast<double>(sum.tokens);
  metrics.generation["occupancy"] = static_cast<double>(sum.tokens - sum.accepted_tokens) /
                                    (static_cast<double>(most.steps * slots) * replicas);
  metrics.generation["busiest_replica"] = static_cast<double>(most.tokens) * replicas / tokens;
  metrics.generation["steps"] = static_cast<double>(most.steps);
  metrics.generation["tokens"] = tokens;
  metrics.generation["tokens_per_second"] = rate;
  metrics.generation["preemptions"] = static_cast<double>(sum.preemptions);
  metrics.generation["shared_tokens"] = static_cast<double>(sum.shared_tokens);
  if (sum.page_room > 0)
    metrics.generation["unused_cache"] =
        static_cast<double>(sum.page_room_unused) / static_cast<double>(sum.page_room);
  if (sum.dropped_tokens > 0)
    metrics.generation["dropped_tokens"] = static_cast<double>(sum.dropped_tokens);
  if (sum.proposed_tokens == 0) return;
  metrics.generation["proposed_tokens"] = static_cast<double>(sum.proposed_tokens);
  metrics.generation["accepted_tokens"] = static_cast<double>(sum.accepted_tokens);
}

namespace {

// All calls, and those of each name, also of tools that nobody has called.
void add_tool_metrics(const config::EnvironmentOptions& options,
                      std::vector<environment::ToolCount> counts,
                      report::IterationMetrics& metrics) {
  if (options.tool_calls == config::ToolCalls::none) return;
  counts.resize(options.tools.size() + 1);
  environment::ToolCount all;
  for (size_t i = 0; i < counts.size(); ++i) {
    all += counts[i];
    const bool named = i < options.tools.size();
    if (options.tools.empty()) continue;
    metrics.tools[named ? options.tools[i] : config::environment_other_tools] = {
        {"calls", static_cast<double>(counts[i].calls)},
        {"failed", static_cast<double>(counts[i].failed)}};
  }
  metrics.environment["calls"] = static_cast<double>(all.calls);
  metrics.environment["failed_calls"] = static_cast<double>(all.failed);
}

}  // namespace

void add_environment_metrics(const comm::CommView& world, const config::EnvironmentOptions& options,
                             const EnvironmentWork& mine, report::IterationMetrics& metrics) {
  EnvironmentWork sum;
  for (const EnvironmentWork& one : world.gather_values(mine)) {
    sum.programs += one.programs;
    sum.begun_again += one.begun_again;
    sum.rendered_differently += one.rendered_differently;
  }
  metrics.environment = {{"requests", static_cast<double>(sum.programs.requests)},
                         {"retries", static_cast<double>(sum.programs.retries)},
                         {"restarts", static_cast<double>(sum.programs.restarts)},
                         {"malformed_calls", static_cast<double>(sum.programs.malformed_calls)},
                         {"broken", static_cast<double>(sum.programs.broken)},
                         {"begun_again", static_cast<double>(sum.begun_again)},
                         {"rendered_differently", static_cast<double>(sum.rendered_differently)},
                         {"wait_seconds", sum.programs.wait_seconds}};
  add_tool_metrics(options, std::move(sum.programs.tools), metrics);
}

}  // namespace trireme::rollout
