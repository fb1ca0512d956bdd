#include "torch/torch.hpp"

#include "driver/rollout_phase.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/learn/iteration_numbers.hpp"
#include "trireme/learn/step_plan.hpp"
#include "trireme/report/sample_log.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

comm::MailLimits limits_of(const config::Options& options) {
  return {options.rollout.queue_messages, options.rollout.queue_bytes.count};
}

// The place of `rank` among `ranks`; -1: it is none of them.
int place_among(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

bool share_a_rank(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int rank) { return place_among(b, rank) >= 0; });
}

}  // namespace

RolloutPhase::RolloutPhase(Run& run, PpoRoles& roles, const text::Tokenizer& tokenizer,
                           const data::PromptSet& prompts, data::PromptSampler& sampler,
                           int64_t iterations)
    : run_(run),
      roles_(roles),
      tokenizer_(tokenizer),
      prompts_(prompts),
      sampler_(sampler),
      iterations_(iterations),
      scorers_train_(share_a_rank(run.roles.map.reward, run.roles.map.trainer)),
      waves_(roles.scorer && roles.scorer->has_reference() &&
             (run.device.is_cpu() || !run.options.train.deterministic)),
      partial_(run.options.train.partial_rollout_enable),
      paced_(partial_ && run.options.train.deterministic),
      stands_still_(
          run.roles.generators.along(comm::Axis::tensor).max(int64_t{run.roles.trainer}) != 0),
      written_(run.roles.world, "finished sequences", limits_of(run.options)),
      delivery_(run.roles.world, run.roles.map.trainer, limits_of(run.options)),
      dispatch_(run.roles),
      groups_(rollout::policy_of(run.options, iterations)) {
  if (!groups_.choice_is_known()) news_.emplace(run.roles, limits_of(run.options), groups_);
  run.progress.add([this] { return take_mail(); });
  if (run.options.environment.wanted() && roles.generator)
    run.progress.add([this] { return roles_.generator->poll_environment(); });
  if (partial_ && !paced_ && roles.generator) {
    run.progress.add_joint(
        run.roles.generators.along(comm::Axis::tensor), "turns of a replica",
        [this] {
          return !weights_change_ && !roles_.generator->idle() && !roles_.generator->must_wait() &&
                 !written_.congested();
        },
        [this] { step(); });
  }
  // Reward ranks that have nothing else to do.
  const bool idle = !share_a_rank(run.roles.map.reward, run.roles.map.trainer) &&
                    !share_a_rank(run.roles.map.reward, run.roles.map.generator);
  if (waves_ && partial_ && idle) {
    run.progress.add_joint(
        run.roles.rewards.all(), "turns of the reference", [this] { return wave_is_wanted(); },
        [this] { wave_ahead(); });
  }
}

rollout::SamplingPlan RolloutPhase::training_plan() const {
  const auto& options = run_.options;
  return {.n = options.rollout.n_samples_per_prompt,
          .temperature = options.rollout.temperature,
          .seed = static_cast<uint64_t>(options.run.seed)};
}

RolloutPhase::Batch& RolloutPhase::open(int64_t iteration, std::vector<uint64_t> groups,
                                        const data::PromptSet& prompts, int64_t n) {
  Batch& batch = batches_.emplace_back(Batch{.number = ++opened_,
                                             .iteration = iteration,
                                             .n = n,
                                             .prompts = &prompts,
                                             .places = std::move(groups)});
  if (&prompts == &prompts_) batch.open.insert(batch.places.begin(), batch.places.end());
  batch.expected = sequences_here(batch, batch.places);
  run_.output.expect(iteration, std::ssize(batch.places) * n);
  for (Written& written : std::exchange(early_, {})) accept(std::move(written));
  return batch;
}

