#include "torch/torch.hpp"

#include "driver/ppo_loop.hpp"

#include <algorithm>
#include <set>

#include "driver/ppo_metrics.hpp"
#include "driver/replica_check.hpp"
#include "trireme/config/refuse.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/report/sample_log.hpp"
#include "trireme/report/side_output.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/driver/commands.hpp"
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
  return learn::load_prompts(run.options, run.options.eval.dataset, tokenizer, run.roles.world);
}

Inputs inputs_of(const Run& run, const data::PromptSet& prompts) {
  if (!run.leads()) return {};
  Inputs inputs{{"data.prompt_dataset", learn::digest_of(prompts)}};
  const std::string& reference = run.options.reference.path.empty() ? run.options.model.path : run.options.reference.path;
  if (run.options.needs_reference() && std::filesystem::exists(reference)) inputs.emplace_back("reference.path", learn::digest_of_model(reference));
  return inputs;
}

std::optional<learn::PretrainingTexts> load_texts(const Run& run, const text::Tokenizer& tokenizer) {
  if (run.options.actor.ptx_coef <= 0) return std::nullopt;
  return learn::PretrainingTexts(run.options, tokenizer, run.roles.world, run.roles.trainers.batch());
}

}  // namespace

PpoLoop::PpoLoop(const config::Options& options, const comm::Session& session)
    : run_(options, session, config::Command::ppo),
      tokenizer_(text::Tokenizer::load(run_.options.tokenizer_path())),
      prompts_(learn::load_prompts(run_.options, run_.options.data.prompt_dataset, tokenizer_, run_.roles.world)),
      sampler_(learn::make_sampler(run_.options, run_.options.data.prompt_probs, prompts_.counts())),
      iterations_(iterations_of(run_.options, sampler_)),
      held_out_(load_held_out(run_, tokenizer_)),
      texts_(load_texts(run_, tokenizer_)),
      exchange_(run_.roles.world),
      roles_(run_, tokenizer_, prompts_, schedule_steps(run_.options, iterations_)),
      bad_batches_(run_.folder.path(), run_.roles.world.rank()),
      control_(run_,
               {.models = roles_.saved(),
                .export_trained = [this](const std::string& name) { roles_.export_trained(name); },
                .inputs = inputs_of(run_, prompts_),
                .pending_rollout = [this] { return pending_ ? to_stored(*pending_) : std::string(); }},
               iterations_) {}

Progress PpoLoop::resume_or_start() {
  roles_.load();
  auto [progress, parts, resumed] = control_.resume_or_begin(schedule_steps(run_.options, iterations_));
  if (resumed) {
    sampler_.restore(progress.sampler);
    if (texts_ && !progress.ptx_sampler.taken.empty()) texts_->restore(progress.ptx_sampler);
    if (roles_.trainer) roles_.trainer->set_schedule(progress.schedule_steps);
    if (progress.pending_bytes > 0) pending_ = from_stored(parts.pending);
    if (progress.unfinished_bytes > 0) unfinished_ = share_unfinished(run_.roles.world, progress.phase, parts.unfinished);
  } else {
    progress.training.kl_coefficient = run_.options.algo.kl.init_coef;
    progress.version = 1;  // the weights that the run starts from
  }
  if (run_.leads()) {
    // Behind the last optimizer step nothing writes the samples of the unfinished iteration again.
    const int64_t last = progress.phase == phase::evaluate ? progress.checkpoint_step() : progress.iteration;
    report::side_output("samples.jsonl", [&] { report::trim_sample_log(run_.folder.path() / "samples.jsonl", last); });
  }
  return progress;
}

