#include "torch/torch.hpp"

#include "driver/ppo_loop.hpp"

#include <algorithm>

#include "driver/reference_sync.hpp"
#include "driver/role_metrics.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/learn/iteration_numbers.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/report/sample_log.hpp"
#include "trireme/report/side_output.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

int64_t iterations_of(const config::Options& options, const data::PromptSampler& sampler) {
  if (options.run.iterations > 0) return options.run.iterations;
  return options.train.num_episodes * sampler.draws_per_epoch(options.rollout.batch_size);
}

// Optimizer steps of an iteration with so many sequences.
int64_t steps_of(const config::Options& options, int64_t sequences) {
  return options.train.max_epochs * ppo::optimizer_steps(sequences, options.train.batch_size);
}

// Versions that a token may be older than the trainers' weights: what dynamic filtering has left
// over waits for one iteration.
int64_t oldest_age(const config::Options& options) {
  return options.train.async_depth + (options.algo.dynamic_filtering_enable ? 1 : 0);
}

int64_t schedule_steps(const config::Options& options, int64_t iterations) {
  return std::max<int64_t>(1, iterations * steps_of(options, options.sequences_per_iteration()));
}

learn::Inputs inputs_of(const Run& run, const text::Tokenizer& tokenizer, const PpoRoles& roles,
                        const data::PromptSet& prompts,
                        const std::optional<learn::PretrainingTexts>& texts) {
  if (!run.leads()) return {};
  learn::Inputs inputs =
      learn::common_inputs(run.options, run.command, tokenizer, roles.actor_start.spec,
                           roles.critic_start ? &roles.critic_start->spec : nullptr);
  // The checkpoint has the critic's weights.
  if (roles.critic_start && !run.options.critic.path.empty())
    inputs.emplace_back("critic.path", learn::digest_of(roles.critic_start->spec.shape));
  inputs.emplace_back("data.prompt_dataset", learn::digest_of(prompts));
  inputs.emplace_back(
      "data.prompt_dataset.fields",
      learn::digest_of_fields(prompts));  // ckpt.allow_changes = "data.prompt_dataset" is for both
  if (texts) inputs.emplace_back("data.pretrain_dataset", learn::digest_of(texts->rows()));
  return inputs;
}

std::optional<learn::PretrainingTexts> load_texts(const Run& run,
                                                  const text::Tokenizer& tokenizer) {
  if (run.options.actor.ptx_coef <= 0) return std::nullopt;
  return learn::PretrainingTexts(run.options, tokenizer, run.roles.world,
                                 run.roles.trainers.batch());
}

}  // namespace

PpoLoop::PpoLoop(const config::Options& options, const comm::Session& session)
    : run_(options, session, config::Command::ppo),
      tokenizer_(learn::load_same_tokenizer(run_.roles.world, run_.options)),
      prompts_(reward::load_prompts(run_.options, run_.options.data.prompt_dataset, tokenizer_,
                                    run_.roles.world)),
      sampler_(
          learn::make_sampler(run_.options, run_.options.data.prompt_probs, prompts_.counts())),
      iterations_(iterations_of(run_.options, sampler_)),
      held_out_(reward::load_held_out(run_.options, prompts_, tokenizer_, run_.roles.world)),
      pretraining_(load_texts(run_, tokenizer_)),
      roles_(run_, tokenizer_, prompts_, held_out_, iterations_,
             schedule_steps(run_.options, iterations_)),
      rollouts_(run_, roles_, tokenizer_, prompts_, sampler_, iterations_),
      bad_batches_(run_.folder.path(), run_.roles.world.rank()),
      control_(run_,
               {.models = roles_.saved(),
                .export_trained = [this](const std::string& name) { roles_.export_trained(name); },
                .inputs = inputs_of(run_, tokenizer_, roles_, prompts_, pretraining_),
                .rollouts = [this] { return rollouts_.stored(); }},
               iterations_) {}

RunState PpoLoop::resume_or_start() {
  roles_.load();
  auto [state, parts, resumed] =
      control_.resume_or_begin(schedule_steps(run_.options, iterations_));
  if (resumed) {
    sampler_.restore(state.sampler);
    if (pretraining_ && !state.ptx_sampler.taken.empty()) pretraining_->restore(state.ptx_sampler);
    if (roles_.trainer) roles_.trainer->set_schedule(state.schedule_steps);
    rollouts_.restore(parts, state);
    restore_reference(roles_, state.iteration);
    if (state.unfinished_bytes > 0)
      unfinished_ = learn::share_unfinished(run_.roles.world, state.phase, parts.unfinished);
  } else {
    state.training.kl_coefficient = run_.options.algo.kl.init_coef;
    state.version = 1;                 // the weights that the run starts from
    state.sampler = sampler_.state();  // a stop inside the first iteration saves it
    if (pretraining_) state.ptx_sampler = pretraining_->state();
  }
  if (run_.leads()) {
    // Behind the last optimizer step nothing writes the samples of the unfinished iteration again.
    const int64_t last = state.phase == phase::evaluate ? state.checkpoint_step() : state.iteration;
    report::side_output("samples.jsonl", [&] {
      report::trim_sample_log(run_.folder.path() / "samples.jsonl", last);
    });
  }
  return state;
}