int RolloutPhase::scorer_of(uint64_t id, const Batch& batch) const {
  const auto& scorers = run_.roles.map.reward;
  const int64_t prompt =
      std::ranges::lower_bound(batch.places, group_of(id)) - batch.places.begin();
  const int64_t place =
      config::needs_whole_groups(run_.options) ? prompt : prompt * batch.n + sample_of(id);
  return scorers[static_cast<size_t>(place) % scorers.size()];
}

int64_t RolloutPhase::sequences_here(const Batch& batch, std::span<const uint64_t> groups) const {
  if (!run_.roles.reward) return 0;
  int64_t here = 0;
  for (const uint64_t group : groups) {
    for (int64_t sample = 0; sample < batch.n; ++sample)
      here += scorer_of(group << 20 | request_id(0, 0, sample), batch) == run_.roles.world.rank();
  }
  return here;
}

void RolloutPhase::post(const Samples& sequence, const Batch& batch) {
  written_.post(scorer_of(sequence.id.front(), batch), {batch.number, sequence, false});
}

int64_t RolloutPhase::accept(Written written) {
  const auto batch = std::ranges::find(batches_, written.number, &Batch::number);
  if (batch == batches_.end()) {
    if (written.number > opened_)
      early_.push_back(std::move(written));  // else its rollout was left
  } else if (written.left) {
    batch->whole = false;
  } else {
    roles_.scorer->ask(written.samples, *batch->prompts, batch->iteration, batch->n);
    batch->samples.append(written.samples);
    return written.samples.size();
  }
  return 0;
}

int64_t RolloutPhase::take_mail() {
  int64_t sequences = 0;
  while (auto written = written_.take()) sequences += accept(std::move(*written));
  if (news_) news_->receive();
  show_queues();
  return sequences;
}

void RolloutPhase::show_queues() {
  int64_t unscored = 0;
  for (const Batch& batch : batches_) unscored += batch.scored ? 0 : batch.samples.size();
  under_way_.set(written_.outstanding());
  to_score_.set(unscored);
  ahead_.set(std::ssize(batches_));
}

void RolloutPhase::meet() {
  run_.progress.meet(run_.roles.world, comm::Help::joint);
  if (paced_ && roles_.generator) dispatch_.learn_lengths();  // at the same places in every run
}

void RolloutPhase::step() {
  for (const rollout::Finished& one : roles_.generator->step()) {
    const Batch& batch = *std::ranges::find(batches_, one.number, &Batch::number);
    const bool trains = batch.prompts == &prompts_;
    if (trains) dispatch_.finished(one.sequence.prompt_row.front(), one.sequence.response_len(0));
    const Samples ready = trains && news_ ? news_->finished(one.sequence) : one.sequence;
    for (int64_t i = 0; i < ready.size(); ++i) post(ready.select(std::vector{i}), batch);
  }
}

bool RolloutPhase::written(const Stretch& stretch) const {
  const rollout::Generator& generator = *roles_.generator;
  return generator.idle() || (stretch.batch >= 0 && !generator.writes(stretch.batch)) ||
         generator.counters().generated_tokens >= stretch.tokens;
}

rollout::Pace RolloutPhase::pace_of(const Stretch& stretch) {
  const comm::Then then = run_.progress.some(stretch.may);
  if (then == comm::Then::leave || (stretch.choosing && knows_choice()))
    return rollout::Pace::leave;
  const bool waits = written_.congested() || roles_.generator->must_wait();
  return waits ? rollout::Pace::wait : rollout::Pace::go;
}

comm::Then RolloutPhase::write(const Stretch& stretch) {
  rollout::Generator& generator = *roles_.generator;
  const bool leaves_longer = stretch.choosing && groups_.policy().order == rollout::Order::shortest;
  rollout::Pace pace = rollout::Pace::go;
  generator.begin_stretch();
  for (int64_t steps = 0; !written(stretch); ++steps) {
    while ((pace = generator.agree(pace_of(stretch), steps)) == rollout::Pace::wait) {
      run_.progress.until("room for finished sequences, or the environment",
                          [&] { return pace_of(stretch) != rollout::Pace::wait; });
    }
    if (pace == rollout::Pace::leave) break;
    if (leaves_longer) {
      for (const uint64_t group : generator.leave_longer(news_->longest(), steps))
        news_->left(group);
    }
    step();
  }
  generator.end_stretch();
  return pace == rollout::Pace::leave ? comm::Then::leave : comm::Then::go_on;
}