ExitCode PpoLoop::run() {
  Progress progress = resume_or_start();  // collective: all ranks agree where they stand
  sync_weights(progress);                 // trainers -> generators: the weights that the first rollout samples from
  run_.starting.reset();
  while (control_.goes_on(progress.iteration)) {
    const base::Stopwatch watch;
    const int64_t iteration = progress.iteration + 1;
    trace::reset_phases();
    const trace::Region region{"iteration", iteration};
    IterationMetrics metrics;
    metrics.iteration = iteration;

    if (const auto code = iterate(progress, metrics)) return *code;  // stopped inside it
    progress.iteration = iteration;
    add_thread_metrics(run_.roles.world, run_.threads, roles_.trainer.get(), roles_.generator.get(), metrics);
    roles_.add_metrics(metrics);
    control_.report(metrics, progress, watch.seconds());
    if (const auto code = control_.settle(metrics, progress, watch.seconds())) return *code;  // stopped; saves when it is time
  }
  return control_.finish(progress);
}

std::optional<ExitCode> PpoLoop::iterate(Progress& progress, IterationMetrics& metrics) {
  const int64_t iteration = metrics.iteration;
  if (auto unfinished = std::exchange(unfinished_, std::nullopt)) {
    if (const auto code = finish_learning(std::move(*unfinished), progress, metrics)) return code;
  } else {
    const int64_t skipped = progress.skipped_prompts;
    std::optional<Samples> samples = collect(iteration, progress);  // generators write, reward ranks score
    if (!samples) {
      progress.skipped_prompts = skipped;
      return leave_inside(phase::reward, progress, metrics, nullptr);
    }
    add_rollout_metrics(run_.roles.world, *samples, reward::source_names(run_.options), run_.options.max_len(), metrics);
    Rollout rollout = to_trainers(*samples, iteration);  // balanced by tokens
    // One step ahead: generators write the next batch while trainers learn from this one.
    if (run_.options.train.async_depth > 0 && iteration < iterations_) pending_ = generate(draw(iteration + 1, 0));
    auto learning = begin_learning(std::move(rollout.samples), rollout.cards, progress);  // log-probs, values, advantages
    if (!learn(learning, rollout.cards, rollout.owner, progress, metrics)) {
      return leave_inside(phase::train, progress, metrics, learning ? &*learning : nullptr);
    }
  }
  sync_weights(progress);  // trainers -> generators
  if (control_.evaluation_due(iteration) && !evaluate_held_out(metrics)) return leave_inside(phase::evaluate, progress, metrics, nullptr);
  progress.sampler = sampler_.state();
  if (texts_) progress.ptx_sampler = texts_->state();
  progress.phase = phase::between;
  progress.mini_batch = 0;
  return std::nullopt;
}

std::optional<ExitCode> PpoLoop::finish_learning(Unfinished unfinished, Progress& progress, IterationMetrics& metrics) {
  metrics.values = std::move(unfinished.metrics);
  metrics.tokens = unfinished.tokens;
  if (unfinished.phase == phase::evaluate) return std::nullopt;
  Rollout rollout = to_trainers(unfinished.samples, metrics.iteration);
  std::optional<Learning> learning;
  if (roles_.trainer) {
    const comm::CommView trainers = run_.roles.trainers.all();
    learning = learning_of(unfinished, std::move(rollout.samples), trainers.rank(), trainers.size());
  }
  if (learn(learning, rollout.cards, rollout.owner, progress, metrics)) return std::nullopt;
  return leave_inside(phase::train, progress, metrics, learning ? &*learning : nullptr);
}

ExitCode PpoLoop::leave_inside(const char* phase, Progress progress, const IterationMetrics& metrics, const Learning* learning) {
  const bool before_learning = phase == std::string_view(phase::reward);
  const bool nothing = before_learning && !pending_;  // the rollout is made again
  progress.phase = nothing ? phase::between : phase;
  if (!nothing) progress.sampler = sampler_.state();
  if (texts_ && phase == std::string_view(phase::evaluate)) progress.ptx_sampler = texts_->state();
  return control_.leave_inside(progress, before_learning ? std::string() : to_stored(metrics, learning));
}

PromptBatch PpoLoop::draw(int64_t iteration, int64_t draws_before) {
  const int64_t count = run_.options.rollout.batch_size;
  return {iteration, draws_before * count, sampler_.draw(count)};  // the same on every rank, no message
}