ExitCode PpoLoop::run() {
  RunState state = resume_or_start();  // collective: all ranks agree where they stand
  sync_weights(state);  // trainers -> generators: the weights that the first rollout samples from
  run_.starting.reset();
  while (run_.policy.goes_on(state)) {
    const base::Stopwatch watch;
    const int64_t iteration = state.iteration + 1;
    run_.policy.begins(iteration);
    trace::reset_phases();
    const trace::Region region{"iteration", iteration};
    report::IterationMetrics metrics;
    metrics.iteration = iteration;
    if (const auto code = iterate(state, metrics)) return *code;  // stopped inside it
    state.iteration = iteration;
    metrics.epoch = sampler_.epochs_drawn();
    roles_.add_metrics(metrics);
    control_.report(metrics, state, watch.seconds());
    if (const auto code = control_.end_iteration(state, watch.seconds()))
      return *code;  // stopped; saves when it is time
  }
  return control_.finish(state);
}

std::optional<ExitCode> PpoLoop::iterate(RunState& state, report::IterationMetrics& metrics) {
  const int64_t iteration = metrics.iteration;
  run_.output.begin(unfinished_ ? unfinished_->phase.c_str() : "rollout", iteration, iterations_);
  if (auto unfinished = std::exchange(unfinished_, std::nullopt)) {
    if (const auto code = finish_learning(std::move(*unfinished), state, metrics)) return code;
  } else {
    state.outcome = {};
    std::optional<Samples> samples =
        rollouts_.collect(state, metrics);  // generators write, reward ranks score what is finished
    if (!samples) return leave_inside(phase::reward, state, metrics, nullptr);
    {
      const trace::Phase phase{"report", iteration};
      state.outcome.curve =
          learn::add_rollout_metrics(run_.roles.world, *samples, reward::source_names(run_.options),
                                     run_.options.max_len(), metrics);
      learn::add_staleness(run_.roles.world, *samples, state.version, oldest_age(run_.options),
                           metrics);
    }
    learn::Rollout rollout = rollouts_.to_trainers(*samples, iteration);  // balanced by tokens
    if (run_.options.train.async_depth > 0)
      rollouts_.work_ahead(iteration);  // generators and reward ranks work while trainers learn
    auto learning = begin_learning(std::move(rollout.samples), rollout.sequences,
                                   state);  // log-probs, values, advantages
    if (learn(learning, rollout.sequences, state, metrics) == comm::Then::leave) {
      const bool scored = run_.roles.world.all(!learning || !learning->left);
      if (!scored) rollouts_.take_from_trainers(*samples, iteration);
      return leave_inside(scored ? phase::train : phase::reward, state, metrics,
                          scored && learning ? &*learning : nullptr);
    }
  }
  sync_weights(state);  // trainers -> generators
  sync_reference(roles_, iteration);
  if (run_.policy.evaluates(iteration)) {
    if (!rollouts_.evaluate(*held_out_, metrics))
      return leave_inside(phase::evaluate, state, metrics, nullptr);
    state.outcome.judged = judged_value(run_.options.ckpt, metrics.values);
  }
  state.sampler = sampler_.state();
  rollouts_.remember(state);
  if (pretraining_) state.ptx_sampler = pretraining_->state();
  state.phase = phase::between;
  state.mini_batch = 0;
  return std::nullopt;
}

std::optional<ExitCode> PpoLoop::finish_learning(learn::Unfinished unfinished, RunState& state,
                                                 report::IterationMetrics& metrics) {
  metrics.values = std::move(unfinished.metrics);
  metrics.tokens = unfinished.tokens;
  VALIDATE(state.outcome.curve, ExitCode::bad_data, "the checkpoint was saved inside iteration ",
           metrics.iteration,
           " by an older Trireme, which stored less of it: finish that iteration with the older "
           "program, or name an earlier checkpoint in ckpt.resume");
  if (unfinished.phase == phase::evaluate) return std::nullopt;
  roles_.release_caches();
  learn::Rollout rollout = rollouts_.back_to_trainers(unfinished.samples, metrics.iteration);
  std::optional<learn::Learning> learning;
  if (roles_.trainer) {
    const comm::CommView trainers = run_.roles.trainers.all();
    learning = learn::learning_of(unfinished, std::move(rollout.samples), trainers.rank(),
                                  trainers.size());
  }
  if (learn(learning, rollout.sequences, state, metrics) == comm::Then::go_on) return std::nullopt;
  return leave_inside(phase::train, state, metrics, learning ? &*learning : nullptr);
}

