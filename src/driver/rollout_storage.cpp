// Rollouts in checkpoints: to and from.
#include "torch/torch.hpp"

#include <algorithm>
#include <utility>

#include "driver/rollout_phase.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"
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
  parts.pending = learn::to_stored(scored_);
  if (batches_.empty() && !returned_) return parts;
  run_.progress.until("sequences on their way",
                      [&] { return written_.quiet() && (!news_ || news_->quiet()); });
  run_.progress.meet(run_.roles.world);  // others may still wait for this rank to take theirs
  Samples all;
  if (returned_) all.append(returned_->unscored());
  for (const Batch& batch : batches_) {
    all.append(without(batch.surplus, batch.samples).unscored());
    all.append(without(batch.surplus, batch.skipped).unscored());
    if (roles_.generator) all.append(roles_.generator->standing(batch.number));
  }
  parts.pending += learn::to_stored(all);
  return parts;
}

bool RolloutPhase::can_take_from_trainers() const {
  return groups_.policy().order == rollout::Order::drawn && !groups_.policy().filters && !paced_;
}

void RolloutPhase::take_from_trainers(const Samples& samples, int64_t iteration) {
  returned_ = std::exchange(skipped_, {});
  for (int64_t i = 0; i < samples.size();
       ++i) {  // others are those that a start with dynamic filtering had left over
    Samples& place =
        iteration_of(samples.id[static_cast<size_t>(i)]) == iteration ? *returned_ : scored_;
    place.append(samples, i);
  }
}

void RolloutPhase::remember(RunState& state) const {
  state.carried = groups_.waiting();
  state.filter = groups_.filter();
}

void RolloutPhase::restore(const StoredParts& parts, const RunState& state) {
  if (state.pending_bytes > 0) pending_ = learn::from_stored(parts.pending);
  if (state.dispatch_bytes > 0) dispatch_.restore(parts.dispatch);
  groups_.restore(state.carried, state.filter);
}

void RolloutPhase::go_on_with(Batch& batch, const Samples& unfinished) {
  const rollout::UnfinishedGroups groups = rollout::unfinished_groups(unfinished);
  Samples mine;
  for (const size_t t : hand_out(batch, groups.tasks))
    mine.append(unfinished.select(groups.sequences[t]));
  roles_.generator->go_on(prompts_, mine, batch.number, training_plan());
}

void RolloutPhase::reopen(const Samples& stored, int64_t iteration_now) {
  const rollout::GroupPolicy& policy = groups_.policy();
  const auto first_of = [&](uint64_t id) -> uint64_t {
    // Over-sampling has one batch under way, of groups that were drawn for this iteration and for
    // earlier ones.
    if (policy.order == rollout::Order::shortest) return group_of(request_id(iteration_now, 0, 0));
    const int64_t draw = policy.filters ? prompt_of(id) / policy.wanted : 0;
    return group_of(request_id(iteration_of(id), draw * policy.wanted, 0));
  };
  for (const rollout::StoredBatch& one :
       run_.roles.world.broadcast_value(rollout::stored_batches(stored, first_of), 0)) {
    VALIDATE(one.unfinished.size() == 0 || partial_, ExitCode::configuration, "the checkpoint has ",
             one.unfinished.size(),
             " sequences that are not finished: start with train.partial_rollout_enable = true, as "
             "it was saved");
    Batch& batch = open(one.iteration(), one.groups, prompts_, one.n);
    std::vector<uint64_t> unfinished;
    for (const uint64_t id : one.unfinished.id) unfinished.push_back(group_of(id));
    std::ranges::sort(unfinished);
    groups_.restore_draw(batch.number, one.iteration(), one.groups, unfinished);
    if (roles_.generator) go_on_with(batch, one.unfinished);
    for (int64_t i = 0; i < stored.size(); ++i) {
      const auto s = static_cast<size_t>(i);
      if (first_of(stored.id[s]) != one.first ||
          stored.finish_reason[s] == FinishReason::unfinished)
        continue;
      Samples sequence;
      sequence.append(stored, i);
      post(sequence, batch);
      base::add_written({.answers = 1});
    }
  }
}

void RolloutPhase::take_back(int64_t iteration) {
  const auto stored = std::exchange(pending_, std::nullopt);
  if (!stored) return;
  reopen(stored->others, iteration);
  const comm::CommView& world = run_.roles.world;
  scored_ = learn::Exchange(world).spread(stored->scored, run_.roles.map.reward);
  std::vector<uint64_t> scored;
  for (const uint64_t id : scored_.id) scored.push_back(group_of(id));
  scored = world.all_gather<uint64_t>(scored);
  std::ranges::sort(scored);
  scored.erase(std::unique(scored.begin(), scored.end()), scored.end());
  groups_.restore_scored(std::move(scored));
  if (roles_.generator) roles_.generator->arrange(dispatch_.queue());
  dispatch_.forget_writers();
}

}  // namespace trireme::driver