std::optional<Samples> PpoLoop::collect(int64_t iteration, Progress& progress) {
  if (pending_) return score(std::exchange(pending_, std::nullopt), prompts_, iteration);
  if (run_.options.algo.dynamic_filtering_enable) return collect_informative(iteration, progress.skipped_prompts);
  run_.context.begin("rollout", iteration, iterations_);
  return score(generate(draw(iteration, 0)), prompts_, iteration);
}

std::optional<Samples> PpoLoop::generate(const PromptBatch& batch) {
  const trace::Phase phase{"rollout", batch.iteration};
  if (!roles_.generator) return Samples{};
  // One step ahead, the weights that it is sampled from are gone at the next optimizer step: it is brought to its end.
  const bool may_leave = run_.options.train.async_depth == 0;
  return roles_.generator->rollout(prompts_, batch, training_plan(run_.options), [&] { return may_leave && control_.stop_wanted(); });
}

std::optional<Samples> PpoLoop::score(std::optional<Samples> samples, const data::PromptSet& prompts, int64_t iteration) {
  {
    const trace::Phase phase{"rollout", iteration};
    control_.meet();
  }
  const bool training = &prompts == &prompts_;
  if (control_.agree_to_leave(run_.roles.world)) {
    const bool whole = run_.roles.world.all(samples.has_value());
    if (whole && training && !run_.options.algo.dynamic_filtering_enable) pending_ = std::move(samples);
    return std::nullopt;
  }
  const trace::Phase phase{"reward", iteration};
  run_.context.begin("reward", iteration, iterations_);
  samples = exchange_.spread(*samples, run_.roles.map.reward);
  const bool scored = !roles_.judge || roles_.judge->score(*samples, prompts, iteration);
  control_.meet();
  if (control_.agree_to_leave(run_.roles.world)) {
    if (!run_.roles.world.all(scored)) {
      if (training && !run_.options.algo.dynamic_filtering_enable) pending_ = samples->unscored();
      return std::nullopt;
    }
  }
  return samples;
}

std::optional<Samples> PpoLoop::collect_informative(int64_t iteration, int64_t& skipped) {
  Samples kept;
  std::set<uint64_t> groups;
  const auto& range = run_.options.algo.dynamic_filtering_range;
  const auto wanted = static_cast<size_t>(run_.options.rollout.batch_size);
  for (int64_t draws = 0; groups.size() < wanted; ++draws) {
    VALIDATE(draws < most_draws, ExitCode::bad_data, "dynamic filtering found only ", groups.size(), " of ", wanted,
             " prompts whose mean reward lies inside algo.dynamic_filtering_range after ", draws,
             " rollouts: the task is too easy or too hard for this model, or the range too narrow");
    run_.context.begin("rollout", iteration, iterations_);
    const std::optional<Samples> drawn = score(generate(draw(iteration, draws)), prompts_, iteration);
    if (!drawn) return std::nullopt;
    for (const uint64_t group : informative_groups(run_.roles.world, *drawn, range)) {
      if (groups.size() < wanted) groups.insert(group);
    }
    for (int64_t i = 0; i < drawn->size(); ++i) {
      if (groups.count(group_of(drawn->id[static_cast<size_t>(i)]))) kept.append(*drawn, i);
    }
    skipped += run_.options.rollout.batch_size;
  }
  skipped -= static_cast<int64_t>(wanted);
  return kept;
}

Rollout PpoLoop::to_trainers(const Samples& samples, int64_t iteration) {
  const trace::Phase phase{"exchange", iteration};
  const auto& options = run_.options;
  if (options.rollout.save_samples != 0) {
    report::append_sample_log(run_.roles.world, run_.folder.path() / "samples.jsonl", samples, prompts_, tokenizer_, iteration,
                      options.rollout.save_samples);
  }
  return exchange_.to_trainers(samples, run_.roles.map.trainer, [&](const Cards& cards) {
    return Trainer::owners(options, cards, static_cast<int>(run_.roles.map.trainer.size()), iteration);
  });
}

