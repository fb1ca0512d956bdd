// Iterations that learn from the groups that are finished first.
#include "torch/torch.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "driver/rollout_phase.hpp"
#include "trireme/learn/iteration_numbers.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {

std::optional<Samples> RolloutPhase::collect_finished(report::IterationMetrics& metrics) {
  {
    const trace::Phase phase{"rollout", metrics.iteration};
    admit(metrics.iteration);
    const auto known = [this] { return poll(), finished_->poll(control_.stop_wanted()); };
    if (rollout::Generator* generator = roles_.generator.get()) {
      rollout::RolloutHooks hooks = this->hooks(false);
      hooks.pace = [&] {
        return !known() && (written_.congested() || generator->idle()) ? rollout::Pace::wait
                                                                       : rollout::Pace::go;
      };
      generator->write_until(known, hooks);
    }
    control_.wait("groups to learn from", [&] { return refer_ahead(), known(); });
    settle_waves();
  }
  const rollout::FinishedGroups::Chosen chosen = finished_->take();
  if (chosen.left) {
    meet(true);
    control_.agree_to_leave(run_.roles.world);
    return std::nullopt;
  }
  Batch& batch = gather(chosen.groups, metrics.iteration);
  int64_t carried = 0;
  for (const Batch& one : batches_) {
    if (one.iteration <= metrics.iteration) carried += std::ssize(one.groups);
  }
  metrics.set("carried_groups", static_cast<double>(carried));
  return finish(batch);
}

RolloutPhase::Batch& RolloutPhase::gather(const std::vector<uint64_t>& groups, int64_t iteration) {
  const auto is_chosen = [&](uint64_t id) {
    return std::ranges::binary_search(groups, group_of(id));
  };
  Batch chosen{.number = ++opened_, .iteration = iteration, .prompts = &prompts_};
  for (Batch& batch : batches_) {
    for (const uint64_t group : groups) {
      if (batch.groups.erase(group) == 0) continue;
      for (int64_t sample = 0; sample < batch.n; ++sample) {
        chosen.expected +=
            scorer_of(request_id(batch.iteration, static_cast<int64_t>(group & 0xFFFFF), sample),
                      batch) == run_.roles.world.rank();
      }
    }
  }
  control_.wait("sequences to score", [&] {
    poll();
    int64_t here = 0;
    for (const Batch& batch : batches_) here += std::ranges::count_if(batch.samples.id, is_chosen);
    return here == chosen.expected;
  });
  for (Batch& batch : batches_) {
    Samples rest;
    for (int64_t i = 0; i < batch.samples.size(); ++i) {
      (is_chosen(batch.samples.id[static_cast<size_t>(i)]) ? chosen.samples : rest)
          .append(batch.samples, i);
    }
    batch.samples = std::move(rest);
    batch.offered = 0;  // what the reference has had of them is known by its id
  }
  std::erase_if(batches_, [](const Batch& batch) { return batch.groups.empty(); });
  return batches_.emplace_back(std::move(chosen));
}

void RolloutPhase::reopen_finished(const std::vector<uint64_t>& groups, const Samples& unfinished) {
  std::set<uint64_t> open;
  for (const uint64_t id : unfinished.id) open.insert(group_of(id));
  for (const uint64_t group : groups) {
    if (!open.contains(group)) finished_->found(group);
  }
}

}  // namespace trireme::driver
