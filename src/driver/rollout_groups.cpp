// From prompts to the samples that an iteration learns from.
#include "torch/torch.hpp"

#include <algorithm>
#include <utility>

#include "driver/rollout_phase.hpp"
#include "trireme/base/log.hpp"
#include "trireme/learn/iteration_numbers.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {

void RolloutPhase::draw(int64_t iteration) {
  for (;;) {
    const auto [prompts, warning] = groups_.to_draw(iteration);
    if (!warning.empty() && run_.leads()) log::warning(warning);
    if (prompts > 0)
      groups_.admit(iteration, sampler_.draw(prompts));  // the same on every rank, no message
    const rollout::GroupBuffer::Draw draw = groups_.start(opened_ + 1, iteration);
    if (draw.groups.empty()) return;
    begin(draw.iteration, draw.groups, draw.rows, prompts_, training_plan());
  }
}

bool RolloutPhase::knows_choice() {
  return news_->poll(run_.progress.some(comm::May::leave) == comm::Then::leave);
}

rollout::GroupBuffer::Choice RolloutPhase::choose() {
  if (groups_.choice_is_known()) return *groups_.choose();
  if (roles_.generator) write({.choosing = true});
  run_.progress.until(
      "groups to learn from", [this] { return knows_choice(); }, comm::May::stay,
      comm::Help::joint);
  rollout::GroupBuffer::Choice choice = news_->take();
  if (run_.roles.leads_replica()) roles_.generator->count_dropped(news_->take_dropped());
  return choice;
}

RolloutPhase::Batch& RolloutPhase::gather(const rollout::GroupBuffer::Choice& choice,
                                          int64_t iteration) {
  const std::vector<uint64_t>& groups = choice.groups;
  const auto is_it = [&](const Batch& batch) {
    const auto has = [&](uint64_t group) { return batch.open.contains(group); };
    return batch.prompts == &prompts_ && std::ranges::all_of(groups, has) &&
           (!partial_ || batch.open.size() == groups.size());
  };
  if (const auto own = std::ranges::find_if(batches_, is_it); own != batches_.end()) {
    own->surplus = choice.surplus;
    own->expected = sequences_here(*own, groups) + sequences_here(*own, choice.surplus);
    return *own;
  }
  const auto is_chosen = [&](uint64_t id) {
    return std::ranges::binary_search(groups, group_of(id));
  };
  Batch chosen{.number = ++opened_,
               .iteration = iteration,
               .n = training_plan().n,
               .prompts = &prompts_,
               .places = groups};
  for (Batch& batch : batches_) {
    for (const uint64_t group : groups) {
      if (batch.open.erase(group) > 0) chosen.expected += sequences_here(batch, {{group}});
    }
  }
  run_.progress.until("sequences to score", [&] {
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
    batch.offered = 0;  // the scorer knows the ids of those that have reference log-probs
  }
  std::erase_if(batches_, [this](const Batch& batch) {
    return batch.prompts == &prompts_ && batch.open.empty();
  });
  return batches_.emplace_back(std::move(chosen));
}

std::optional<Samples> RolloutPhase::collect(RunState& state, report::IterationMetrics& metrics) {
  const int64_t iteration = metrics.iteration;
  take_back(iteration);
  begin_anew();
  const Samples before = scored_;  // for a rollout that is made again
  while (!groups_.ready()) {
    rollout::GroupBuffer::Choice choice;
    Batch* batch = nullptr;
    {
      const trace::Phase phase{"rollout", iteration};
      draw(iteration);
      if (groups_.ready()) break;  // filtering found too little and learns from that
      run_.output.begin("rollout", iteration, iterations_);
      choice = choose();
      if (!choice.stopped) {
        groups_.apply(choice);
        batch = &gather(choice, iteration);
        write(*batch);
      }
    }
    if (choice.stopped) {
      if (!partial_) batches_.clear();  // the rollout is made again
      meet();
      run_.progress.agree(run_.roles.world);
      return std::nullopt;
    }
    if (news_) metrics.set("carried_groups", static_cast<double>(groups_.carried(iteration)));
    std::optional<Samples> samples = finish(*batch);
    if (!samples) {
      if (batches_.empty()) scored_ = before;
      return std::nullopt;
    }
    keep(std::move(*samples), choice.groups);
    begin_anew();
  }
  return take(state, metrics);
}

void RolloutPhase::keep(Samples samples, const std::vector<uint64_t>& groups) {
  const auto& algo = run_.options.algo;
  if (!algo.dynamic_filtering_enable) {
    groups_.scored(groups);
    if (scored_.size() == 0)
      scored_ = std::move(samples);  // of large batches there is no room for a copy
    else scored_.append(samples);
    return;
  }
  const std::vector<uint64_t> kept =
      learn::informative_groups(run_.roles.world, samples, algo.dynamic_filtering_range);
  groups_.scored(kept);
  for (int64_t i = 0; i < samples.size(); ++i) {
    if (std::ranges::binary_search(kept, group_of(samples.id[static_cast<size_t>(i)])))
      scored_.append(samples, i);
  }
}

Samples RolloutPhase::take(RunState& state, report::IterationMetrics& metrics) {
  const rollout::GroupBuffer::Taken taken = groups_.take();
  if (groups_.policy().filters) {
    metrics.set("filter_drawn", static_cast<double>(taken.drawn));
    metrics.set("filter_skipped", static_cast<double>(taken.skipped));
    metrics.set("filter_surplus", static_cast<double>(taken.rest));
    state.skipped_prompts += taken.skipped;
  }
  if (taken.rest == 0) return std::exchange(scored_, {});
  Samples batch, rest;
  for (int64_t i = 0; i < scored_.size(); ++i) {
    const uint64_t group = group_of(scored_.id[static_cast<size_t>(i)]);
    (std::ranges::binary_search(taken.groups, group) ? batch : rest).append(scored_, i);
  }
  // As a start from a checkpoint spreads it, so that sums over ranks are added up alike.
  scored_ = learn::Exchange(run_.roles.world).spread(rest, run_.roles.map.reward);
  return batch;
}

}  // namespace trireme::driver
