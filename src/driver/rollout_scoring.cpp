// What reward ranks do with the sequences of a batch: the reference has them while others are
// written, models score them while plugins work on their answers.
#include "torch/torch.hpp"

#include <algorithm>
#include <numeric>

#include "driver/rollout_phase.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {

Samples RolloutPhase::take_unreferred(Batch& batch, int64_t tokens) {
  Samples wave;
  const Samples& samples = batch.samples;
  for (int64_t& next = batch.offered; next < samples.size(); ++next) {
    if (wave.size() > 0 && wave.tokens() + samples.length(next) > tokens) break;
    const uint64_t id = samples.id[static_cast<size_t>(next)];
    const bool is_known =
        std::ranges::binary_search(batch.surplus, group_of(id)) || roles_.scorer->knows(id);
    if (!is_known) wave.append(samples, next);
  }
  return wave;
}

// Sequences of a pass that was left are not known to the scorer, which comes back to them if the
// run should go on.
void RolloutPhase::refer(const Samples& wave) {
  trace::count("sequences_scored_in_waves", wave.size());
  run_.threads.reward.use();
  roles_.scorer->refer(wave);
}

// When a wave begins depends on time, and what is in it; not the log-probs of a sequence, whatever
// it is packed with (0006). A wave is one of all reward ranks: each comes to the next one when it
// has a micro-batch, or nothing more to wait for.
void RolloutPhase::receive(Batch& batch) {
  const comm::CommView scorers = run_.roles.rewards.all();
  const int64_t micro_batch = run_.options.rollout_micro_batch_tokens();
  const auto ended = [&] { return !batch.whole || batch.complete(); };
  for (;;) {
    {
      const trace::Phase phase{"rollout", batch.iteration};
      run_.progress.until("sequences to score",
                          [&] { return ended() || (waves_ && unreferred(batch) >= micro_batch); });
      if (!waves_) return;
      run_.progress.meet(scorers);
      if (scorers.all(ended())) return;
    }
    const trace::Phase phase{"reward", batch.iteration};
    refer(take_unreferred(batch,
                          std::max<int64_t>(1, unreferred(batch) / micro_batch) * micro_batch));
  }
}

bool RolloutPhase::wave_is_wanted() const {
  return std::ranges::any_of(batches_, [this](const Batch& batch) {
    return !batch.scored && batch.prompts == &prompts_ &&
           unreferred(batch) >= run_.options.rollout_micro_batch_tokens();
  });
}

void RolloutPhase::wave_ahead() {
  const trace::Region region{"refer ahead"};
  const int64_t micro_batch = run_.options.rollout_micro_batch_tokens();
  Samples wave;
  for (Batch& batch : batches_) {
    if (!batch.scored && batch.prompts == &prompts_ && wave.tokens() < micro_batch)
      wave.append(take_unreferred(batch, micro_batch - wave.tokens()));
  }
  refer(wave);
}

bool RolloutPhase::score(Batch& batch) {
  if (!roles_.scorer || batch.scored) return true;
  const comm::CommView scorers = run_.roles.rewards.all();
  run_.progress.meet(scorers);  // one that writes too may still have something for the others
  if (!scorers.all(batch.complete())) {
    batch.whole = false;
    return false;
  }
  run_.threads.reward.use();
  // Plugins answer meanwhile.
  const comm::Then then = roles_.scorer->score_with_models(without(batch.surplus, batch.samples),
                                                           *batch.prompts, batch.iteration);
  if (then == comm::Then::leave) return false;
  if (!roles_.scorer->score_locally(batch.samples, batch.skipped, *batch.prompts, batch.iteration))
    return false;
  if (!batch.surplus.empty()) batch.samples = without(batch.surplus, batch.samples);
  std::vector<int> all(static_cast<size_t>(scorers.size()));
  std::iota(all.begin(), all.end(), 0);
  roles_.scorer->fill_in(batch.samples);
  batch.samples = learn::Exchange(scorers).spread(batch.samples, all);
  batch.expected = batch.offered = batch.samples.size();
  batch.scored = true;
  return true;
}

}  // namespace trireme::driver
