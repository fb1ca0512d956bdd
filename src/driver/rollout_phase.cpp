#include "torch/torch.hpp"

#include "driver/rollout_phase.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "trireme/learn/iteration_numbers.hpp"
#include "trireme/base/error.hpp"
#include "trireme/report/sample_log.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

// Rollouts that dynamic filtering may draw for one iteration before it gives up.
constexpr int64_t most_draws = 64;

SamplingPlan training_plan(const config::Options& options) {
  return {.n = options.rollout.n_samples_per_prompt,
          .temperature = options.rollout.temperature,
          .seed = static_cast<uint64_t>(options.run.seed)};
}

comm::MailLimits limits_of(const config::Options& options) { return {options.rollout.queue_messages, options.rollout.queue_bytes.count}; }

// The place of `rank` among `ranks`; -1: it is none of them.
int place_among(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

bool share_a_rank(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int rank) { return place_among(b, rank) >= 0; });
}

}  // namespace

RolloutPhase::RolloutPhase(Run& run, PpoRoles& roles, RunControl& control, const text::Tokenizer& tokenizer, const data::PromptSet& prompts,
                           data::PromptSampler& sampler, int64_t iterations)
    : run_(run), roles_(roles), control_(control), tokenizer_(tokenizer), prompts_(prompts), sampler_(sampler), iterations_(iterations),
      judges_train_(share_a_rank(run.roles.map.reward, run.roles.map.trainer)),
      written_(run.roles.world, "finished sequences", limits_of(run.options)),
      delivery_(run.roles.world, run.roles.map.trainer, limits_of(run.options)) {}

PromptBatch RolloutPhase::draw(int64_t iteration, int64_t draws_before) {
  const int64_t count = run_.options.rollout.batch_size;
  return {iteration, draws_before * count, sampler_.draw(count)};  // the same on every rank, no message
}

void RolloutPhase::open(int64_t iteration, const data::PromptSet& prompts, int64_t sequences) {
  const auto& judges = run_.roles.map.reward;
  const int64_t place = place_among(judges, run_.roles.world.rank());
  const auto count = static_cast<int64_t>(judges.size());
  batch_ = Batch{.iteration = iteration, .prompts = &prompts, .expected = place < 0 ? 0 : (sequences - place + count - 1) / count, .samples = {}};
}

void RolloutPhase::post(const Samples& sequence, int64_t place) {
  const auto& judges = run_.roles.map.reward;
  written_.post(judges[static_cast<size_t>(place) % judges.size()], {sequence, false});
}

void RolloutPhase::poll() {
  // What comes behind a complete batch belongs to the next one.
  while (batch_ && (!batch_->complete() || !batch_->whole)) {
    const auto written = written_.take();
    if (!written) break;
    if (written->left) {
      batch_->whole = false;
      continue;
    }
    roles_.judge->ask(written->samples, *batch_->prompts, batch_->iteration);
    batch_->samples.append(written->samples);
  }
  written_.progress();
  if (roles_.judge) roles_.judge->poll();
}

void RolloutPhase::write(const PromptBatch& prompt_batch, const data::PromptSet& prompts, const SamplingPlan& plan, bool may_leave) {
  open(prompt_batch.iteration, prompts, static_cast<int64_t>(prompt_batch.rows.size()) * plan.n);
  if (!roles_.generator) return;
  const auto pace = [&] {
    poll();
    if (may_leave && control_.stop_wanted()) return Pace::leave;
    return written_.congested() ? Pace::wait : Pace::go;
  };
  const auto written = [&](const Samples& sequence, int64_t place) { post(sequence, place); };
  const bool whole = roles_.generator->rollout(prompts, prompt_batch, plan, {.written = written, .pace = pace});
  trace::count("sequences_received_while_writing", batch_->samples.size());
  if (whole) return;
  batch_->whole = false;
  if (!run_.roles.leads_replica()) return;
  for (const int judge : run_.roles.map.reward) written_.post(judge, {.samples = {}, .left = true});
}

void RolloutPhase::write(const PromptBatch& prompt_batch) {
  const trace::Phase phase{"rollout", prompt_batch.iteration};
  // One step ahead, the weights that it is sampled from are gone at the next optimizer step: it is brought to its end.
  write(prompt_batch, prompts_, training_plan(run_.options), run_.options.train.async_depth == 0);
}

void RolloutPhase::begin_ahead(int64_t iteration) {
  write(draw(iteration, 0));
  if (!roles_.judge || judges_train_) return;
  {
    const trace::Phase phase{"rollout", iteration};
    control_.wait("sequences to score", [&] { return poll(), batch_->complete(); });
  }
  const trace::Phase phase{"reward", iteration};
  score(*batch_);
}

bool RolloutPhase::score(Batch& batch) {
  if (!roles_.judge || batch.scored) return true;
  const comm::CommView judges = run_.roles.rewards.all();
  judges.sleeping_barrier([this] { poll(); });  // one that writes too may still have something for the others
  if (!judges.all(batch.complete())) {
    batch.whole = false;
    return false;
  }
  run_.threads.reward.use();
  if (!roles_.judge->score_locally(batch.samples, *batch.prompts, batch.iteration)) return false;
  std::vector<int> all(static_cast<size_t>(judges.size()));
  std::iota(all.begin(), all.end(), 0);
  batch.samples = learn::Exchange(judges).spread(batch.samples, all);  // models compute on tokens, which are even now
  roles_.judge->score_with_models(batch.samples, *batch.prompts, batch.iteration);
  batch.expected = batch.samples.size();
  batch.scored = true;
  return true;
}

