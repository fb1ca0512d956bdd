#include "trireme/config/changes.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "config/key.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

constexpr std::string_view absent = "(none)";

// Sections and keys that may change between two starts: results stay the same, or the same but for
// rounding.
constexpr std::array conduct{"run.",
                             "ckpt.",
                             "eval.",
                             "trace.",
                             "report.",
                             "plan.",
                             "fault.",
                             "ranks.",
                             "generate.",
                             "weightsync.",
                             "reward.retries",
                             "reward.outage",
                             "environment.processes",
                             "environment.timeout",
                             "environment.retries",
                             "environment.outage",
                             "rollout.micro_batch_tokens",
                             "rollout.save_samples",
                             "rollout.queue_messages",
                             "rollout.queue_bytes",
                             "train.deterministic",
                             "train.micro_batch_tokens",
                             "train.optimizer_offload",
                             "train.recompute",
                             "train.keep_memory",
                             "train.logits_memory",
                             "train.shard_group",
                             "train.node_weights",
                             "train.reduce_once"};
constexpr std::array conduct_of_source{"name", "timeout", "processes", "batch_tokens", "max_batch"};

KeyKind kind_of(std::string_view key) {
  if (key == "run.seed" || key == "generate.weights") return KeyKind::meaning;
  const bool found = std::any_of(conduct.begin(), conduct.end(), [&](std::string_view part) {
    return part.ends_with('.') ? key.starts_with(part) : key == part;
  });
  return found ? KeyKind::conduct : KeyKind::meaning;
}

void compare_sources(const Options& was, const Options& is, std::vector<ChangedKey>& changes) {
  const auto& old_ones = was.reward.source;
  const auto& new_ones = is.reward.source;
  for (size_t i = 0; i < std::max(old_ones.size(), new_ones.size()); ++i) {
    const std::string name = base::text(source_prefix, i);
    if (i >= old_ones.size() || i >= new_ones.size()) {
      const auto& only = i < old_ones.size() ? old_ones[i] : new_ones[i];
      const std::string kind = source_keys().find("kind")->dump(only);
      changes.push_back({name, i < old_ones.size() ? kind : std::string(absent),
                         i < new_ones.size() ? kind : std::string(absent)});
      continue;
    }
    for (const auto& key : source_keys()) {
      const std::string before = key.dump(old_ones[i]);
      const std::string now = key.dump(new_ones[i]);
      const bool harmless = std::find(conduct_of_source.begin(), conduct_of_source.end(),
                                      key.name()) != conduct_of_source.end();
      if (before != now)
        changes.push_back(
            {name + "." + key.name(), before, now, harmless ? KeyKind::conduct : KeyKind::meaning});
    }
  }
}

}  // namespace

std::vector<ChangedKey> changed_keys(const Options& was, const Options& is) {
  std::vector<ChangedKey> changes;
  std::string_view section;
  for (const auto& key : option_keys()) {
    if (section == "reward" && section_of(key.name()) != section) compare_sources(was, is, changes);
    section = section_of(key.name());
    const std::string before = key.dump(was);
    const std::string now = key.dump(is);
    if (before == now) continue;
    // A resumed run keeps its compute type where the deck leaves the choice to the program.
    const bool keeps = key.name() == "model.dtype" && is.model.dtype == ComputeType::automatic;
    changes.push_back({key.name(), before, now, keeps ? KeyKind::conduct : kind_of(key.name())});
  }
  return changes;
}

std::string describe(const std::vector<ChangedKey>& changes, KeyKind kind) {
  std::vector<std::string> lines;
  for (const ChangedKey& change : changes) {
    if (change.kind == kind)
      lines.push_back(base::text(change.key, ": ", change.was, " -> ", change.is));
  }
  return base::join(lines, "\n");
}

}  // namespace trireme::config
