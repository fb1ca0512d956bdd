#include "plan/judge_bytes.hpp"

#include <algorithm>
#include <limits>

#include "plan/generation_bytes.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/text.hpp"

namespace trireme::plan {
namespace {

// Judgements of an iteration on the fullest rank.
int64_t judgements(const Job& job, const config::JudgeModel& judge) {
  const auto votes = static_cast<int64_t>(votes_on_answer(job.options, judge).number);
  return votes * base::ceil_div<int64_t>(job.options.sequences_per_iteration(),
                                         static_cast<int64_t>(job.roles.reward.size()));
}

}  // namespace

Votes votes_on_answer(const config::Options& options, const config::JudgeModel& judge) {
  Votes out;
  double text = 0;
  for (const size_t i : judge.sources) {
    const config::RewardSource& source = options.reward.source[i];
    out.number += static_cast<double>(source.votes);
    text += static_cast<double>(source.votes * source.max_new_tokens) / 2;
  }
  out.length = text / out.number;
  return out;
}

int64_t judge_cache_bytes(const config::JudgeModel& judge, const config::ModelShape& shape,
                          int64_t element_bytes) {
  return kv_cache_bytes({0, std::numeric_limits<int64_t>::max()},
                        kv_bytes_per_token(shape, 1, element_bytes), judge.max_batch,
                        std::min(judge.max_len, shape.longest()), 0);
}

void add_judges(Ledger& ledger, const Job& job, int64_t logit_bytes) {
  const std::vector<config::JudgeModel> judges = config::judge_models(job.options);
  const int64_t element = config::bytes_per_element(job.compute);
  const bool device = job.machine.device_bytes > 0;
  const Place place = device ? Place::device : Place::host;
  // It writes whenever its rank has answers to judge, ahead of the trainers too.
  const PhaseSet working = job.options.train.async_depth > 0
                               ? every_phase & ~phase_bit(Phase::start)
                               : phase_bit(Phase::rollout) | phase_bit(Phase::reward);
  for (size_t i = 0; i < std::min(judges.size(), job.models.judges.size()); ++i) {
    const config::JudgeModel& judge = judges[i];
    const JudgeLayout& layout = job.models.judges[i];
    const config::ModelShape& shape = layout.model.shape;
    const std::string owner = base::text("judge ", i);
    ledger.add({owner, "weights", place, generator_weight_bytes(layout.slices, 0, element),
                every_phase, Accuracy::exact});
    const int64_t cache = judge_cache_bytes(judge, shape, element);
    const int64_t sequences = judgements(job, judge);
    const auto& o = job.options.generate;
    const int64_t padded =
        base::round_up(std::min(judge.max_len, shape.longest()) + 1, o.page_size);
    if (device) {
      ledger.add({owner, "KV pages", place, cache, every_phase & ~phase_bit(Phase::start),
                  Accuracy::exact});
      GenerationStep step{
          .shape = shape, .element_bytes = element, .logit_bytes = logit_bytes, .longest = padded};
      step.take_slices(layout.model, layout.slices, 0);
      step.take_work(job.options, sequences, judge.max_batch, job.own_kernels);
      add_generation(ledger, owner, generation_bytes(step), working,
                     every_phase & ~phase_bit(Phase::start));
      continue;
    }
    // On the host a page takes memory when it is first written.
    const int64_t tokens = sequences * padded;
    ledger.add({owner, "KV pages that are written", place,
                std::min(cache, tokens * kv_bytes_per_token(shape, 1, element)),
                every_phase & ~phase_bit(Phase::start), Accuracy::estimate});
    const int64_t rows = std::min(tokens, o.max_batch_tokens + judge.max_batch);
    ledger.add({owner, "rows of a step", place,
                host_step_bytes(shape, 1, rows, std::min(sequences, judge.max_batch), element,
                                logit_bytes),
                every_phase, Accuracy::estimate});
  }
}

}  // namespace trireme::plan
