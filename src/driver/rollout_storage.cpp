// What a checkpoint has of rollouts, and back.
#include "torch/torch.hpp"

#include <algorithm>
#include <utility>

#include "driver/rollout_phase.hpp"
#include "trireme/base/error.hpp"
#include "trireme/learn/iteration_numbers.hpp"
#include "trireme/rollout/stored_batches.hpp"

namespace trireme::driver {

StoredParts RolloutPhase::stored() {
  StoredParts parts;
  rollout::GroupsOfReplicas writers;
  for (const Batch& batch : batches_)
    writers.insert(writers.end(), batch.writers.begin(), batch.writers.end());
  const bool has_queue = run_.roles.leads_replica() && !pending_;
  parts.dispatch = dispatch_.stored(
      std::move(writers), has_queue ? roles_.generator->queue() : std::vector<uint64_t>());
  if (pending_) {
    parts.pending = learn::to_stored(pending_->scored) + learn::to_stored(pending_->others);
    return parts;
  }
  parts.pending = learn::to_stored(surplus_);
  if (batches_.empty() && !returned_) return parts;
  control_.wait("sequences on their way", [&] {
    return poll(), written_.quiet() && (!finished_ || finished_->quiet()) &&
                       (!early_stop_ || early_stop_->quiet());
  });
  control_.meet(
      [this] { return poll(), false; });  // others may still wait for this rank to take theirs
  Samples all;
  if (returned_) all.append(returned_->unscored());
  for (const Batch& batch : batches_) {
    all.append(rollout::without(batch.surplus, batch.samples).unscored());
    all.append(rollout::without(batch.surplus, batch.skipped).unscored());
    if (roles_.generator) all.append(roles_.generator->standing(batch.number));
  }
  parts.pending += learn::to_stored(all);
  return parts;
}

bool RolloutPhase::can_take_from_trainers() const {
  return !finished_ && !early_stop_ && !paced_ && !run_.options.algo.dynamic_filtering_enable;
}

void RolloutPhase::take_from_trainers(const Samples& samples, int64_t iteration) {
  returned_ = std::exchange(skipped_, {});
  for (int64_t i = 0; i < samples.size();
       ++i) {  // others are those that a start with dynamic filtering had left over
    Samples& place =
        iteration_of(samples.id[static_cast<size_t>(i)]) == iteration ? *returned_ : surplus_;
    place.append(samples, i);
  }
}

void RolloutPhase::remember(Progress& progress) const {
  progress.carried = carried_;
  progress.filter = filtered_;
}

void RolloutPhase::restore(const StoredParts& parts, const Progress& progress) {
  if (progress.pending_bytes > 0) pending_ = learn::from_stored(parts.pending);
  if (progress.dispatch_bytes > 0) dispatch_.restore(parts.dispatch);
  filtered_ = progress.filter;
  carried_ = progress.carried;
  VALIDATE(carried_.empty() || early_stop_, ExitCode::configuration, "the checkpoint has ",
           carried_.size(),
           " prompts that were drawn and are not learned from yet: start with "
           "rollout.over_sampling, as it was saved");
}

void RolloutPhase::go_on_with(Batch& batch, const Samples& unfinished) {
  const rollout::UnfinishedGroups groups = rollout::unfinished_groups(unfinished);
  Samples mine;
  for (const size_t t : hand_out(batch, groups.tasks))
    mine.append(unfinished.select(groups.sequences[t]));
  roles_.generator->go_on(prompts_, mine, batch.number, training_plan());
}

void RolloutPhase::reopen(const Samples& stored, int64_t iteration_now) {
  const bool filters = run_.options.algo.dynamic_filtering_enable;
  const auto first_of = [&](uint64_t id) -> uint64_t {
    // Over-sampling has one batch under way, of groups that were drawn for this iteration and for
    // earlier ones.
    if (early_stop_) return group_of(request_id(iteration_now, 0, 0));
    return group_of(request_id(
        iteration_of(id),
        filters ? prompt_of(id) / run_.options.rollout.batch_size * run_.options.rollout.batch_size
                : 0,
        0));
  };
  for (const rollout::StoredBatch& one :
       run_.roles.world.broadcast_value(rollout::stored_batches(stored, first_of), 0)) {
    VALIDATE(one.unfinished.size() == 0 || partial_, ExitCode::configuration, "the checkpoint has ",
             one.unfinished.size(),
             " sequences that are not finished: start with train.partial_rollout_enable = true, as "
             "it was saved");
    VALIDATE(
        one.whole() || finished_ || early_stop_, ExitCode::configuration,
        "the checkpoint has batches of which some groups were learned from already: start with ",
        "train.partial_rollout_order = \"finished\", or algo.dynamic_filtering_enable, as it was "
        "saved");
    VALIDATE(!early_stop_ || std::ssize(one.groups) <= run_.options.rollout.batch_size,
             ExitCode::configuration, "the checkpoint has ", one.groups.size(),
             " prompts that are to be learned from next: start without rollout.over_sampling, as "
             "it was saved");
    rollout::PromptBatch prompt_batch{
        .iteration = one.iteration(), .first_ordinal = one.first_ordinal(), .rows = {}};
    if (early_stop_) prompt_batch.groups = one.groups;
    Batch& batch = open(prompt_batch, prompts_, one.n, one.sequences);
    batch.groups.insert(one.groups.begin(), one.groups.end());
    if (roles_.generator) go_on_with(batch, one.unfinished);
    if (finished_) reopen_finished(one.groups, one.unfinished);
    begun_ = one.iteration();
    for (int64_t i = 0; i < stored.size(); ++i) {
      const auto s = static_cast<size_t>(i);
      if (first_of(stored.id[s]) != one.first ||
          stored.finish_reason[s] == FinishReason::unfinished)
        continue;
      Samples sequence;
      sequence.append(stored, i);
      post(sequence, batch);
    }
  }
}

void RolloutPhase::take_back(int64_t iteration) {
  const auto stored = std::exchange(pending_, std::nullopt);
  if (!stored) return;
  reopen(stored->others, iteration);
  if (finished_) {
    // The newest of the batches that were drawn may be the first of which no group is left.
    int64_t open = 0;
    for (const Batch& batch : batches_) open += std::ssize(batch.groups);
    begun_ = std::max(begun_, iteration - 1 + open / run_.options.rollout.batch_size);
  }
  surplus_ = learn::Exchange(run_.roles.world).spread(stored->scored, run_.roles.map.reward);
  if (roles_.generator) roles_.generator->arrange(dispatch_.queue());
  dispatch_.forget_writers();
}

}  // namespace trireme::driver
