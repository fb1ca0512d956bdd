#include "trireme/rollout/stored_batches.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::rollout {

std::vector<StoredBatch> stored_batches(const Samples& stored,
                                        const std::function<uint64_t(uint64_t id)>& first_of) {
  std::map<uint64_t, StoredBatch> batches;
  for (int64_t i = 0; i < stored.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    StoredBatch& one = batches[first_of(stored.id[s])];
    ++one.sequences;
    one.n = std::max(one.n, sample_of(stored.id[s]) + 1);
    one.groups.push_back(group_of(stored.id[s]));
    if (stored.finish_reason[s] == FinishReason::unfinished) one.unfinished.append(stored, i);
  }
  std::vector<StoredBatch> out;
  for (auto& [first, one] : batches) {
    one.first = first;
    std::ranges::sort(one.groups);
    one.groups.erase(std::unique(one.groups.begin(), one.groups.end()), one.groups.end());
    out.push_back(std::move(one));
  }
  return out;
}

UnfinishedGroups unfinished_groups(const Samples& unfinished) {
  std::map<uint64_t, std::vector<int64_t>> groups;
  for (int64_t i = 0; i < unfinished.size(); ++i)
    groups[group_of(unfinished.id[static_cast<size_t>(i)])].push_back(i);
  UnfinishedGroups out;
  for (auto& [group, members] : groups) {
    const auto first = static_cast<size_t>(members.front());
    PromptTask task{.group = group,
                    .row = unfinished.prompt_row[first],
                    .prompt = unfinished.prompt_len[first],
                    .answers = std::ssize(members)};
    for (const int64_t i : members) task.written += unfinished.response_len(i);
    out.tasks.push_back(task);
    out.sequences.push_back(std::move(members));
  }
  return out;
}

}  // namespace trireme::rollout