std::vector<size_t> RolloutPhase::hand_out(Batch& batch,
                                           const std::vector<rollout::PromptTask>& tasks) {
  run_.progress.meet(run_.roles.generators.all(), comm::Help::joint);
  const int64_t outstanding = roles_.generator->outstanding(dispatch_.lengths());
  rollout::Dispatch::Share share = dispatch_.share(tasks, outstanding);
  batch.writers = std::move(share.all);
  if (news_ && batch.prompts == &prompts_ && run_.roles.leads_replica()) {
    for (const size_t t : share.mine) news_->expect(tasks[t].group, tasks[t].answers);
  }
  return share.mine;
}

RolloutPhase::Batch& RolloutPhase::begin(int64_t iteration, const std::vector<uint64_t>& groups,
                                         const std::vector<int64_t>& rows,
                                         const data::PromptSet& prompts,
                                         const rollout::SamplingPlan& plan) {
  Batch& batch = open(iteration, groups, prompts, plan.n);
  if (!roles_.generator) return batch;
  std::vector<rollout::PromptTask> tasks;
  for (size_t p = 0; p < rows.size(); ++p) {
    tasks.push_back({.group = groups[p],
                     .row = &prompts == &prompts_ ? rows[p] : rollout::PromptTask::other_set,
                     .prompt = static_cast<int64_t>(prompts[rows[p]].ids.size()),
                     .answers = plan.n});
  }
  std::vector<size_t> mine = hand_out(batch, tasks);
  // The oldest first where they may begin again: due sequences must not wait for a slot.
  if (groups_.policy().order == rollout::Order::shortest) std::ranges::sort(mine);
  roles_.generator->begin(
      prompts, {.number = batch.number, .iteration = iteration, .rows = rows, .groups = groups},
      plan, mine);
  return batch;
}

void RolloutPhase::write(Batch& batch, bool may_leave) {
  if (!roles_.generator || !roles_.generator->writes(batch.number)) return;
  const comm::Then then = write(
      {.batch = batch.number, .may = may_leave && !paced_ ? comm::May::leave : comm::May::stay});
  trace::count("sequences_received_while_writing", batch.samples.size());
  if (then == comm::Then::go_on) return;
  batch.whole = false;
  if (!run_.roles.leads_replica()) return;
  for (const int scorer : run_.roles.map.reward)
    written_.post(scorer, {.number = batch.number, .samples = {}, .left = true});
}

void RolloutPhase::write(Batch& batch) {
  // One step ahead, the weights that it is sampled from are gone at the next optimizer step: it is
  // brought to its end.
  write(batch, partial_ || run_.options.train.async_depth == 0);
}

void RolloutPhase::begin_anew() {
  if (paced_ && roles_.generator) roles_.generator->begin_anew();
}

void RolloutPhase::write_ahead() {
  begin_anew();
  if (!roles_.generator || stands_still_ || batches_.empty()) return;
  rollout::Generator& generator = *roles_.generator;
  const auto batches = std::ssize(batches_);
  const int64_t share = (generator.outstanding(dispatch_.lengths()) + batches - 1) / batches;
  write({.tokens = generator.counters().generated_tokens + share});
}

void RolloutPhase::work_ahead(int64_t iteration) {
  const int64_t next = iteration + 1;
  if (partial_ && !paced_) return;  // they go on where they would wait
  {
    const trace::Phase phase{"rollout", next};
    if (partial_) return write_ahead();
    draw(next);
    if (batches_.empty()) return;  // the end of the run
    write(batches_.back());
    if (!roles_.scorer || scorers_train_) return;
  }
  receive(batches_.back());
  const trace::Phase phase{"reward", next};
  score(batches_.back());
}

