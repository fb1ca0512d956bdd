#include "torch/torch.hpp"

#include "driver/ppo_loop.hpp"

#include <algorithm>
#include <set>

#include "driver/ppo_metrics.hpp"
#include "driver/refuse.hpp"
#include "driver/sample_log.hpp"
#include "driver/side_output.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/reward/reward.hpp"
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

int64_t iterations_of(const config::Options& options, const data::PromptSampler& sampler) {
  if (options.run.iterations > 0) return options.run.iterations;
  return options.train.num_episodes * sampler.draws_per_epoch(options.rollout.batch_size);
}

// Optimizer steps of an iteration with so many sequences.
int64_t steps_of(const config::Options& options, int64_t sequences) {
  return options.train.max_epochs * ppo::optimizer_steps(sequences, options.train.batch_size);
}

int64_t schedule_steps(const config::Options& options, int64_t iterations) {
  return std::max<int64_t>(1, iterations * steps_of(options, options.sequences_per_iteration()));
}

std::optional<data::PromptSet> load_held_out(const Run& run, const text::Tokenizer& tokenizer) {
  if (run.options.eval.dataset.empty()) return std::nullopt;
  return load_prompts(run.options, run.options.eval.dataset, tokenizer, run.roles.world);
}

std::optional<PretrainingTexts> load_texts(const Run& run, const text::Tokenizer& tokenizer) {
  if (run.options.actor.ptx_coef <= 0) return std::nullopt;
  return PretrainingTexts(run.options, tokenizer, run.roles);
}

}  // namespace

PpoLoop::PpoLoop(const config::Options& options, const comm::Session& session)
    : run_(options, session, config::Command::ppo),
      tokenizer_(text::Tokenizer::load(run_.options.tokenizer_path())),
      prompts_(load_prompts(run_.options, run_.options.data.prompt_dataset, tokenizer_, run_.roles.world)),
      sampler_(make_sampler(run_.options, run_.options.data.prompt_probs, prompts_.counts())),
      iterations_(iterations_of(run_.options, sampler_)),
      held_out_(load_held_out(run_, tokenizer_)),
      texts_(load_texts(run_, tokenizer_)),
      exchange_(run_.roles.world),
      roles_(run_, tokenizer_, prompts_, schedule_steps(run_.options, iterations_)),
      control_(run_,
               {.models = roles_.saved(),
                .export_trained = [this](const std::string& name) { roles_.export_trained(name); },
                .pending_rollout = [this] { return pending_ ? to_stored(*pending_) : std::string(); }},
               iterations_) {}

Progress PpoLoop::resume_or_start() {
  roles_.load();
  auto [progress, pending, resumed] = control_.resume_or_begin(schedule_steps(run_.options, iterations_));
  if (resumed) {
    sampler_.restore(progress.sampler);
    if (texts_ && !progress.ptx_sampler.taken.empty()) texts_->restore(progress.ptx_sampler);
    if (roles_.trainer) roles_.trainer->set_schedule(progress.schedule_steps);
    if (progress.pending_bytes > 0) pending_ = from_stored(pending);
  } else {
    progress.training.kl_coefficient = run_.options.algo.kl.init_coef;
    progress.version = 1;  // the weights that the run starts from
  }
  if (run_.leads()) {
    side_output("samples.jsonl", [&] { trim_sample_log(run_.folder.path() / "samples.jsonl", progress.iteration); });
  }
  return progress;
}

ExitCode PpoLoop::run() {
  Progress progress = resume_or_start();  // collective: all ranks agree where they stand
  sync_weights(progress);                 // trainers -> generators: the weights that the first rollout samples from
  run_.starting.reset();
  while (progress.iteration < iterations_) {
    const base::Stopwatch watch;
    const int64_t iteration = progress.iteration + 1;
    trace::reset_phases();
    const trace::Region region{"iteration", iteration};
    IterationMetrics metrics;
    metrics.iteration = iteration;

    Samples samples = collect(iteration, progress);  // generators write, reward ranks score
    add_rollout_metrics(run_.roles.world, samples, reward::source_names(run_.options), run_.options.max_len(), metrics);
    Rollout rollout = to_trainers(std::move(samples), iteration);  // balanced by tokens
    // One step ahead: generators write the next batch while trainers learn from this one.
    if (run_.options.train.async_depth > 0 && iteration < iterations_) pending_ = generate(draw(iteration + 1, 0));
    progress.training = learn(std::move(rollout), progress, metrics);  // trainers
    ++progress.version;
    sync_weights(progress);  // trainers -> generators
    progress.iteration = iteration;
    progress.sampler = sampler_.state();
    if (texts_) progress.ptx_sampler = texts_->state();

    if (control_.evaluation_due(iteration)) evaluate_held_out(metrics);
    add_thread_metrics(run_.roles.world, run_.threads, roles_.trainer.get(), roles_.generator.get(), metrics);
    roles_.add_metrics(metrics);
    control_.report(metrics, progress, watch.seconds());
    if (const auto code = control_.settle(metrics, progress, watch.seconds())) return *code;  // stopped; saves when it is time
  }
  return control_.finish(progress);
}

PromptBatch PpoLoop::draw(int64_t iteration, int64_t draws_before) {
  const int64_t count = run_.options.rollout.batch_size;
  return {iteration, draws_before * count, sampler_.draw(count)};  // the same on every rank, no message
}

Samples PpoLoop::collect(int64_t iteration, Progress& progress) {
  if (pending_) {
    Samples samples = std::move(*pending_);
    pending_.reset();
    return score(std::move(samples), prompts_, iteration);
  }
  if (run_.options.algo.dynamic_filtering_enable) return collect_informative(iteration, progress.skipped_prompts);
  run_.context.begin("rollout", iteration, iterations_);
  return score(generate(draw(iteration, 0)), prompts_, iteration);
}

