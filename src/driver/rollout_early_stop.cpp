// Iterations that write more groups than they learn from, and leave those with the longest answers
// to the next ones.
#include "torch/torch.hpp"

#include <algorithm>
#include <utility>

#include "driver/rollout_phase.hpp"
#include "trireme/base/error.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

// Iterations that a prompt may be left to the next one, since its answers are long: the one after
// them waits for it. Fewer make long iterations frequent, more let the same long answers be begun
// again and again.
constexpr int64_t longest_wait = 4;

}  // namespace

// Each iteration learns from rollout.batch_size groups, so what was drawn before is known. A group
// has the id that it has without over-sampling.
std::vector<CarriedPrompt> RolloutPhase::prompts_to_write(int64_t iteration) {
  const int64_t batch = run_.options.rollout.batch_size, waiting = std::ssize(carried_);
  const int64_t wanted =
      std::min(run_.options.prompts_to_write(),
               (iterations_ - iteration + 1) * batch);  // at the end nothing is left over
  int64_t drawn = (iteration - 1) * batch + waiting;
  std::vector<CarriedPrompt> prompts = carried_;
  if (wanted <= waiting) return prompts;
  for (const int64_t row : sampler_.draw(wanted - waiting)) {
    prompts.push_back({group_of(request_id(1 + drawn / batch, drawn % batch, 0)), row});
    ++drawn;
  }
  VALIDATE(waiting == 0 || carried_.back().group < prompts[static_cast<size_t>(waiting)].group,
           ExitCode::configuration, waiting,
           " prompts of the checkpoint are not learned from yet, and with another "
           "rollout.batch_size new ones would have their ids: start with the one that "
           "it was saved with");
  return prompts;
}

rollout::RolloutHooks RolloutPhase::early_hooks(Batch& batch) {
  rollout::RolloutHooks hooks;
  hooks.written = [this, &batch](const Samples& sequence, int64_t) {
    dispatch_.finished(sequence.prompt_row.front(), sequence.response_len(0));
    const Samples whole = early_stop_->finished(sequence);
    for (int64_t i = 0; i < whole.size(); ++i) post(whole.select(std::vector{i}), batch);
  };
  hooks.pace = [this] {
    poll();
    if (early_stop_->poll(control_.stop_wanted()))
      return rollout::Pace::leave;  // something is unfinished, so the choice is to stop
    return written_.congested() ? rollout::Pace::wait : rollout::Pace::go;
  };
  hooks.longest = [this] { return early_stop_->longest(); };
  hooks.left = [this](uint64_t group) { early_stop_->left(group); };
  return hooks;
}

std::optional<Samples> RolloutPhase::collect_early(report::IterationMetrics& metrics) {
  const int64_t iteration = metrics.iteration;
  if (!batches_.empty()) {  // chosen before a stop
    metrics.set("carried_groups", static_cast<double>(carried_.size()));
    return finish(batches_.front());
  }
  const std::vector<CarriedPrompt> prompts = prompts_to_write(iteration);
  rollout::PromptBatch prompt_batch{.iteration = iteration, .rows = {}};
  for (const CarriedPrompt& one : prompts) {
    prompt_batch.groups.push_back(one.group);
    prompt_batch.rows.push_back(one.row);
  }
  const uint64_t first_not_due =
      group_of(request_id(std::max<int64_t>(0, iteration - longest_wait + 1), 0, 0));
  const auto due =
      std::ranges::lower_bound(prompt_batch.groups, first_not_due) - prompt_batch.groups.begin();
  const int64_t wanted = run_.options.rollout.batch_size;
  Batch* batch = nullptr;
  {
    const trace::Phase phase{"rollout", iteration};
    early_stop_->begin({.groups = prompt_batch.groups,
                        .samples = training_plan().n,
                        .wanted = wanted,
                        .due = std::min<int64_t>(due, wanted)});
    batch = &begin(prompt_batch, prompts_, training_plan());
    if (roles_.generator) roles_.generator->finish(batch->number, early_hooks(*batch));
    control_.wait("groups to learn from",
                  [this] { return poll(), early_stop_->poll(control_.stop_wanted()); });
  }
  const rollout::EarlyStop::Chosen chosen = early_stop_->take();
  if (chosen.stopped) {  // the rollout is made again
    batches_.clear();
    meet(true);
    control_.agree_to_leave(run_.roles.world);
    return std::nullopt;
  }
  if (run_.roles.leads_replica()) roles_.generator->count_dropped(early_stop_->take_dropped());
  batch->surplus = chosen.surplus;
  batch->expected = sequences_here(*batch, chosen.groups) + sequences_here(*batch, chosen.surplus);
  carried_.clear();
  std::ranges::copy_if(prompts, std::back_inserter(carried_), [&](const CarriedPrompt& one) {
    return !std::ranges::binary_search(chosen.groups, one.group);
  });
  metrics.set("carried_groups", static_cast<double>(carried_.size()));
  return finish(*batch);
}

int64_t RolloutPhase::sequences_here(const Batch& batch,
                                     const std::vector<uint64_t>& groups) const {
  int64_t here = 0;
  for (const uint64_t group : groups) {
    for (int64_t sample = 0; sample < batch.n; ++sample) {
      here += scorer_of(group << 20 | request_id(0, 0, sample), batch) == run_.roles.world.rank();
    }
  }
  return here;
}

}  // namespace trireme::driver