std::optional<Learning> PpoLoop::begin_learning(Samples samples, const Cards& cards, const Progress& progress) {
  const trace::Phase phase{"train", progress.iteration + 1};
  run_.context.begin("train", progress.iteration + 1, iterations_);
  roles_.release_caches();
  Trainer* trainer = roles_.trainer.get();
  if (!trainer) return std::nullopt;
  Learning learning;
  learning.experience = ppo::Experience::from(std::move(samples));
  learning.mismatch = trainer->score(learning.experience, progress.version);  // log-probs, values
  learning.pipeline = totals_of(trainer->advantages(learning.experience, cards, progress.training.kl_coefficient));  // KL, returns, whitening
  return learning;
}

void PpoLoop::check_replicas(Trainer& trainer, int64_t iteration) {
  const int64_t every = run_.options.train.replica_check;
  if (every == 0 || iteration % every != 0 || run_.roles.trainers.size(comm::Axis::data) == 1) return;
  require_equal_replicas(run_.roles, "actor", trainer.actor());
  if (trainer.critic()) require_equal_replicas(run_.roles, "critic", *trainer.critic());
}

bool PpoLoop::learn(std::optional<Learning>& learning, const Cards& cards, const std::vector<int>& owner, Progress& progress,
                    IterationMetrics& metrics) {
  const trace::Phase phase{"train", metrics.iteration};
  UpdateSettings settings{.iteration = metrics.iteration - 1,
                          .kl_coefficient = progress.training.kl_coefficient,
                          .before_step = [this] { control_.before_step(); },
                          .skipped = [this, iteration = metrics.iteration](const learn::UpdateStep& step, int64_t number) {
                            bad_batches_.save(step, iteration, number);
                          },
                          .stop = [this] { return control_.agree_to_leave(run_.roles.trainers.all()); }};
  if (texts_) settings.pretraining = texts_->draw(steps_of(run_.options, static_cast<int64_t>(cards.size())));  // on every rank
  TrainingState state = progress.training;
  bool finished = true;
  if (Trainer* trainer = roles_.trainer.get()) {
    learn::UpdateReport& update = learning->update;
    finished = trainer->take_steps(learning->experience, cards, owner, settings, update);  // epochs, optimizer steps
    progress.mini_batch = update.steps;
    if (finished) {
      check_replicas(*trainer, metrics.iteration);
      trainer->average(update);
      const auto kl = trainer->kl_to_reference(learning->pipeline, update);
      add_training_metrics(run_.options, run_.roles, settings.kl_coefficient, learning->pipeline, learning->mismatch, update, kl, metrics);
      state = trainer->next_state(settings.kl_coefficient, kl);
    } else {
      state = trainer->state_inside(settings.kl_coefficient);
    }
  }
  control_.meet();
  progress.training = share_training_state(run_.roles, metrics, state);
  progress.mini_batch = run_.roles.world.max(progress.mini_batch);
  if (!control_.all_finished(finished)) return false;
  ++progress.version;
  return true;
}

void PpoLoop::sync_weights(const Progress& progress) {
  const trace::Phase phase{"sync", progress.iteration};
  roles_.sync_weights(progress.version);
}

bool PpoLoop::evaluate_held_out(IterationMetrics& metrics) {
  const trace::Phase phase{"evaluate", metrics.iteration};
  PromptBatch batch;
  batch.iteration = metrics.iteration;
  batch.first_ordinal = int64_t{1} << 19;  // apart from the training prompts of the same iteration
  for (int64_t row = 0; row < held_out_->size(); ++row) batch.rows.push_back(row);
  const auto& options = run_.options;
  const SamplingPlan plan{options.eval.n_samples_per_prompt, options.eval.temperature, static_cast<uint64_t>(options.run.seed)};
  std::optional<Samples> samples = Samples{};
  if (roles_.generator) samples = roles_.generator->rollout(*held_out_, batch, plan, [this] { return control_.stop_wanted(); });
  samples = score(std::move(samples), *held_out_, metrics.iteration);
  if (!samples) return false;
  add_evaluation_metrics(run_.roles.world, *samples, plan.n, metrics);
  return true;
}

ExitCode run_ppo(const config::Options& options, const comm::Session& session) {
  config::refuse_unbuilt(options, config::Command::ppo);
  return PpoLoop(options, session).run();
}

}  // namespace trireme::driver