std::optional<Samples> RolloutPhase::finish() {
  Batch& batch = *batch_;
  {
    const trace::Phase phase{"rollout", batch.iteration};
    control_.wait("sequences to score", [&] { return poll(), !batch.whole || (batch.complete() && written_.quiet()); });
  }
  bool scored = true, leaves = false;
  {
    const trace::Phase phase{"reward", batch.iteration};
    run_.context.begin("reward", batch.iteration, iterations_);
    scored = score(batch);
    control_.meet([this] { poll(); });
    leaves = control_.agree_to_leave(run_.roles.world);
  }
  const bool stops = leaves && !run_.roles.world.all(scored && batch.whole);
  const bool training = batch.prompts == &prompts_ && !run_.options.algo.dynamic_filtering_enable;
  if (stops && run_.roles.world.all(batch.whole) && training) pending_ = batch.samples.unscored();
  Samples samples = std::move(batch.samples);
  batch_.reset();
  if (stops) return std::nullopt;
  return samples;
}

std::optional<Samples> RolloutPhase::collect(int64_t iteration, Progress& progress) {
  if (const auto samples = std::exchange(pending_, std::nullopt)) {
    open(iteration, prompts_, run_.roles.world.sum(samples->size()));
    for (int64_t i = 0; i < samples->size(); ++i) {
      Samples one;
      one.append(*samples, i);
      post(one, i);
    }
  } else if (run_.options.algo.dynamic_filtering_enable) {
    return collect_informative(iteration, progress.skipped_prompts);
  } else if (!batch_) {
    run_.context.begin("rollout", iteration, iterations_);
    write(draw(iteration, 0));
  }
  return finish();
}

std::optional<Samples> RolloutPhase::collect_informative(int64_t iteration, int64_t& skipped) {
  Samples kept;
  std::set<uint64_t> groups;
  const auto& range = run_.options.algo.dynamic_filtering_range;
  const auto wanted = static_cast<size_t>(run_.options.rollout.batch_size);
  for (int64_t draws = 0; groups.size() < wanted; ++draws) {
    VALIDATE(draws < most_draws, ExitCode::bad_data, "dynamic filtering found only ", groups.size(), " of ", wanted,
             " prompts whose mean reward lies inside algo.dynamic_filtering_range after ", draws,
             " rollouts: the task is too easy or too hard for this model, or the range too narrow");
    run_.context.begin("rollout", iteration, iterations_);
    write(draw(iteration, draws));
    const std::optional<Samples> drawn = finish();
    if (!drawn) return std::nullopt;
    for (const uint64_t group : learn::informative_groups(run_.roles.world, *drawn, range)) {
      if (groups.size() < wanted) groups.insert(group);
    }
    for (int64_t i = 0; i < drawn->size(); ++i) {
      if (groups.count(learn::group_of(drawn->id[static_cast<size_t>(i)]))) kept.append(*drawn, i);
    }
    skipped += run_.options.rollout.batch_size;
  }
  skipped -= static_cast<int64_t>(wanted);
  return kept;
}

learn::Rollout RolloutPhase::to_trainers(const Samples& samples, int64_t iteration) {
  return deliver(samples, iteration, run_.roles.rewards.all(), run_.roles.reward);
}

learn::Rollout RolloutPhase::back_to_trainers(const Samples& samples, int64_t iteration) {
  return deliver(samples, iteration, {}, run_.leads());
}

learn::Rollout RolloutPhase::deliver(const Samples& samples, int64_t iteration, const comm::CommView& holders, bool holds) {
  const trace::Phase phase{"exchange", iteration};
  const auto& options = run_.options;
  if (options.rollout.save_samples != 0) {
    report::append_sample_log(run_.roles.world, run_.folder.path() / "samples.jsonl", samples, prompts_, tokenizer_, iteration,
                              options.rollout.save_samples);
  }
  const auto& trainers = run_.roles.map.trainer;
  const auto owners = [&](const learn::Cards& cards) { return Trainer::owners(options, cards, static_cast<int>(trainers.size()), iteration); };
  if (holds) {
    const learn::Cards cards = learn::Exchange(holders).cards(samples);
    delivery_.send(samples, cards, owners(cards), holders.rank(), holders.size());
  }
  learn::Rollout rollout;
  const int me = place_among(trainers, run_.roles.world.rank());
  bool here = me < 0;
  control_.wait("scored sequences", [&] {
    here = here || delivery_.receive(rollout, me, owners);
    delivery_.progress();
    return here && delivery_.sent();
  });
  return rollout;
}

void RolloutPhase::receive_all() {
  control_.wait("sequences of the next rollout", [&] { return poll(), batch_->complete() && written_.quiet(); });
}

std::string RolloutPhase::stored() {
  if (pending_) return learn::to_stored(*pending_);
  if (!batch_) return {};
  receive_all();
  return learn::to_stored(batch_->samples.unscored());
}

bool RolloutPhase::evaluate(const data::PromptSet& held_out, report::IterationMetrics& metrics) {
  const trace::Phase phase{"evaluate", metrics.iteration};
  if (batch_) receive_all();  // the next rollout, which is not for now
  std::optional<Batch> ahead = std::exchange(batch_, std::nullopt);
  PromptBatch batch;
  batch.iteration = metrics.iteration;
  batch.first_ordinal = int64_t{1} << 19;  // apart from the training prompts of the same iteration
  for (int64_t row = 0; row < held_out.size(); ++row) batch.rows.push_back(row);
  const auto& options = run_.options;
  const SamplingPlan plan{options.eval.n_samples_per_prompt, options.eval.temperature, static_cast<uint64_t>(options.run.seed)};
  write(batch, held_out, plan, true);
  const std::optional<Samples> samples = finish();
  batch_ = std::move(ahead);
  if (!samples) return false;
  learn::add_evaluation_metrics(run_.roles.world, *samples, plan.n, metrics);
  return true;
}

}  // namespace trireme::driver