std::optional<Samples> RolloutPhase::finish(Batch& batch) {
  receive(batch);
  bool scored = true, leaves = false;
  {
    const trace::Phase phase{"reward", batch.iteration};
    run_.output.begin("reward", batch.iteration, iterations_);
    scored = score(batch);
    meet();
    leaves = run_.progress.agree(run_.roles.world) == comm::Then::leave;
  }
  const bool stops = leaves && !run_.roles.world.all(scored && batch.whole);
  // Taking turns, dynamic filtering makes a rollout again whose first draws it has looked at.
  const bool training = batch.prompts == &prompts_ && (run_.options.train.async_depth > 0 ||
                                                       !run_.options.algo.dynamic_filtering_enable);
  if (stops && training && (partial_ || run_.roles.world.all(batch.whole)))
    return std::nullopt;  // it stays open: stored() has what is there
  Samples samples = std::move(batch.samples);
  skipped_ = std::move(batch.skipped);
  batches_.remove_if([number = batch.number](const Batch& one) { return one.number == number; });
  if (stops) return std::nullopt;
  return samples;
}

learn::Rollout RolloutPhase::to_trainers(const Samples& samples, int64_t iteration) {
  return deliver(samples, iteration, run_.roles.rewards.all(), run_.roles.reward);
}

learn::Rollout RolloutPhase::back_to_trainers(const Samples& samples, int64_t iteration) {
  return deliver(samples, iteration, {}, run_.leads());
}

learn::Rollout RolloutPhase::deliver(const Samples& samples, int64_t iteration,
                                     const comm::CommView& holders, bool holds) {
  const trace::Phase phase{"exchange", iteration};
  const auto& options = run_.options;
  if (options.rollout.save_samples != 0) {
    report::append_sample_log(run_.roles.world,
                              {run_.folder.path() / "samples.jsonl", prompts_, tokenizer_,
                               options.rollout.save_samples, reward::source_names(options)},
                              samples, iteration);
  }
  const auto& trainers = run_.roles.map.trainer;
  const auto owners = [&](const learn::SequenceList& sequences) {
    return learn::plan_epoch(options, sequences, static_cast<int>(trainers.size()), iteration, 0)
        .owner;
  };
  if (holds) {
    const learn::SequenceList sequences = learn::Exchange(holders).list(samples);
    delivery_.send(samples, sequences, owners(sequences), holders.rank(), holders.size());
  }
  learn::Rollout rollout;
  const int me = place_among(trainers, run_.roles.world.rank());
  bool here = me < 0;
  run_.progress.until("scored sequences", [&] {
    here = here || delivery_.receive(rollout, me, owners);
    delivery_.progress();
    return here && delivery_.sent();
  });
  return rollout;
}

bool RolloutPhase::evaluate(const data::PromptSet& held_out, report::IterationMetrics& metrics) {
  const trace::Phase phase{"evaluate", metrics.iteration};
  take_back(metrics.iteration +
            1);  // they are written beside those that are evaluated, as without a restart
  std::vector<int64_t> rows(static_cast<size_t>(held_out.size()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  std::vector<uint64_t> groups;  // apart from the training prompts of the same iteration
  for (const int64_t row : rows)
    groups.push_back(group_of(request_id(metrics.iteration, (int64_t{1} << 19) + row, 0)));
  const auto& options = run_.options;
  const rollout::SamplingPlan plan{options.eval.n_samples_per_prompt, options.eval.temperature,
                                   static_cast<uint64_t>(options.run.seed)};
  Batch& open_batch = begin(metrics.iteration, groups, rows, held_out, plan);
  write(open_batch, true);
  const std::optional<Samples> samples = finish(open_batch);
  if (!samples) return false;
  learn::add_evaluation_metrics(run_.roles.world, *samples, plan.n, metrics);
  return true;
}

}  // namespace trireme::driver