ExitCode PpoLoop::leave_inside(const char* phase, RunState state,
                               const report::IterationMetrics& metrics,
                               const learn::Learning* learning) {
  const bool before_learning = phase == std::string_view(phase::reward);
  const bool nothing = before_learning && !rollouts_.waiting();  // the rollout is made again
  state.phase = nothing ? phase::between : phase;
  if (!nothing) {
    state.sampler = sampler_.state();
    rollouts_.remember(state);
  }
  if (pretraining_ && phase == std::string_view(phase::evaluate))
    state.ptx_sampler = pretraining_->state();
  return control_.leave_inside(
      state, before_learning ? std::string() : learn::to_stored(metrics, learning));
}

std::optional<learn::Learning> PpoLoop::begin_learning(Samples samples,
                                                       const learn::SequenceList& sequences,
                                                       const RunState& state) {
  const trace::Phase phase{"train", state.iteration + 1};
  run_.output.begin("train", state.iteration + 1, iterations_);
  roles_.release_caches();
  learn::Trainer* trainer = roles_.trainer.get();
  if (!trainer) return std::nullopt;
  learn::Learning learning;
  learning.experience = ppo::Experience::from(std::move(samples));
  const auto may = rollouts_.can_take_from_trainers() ? comm::May::leave : comm::May::stay;
  const auto mismatch =
      trainer->score(learning.experience, state.version, &run_.progress, may);  // + values
  learning.left = !mismatch;
  if (learning.left) return learning;
  learning.mismatch = *mismatch;
  learning.pipeline = learn::totals_of(trainer->advantages(
      learning.experience, sequences, state.training.kl_coefficient));  // KL, returns, whitening
  if (const auto bound = run_.options.algo.advantage.mask_older_than) {
    learning.pipeline.masked_tokens =
        static_cast<double>(ppo::mask_older_than(learning.experience, *bound, state.version));
  }
  if (run_.options.algo.advantage.mask_truncated)
    learning.pipeline.masked_tokens +=
        static_cast<double>(ppo::mask_truncated(learning.experience));
  return learning;
}

comm::Then PpoLoop::learn(std::optional<learn::Learning>& learning,
                          const learn::SequenceList& sequences, RunState& state,
                          report::IterationMetrics& metrics) {
  const trace::Phase phase{"train", metrics.iteration};
  learn::UpdateSettings settings{.iteration = metrics.iteration - 1,
                                 .kl_coefficient = state.training.kl_coefficient,
                                 .progress = &run_.progress,
                                 .bad_batches = &bad_batches_};
  rollouts_.weights_change(roles_.trainer != nullptr);
  if (pretraining_)
    rollouts_.meet();  // generators that still write need the others to take it, not to sum
  if (pretraining_)
    settings.pretraining = pretraining_->draw(
        steps_of(run_.options, run_.roles.world.max(std::ssize(sequences))));  // on every rank
  learn::TrainingState training = state.training;
  comm::Then then = comm::Then::go_on;
  if (learn::Trainer* trainer = roles_.trainer.get()) {
    learn::UpdateReport& update = learning->update;
    then = learning->left ? comm::Then::leave
                          : trainer->take_steps(learning->experience, sequences, settings,
                                                update);  // epochs, optimizer steps
    state.mini_batch = update.steps;
    if (then == comm::Then::go_on) {
      roles_.check_replicas(metrics.iteration);
      trainer->average(update);
      const auto kl = trainer->kl_to_reference(learning->pipeline, update);
      learn::add_training_metrics(run_.options, run_.roles.trainers.batch(),
                                  settings.kl_coefficient, *learning, kl, metrics);
      training = trainer->next_state(settings.kl_coefficient, kl);
      state.outcome.kl = kl;
      if (run_.options.actor.entropy_coef) state.outcome.entropy = update.entropy;
    } else {
      training = trainer->state_inside(settings.kl_coefficient);
    }
  }
  rollouts_.meet();
  state.training = share_training_state(run_.roles, metrics, training, state.outcome);
  state.mini_batch = run_.roles.world.max(state.mini_batch);
  if (run_.progress.any(run_.roles.world, then) == comm::Then::leave) return comm::Then::leave;
  ++state.version;
  return comm::Then::go_on;
}

void PpoLoop::sync_weights(const RunState& state) {
  const trace::Phase phase{"sync", state.iteration};
  roles_.sync_weights(state.version);
  rollouts_.weights_change(false);
}

ExitCode run_ppo(const config::Options& options, const comm::Session& session) {
  return PpoLoop(options, session).run();
}

}  // namespace trireme::driver