Samples PpoLoop::generate(const PromptBatch& batch) {
  const trace::Phase phase{"rollout", batch.iteration};
  return roles_.generator ? roles_.generator->rollout(prompts_, batch, training_plan(run_.options)) : Samples{};
}

Samples PpoLoop::score(Samples samples, const data::PromptSet& prompts, int64_t iteration) {
  {
    const trace::Phase phase{"rollout", iteration};
    run_.roles.world.sleeping_barrier();
  }
  const trace::Phase phase{"reward", iteration};
  run_.context.begin("reward", iteration, iterations_);
  samples = exchange_.spread(samples, run_.roles.map.reward);
  if (roles_.judge) roles_.judge->score(samples, prompts, iteration);
  run_.roles.world.sleeping_barrier();
  return samples;
}

Samples PpoLoop::collect_informative(int64_t iteration, int64_t& skipped) {
  Samples kept;
  std::set<uint64_t> groups;
  const auto& range = run_.options.algo.dynamic_filtering_range;
  const auto wanted = static_cast<size_t>(run_.options.rollout.batch_size);
  for (int64_t draws = 0; groups.size() < wanted; ++draws) {
    VALIDATE(draws < most_draws, ExitCode::bad_data, "dynamic filtering found only ", groups.size(), " of ", wanted,
             " prompts whose mean reward lies inside algo.dynamic_filtering_range after ", draws,
             " rollouts: the task is too easy or too hard for this model, or the range too narrow");
    run_.context.begin("rollout", iteration, iterations_);
    const Samples drawn = score(generate(draw(iteration, draws)), prompts_, iteration);
    for (const uint64_t group : informative_groups(run_.roles.world, drawn, range)) {
      if (groups.size() < wanted) groups.insert(group);
    }
    for (int64_t i = 0; i < drawn.size(); ++i) {
      if (groups.count(group_of(drawn.id[static_cast<size_t>(i)]))) kept.append(drawn, i);
    }
    skipped += run_.options.rollout.batch_size;
  }
  skipped -= static_cast<int64_t>(wanted);
  return kept;
}

Rollout PpoLoop::to_trainers(Samples samples, int64_t iteration) {
  const trace::Phase phase{"exchange", iteration};
  const auto& options = run_.options;
  if (options.rollout.save_samples != 0) {
    append_sample_log(run_.roles.world, run_.folder.path() / "samples.jsonl", samples, prompts_, tokenizer_, iteration,
                      options.rollout.save_samples);
  }
  return exchange_.to_trainers(samples, run_.roles.map.trainer, [&](const Cards& cards) {
    return Trainer::owners(options, cards, static_cast<int>(run_.roles.map.trainer.size()), iteration);
  });
}

TrainingState PpoLoop::learn(Rollout rollout, const Progress& progress, IterationMetrics& metrics) {
  const trace::Phase phase{"train", metrics.iteration};
  run_.context.begin("train", metrics.iteration, iterations_);
  UpdateSettings settings{.iteration = metrics.iteration - 1,
                          .kl_coefficient = progress.training.kl_coefficient,
                          .before_step = [this] { control_.before_step(); }};
  if (texts_) settings.pretraining = texts_->draw(steps_of(run_.options, static_cast<int64_t>(rollout.cards.size())));  // on every rank
  TrainingState state = progress.training;
  roles_.release_caches();
  if (Trainer* trainer = roles_.trainer.get()) {
    ppo::Experience experience = ppo::Experience::from(std::move(rollout.samples));
    const auto mismatch = trainer->score(experience, progress.version);  // log-probs, values
    const auto pipeline = trainer->advantages(experience, rollout.cards, settings.kl_coefficient);  // KL, returns, whitening
    const auto update = trainer->update(experience, rollout.cards, rollout.owner, settings);  // epochs, optimizer steps
    const auto kl = trainer->kl_to_reference(pipeline, update);
    add_training_metrics(run_.options, run_.roles, settings.kl_coefficient, pipeline, mismatch, update, kl, metrics);
    state = trainer->next_state(settings.kl_coefficient, kl);
  }
  run_.roles.world.sleeping_barrier();
  return share_training_state(run_.roles, metrics, state);
}

void PpoLoop::sync_weights(const Progress& progress) {
  const trace::Phase phase{"sync", progress.iteration};
  roles_.sync_weights(progress.version);
}

void PpoLoop::evaluate_held_out(IterationMetrics& metrics) {
  const trace::Phase phase{"evaluate", metrics.iteration};
  PromptBatch batch;
  batch.iteration = metrics.iteration;
  batch.first_ordinal = int64_t{1} << 19;  // apart from the training prompts of the same iteration
  for (int64_t row = 0; row < held_out_->size(); ++row) batch.rows.push_back(row);
  const auto& options = run_.options;
  const SamplingPlan plan{options.eval.n_samples_per_prompt, options.eval.temperature, static_cast<uint64_t>(options.run.seed)};
  Samples samples = roles_.generator ? roles_.generator->rollout(*held_out_, batch, plan) : Samples{};
  samples = score(std::move(samples), *held_out_, metrics.iteration);
  add_evaluation_metrics(run_.roles.world, samples, plan.n, metrics);
}

ExitCode run_ppo(const config::Options& options, const comm::Session& session) {
  refuse_unbuilt(options, config::Command::ppo);
  const kernels::Runtime kernels;
  return PpoLoop(options, session).run();
}

}  // namespace trireme::driver
