// What reward ranks do with the sequences of a batch: models score them while others are written, and while plugins work on their answers.
#include "torch/torch.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "driver/rollout_phase.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {

Samples RolloutPhase::take_unscored(Batch& batch, int64_t tokens) {
  Samples taken;
  const Samples& here = batch.samples;
  for (int64_t& next = batch.offered; next < here.size(); ++next) {
    if (taken.size() > 0 && taken.tokens() + here.length(next) > tokens) break;
    const uint64_t id = here.id[static_cast<size_t>(next)];
    const bool is_left = std::ranges::binary_search(batch.surplus, group_of(id)) || roles_.scorer->knows(id);
    if (!is_left) taken.append(here, next);
  }
  return taken;
}

void RolloutPhase::score_with_models(const Samples& samples, const Batch& batch) {
  run_.threads.reward.use();
  roles_.scorer->score_with_models(samples, *batch.prompts, batch.iteration);
}

// When a wave begins depends on time, and what is in it; not what models say of a sequence, whatever it is packed with (0006). A pass is one of all
// reward ranks: each comes to the next one when it has a micro-batch, or nothing more to wait for.
void RolloutPhase::receive(Batch& batch) {
  const comm::CommView scorers = run_.roles.rewards.all();
  const int64_t micro_batch = run_.options.rollout_micro_batch_tokens();
  const auto ended = [&] { return !batch.whole || batch.complete(); };
  for (;;) {
    {
      const trace::Phase phase{"rollout", batch.iteration};
      control_.wait("sequences to score", [&] { return poll(), ended() || (waves_ && unscored(batch) >= micro_batch); });
      if (!waves_) return;
      scorers.sleeping_barrier([this] { return poll(), false; });
      if (scorers.all(ended())) return;
    }
    const trace::Phase phase{"reward", batch.iteration};
    const Samples wave = take_unscored(batch, std::max<int64_t>(1, unscored(batch) / micro_batch) * micro_batch);
    trace::count("sequences_scored_in_waves", wave.size());
    score_with_models(wave, batch);
  }
}

bool RolloutPhase::score_ahead() {
  if (!wave_turns_) return false;
  const bool wanted = std::ranges::any_of(batches_, [this](const Batch& batch) {
    return !batch.scored && batch.prompts == &prompts_ && unscored(batch) >= run_.options.rollout_micro_batch_tokens();
  });
  if (!wave_turns_->next(wanted)) return false;
  wave_ahead();
  return true;
}

void RolloutPhase::wave_ahead() {
  const trace::Region region{"score ahead"};
  const int64_t micro_batch = run_.options.rollout_micro_batch_tokens();
  Samples wave;
  for (Batch& batch : batches_) {
    if (!batch.scored && batch.prompts == &prompts_ && wave.tokens() < micro_batch) wave.append(take_unscored(batch, micro_batch - wave.tokens()));
  }
  trace::count("sequences_scored_in_waves", wave.size());
  run_.threads.reward.use();
  roles_.scorer->score_with_models(wave, prompts_, begun_);
}

void RolloutPhase::settle_waves() {
  if (wave_turns_) wave_turns_->settle([this] { wave_ahead(); });
}

bool RolloutPhase::score(Batch& batch) {
  if (!roles_.scorer || batch.scored) return true;
  const comm::CommView scorers = run_.roles.rewards.all();
  scorers.sleeping_barrier([this] { return poll(), false; });  // one that writes too may still have something for the others
  if (!scorers.all(batch.complete())) {
    batch.whole = false;
    return false;
  }
  if (roles_.scorer->has_models()) score_with_models(take_unscored(batch, std::numeric_limits<int64_t>::max()), batch);  // plugins answer meanwhile
  if (!roles_.scorer->score_locally(batch.samples, batch.skipped, *batch.prompts, batch.iteration)) return false;
  if (!batch.surplus.empty()) batch.samples = without_surplus(batch, batch.samples);
  std::vector<int> all(static_cast<size_t>(scorers.size()));
  std::iota(all.begin(), all.end(), 0);
  roles_.scorer->fill_in(batch.samples);
  batch.samples = learn::Exchange(scorers).spread(batch.samples, all);
  batch.expected = batch.offered = batch.samples.size();
  batch.scored = true;
  return true;
}

}  // namespace trireme::driver
