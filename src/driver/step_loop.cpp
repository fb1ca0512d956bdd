#include "torch/torch.hpp"

#include "driver/step_loop.hpp"

#include <algorithm>
#include <numeric>

#include "driver/role_metrics.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/iteration_numbers.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/learn/sharded_models.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/machine/start_log.hpp"
#include "trireme/report/exports.hpp"

namespace trireme::driver {
namespace {

// Rewards that are all the same must not be divided by 0 (OpenRLHF: RewardModelTrainer.evaluate).
constexpr double smallest_deviation = 1e-8;

int64_t steps_of(const config::Options& options, const data::PromptSampler& sampler) {
  if (options.run.iterations > 0) return options.run.iterations;
  return options.train.max_epochs * sampler.draws_per_epoch(options.train.batch_size);
}

std::optional<learn::TrainingSet> load_held_out(const Run& run, const text::Tokenizer& tokenizer) {
  if (run.options.eval.dataset.empty()) return std::nullopt;
  return learn::load_training(run.options, run.options.eval.dataset, run.command, tokenizer,
                              run.roles.world);
}

learn::Inputs inputs_of(const Run& run, const text::Tokenizer& tokenizer,
                        const learn::ModelStart& start, const learn::TrainingSet& rows) {
  if (!run.leads()) return {};
  learn::Inputs inputs =
      learn::common_inputs(run.options, run.command, tokenizer, start.spec, nullptr);
  inputs.emplace_back("data.dataset", learn::digest_of(rows));
  return inputs;
}

}  // namespace

StepLoop::StepLoop(const config::Options& options, const comm::Session& session,
                   config::Command command)
    : run_(options, session, command),
      tokenizer_(learn::load_same_tokenizer(run_.roles.world, run_.options)),
      rows_(learn::load_training(run_.options, run_.options.data.dataset, command, tokenizer_,
                                 run_.roles.world)),
      sampler_(learn::make_sampler(run_.options, run_.options.data.dataset_probs, rows_.counts())),
      start_(learn::trained_start(run_.options, model::trained_head(command))),
      kept_files_(learn::files_for_exports(run_.options, run_.roles.world)),
      iterations_(steps_of(run_.options, sampler_)),
      held_out_(load_held_out(run_, tokenizer_)),
      objective_(make_objective()),
      model_(make_model()),
      rate_(std::make_unique<zero::LearningRate>(run_.options.actor, iterations_)),
      control_(run_,
               {.models = {{"actor", &start_.spec, model_.get(), run_.options.train.enable_ema}},
                .export_trained = [this](const std::string& name) { export_trained(name); },
                .inputs = inputs_of(run_, tokenizer_, start_, rows_)},
               iterations_) {}

std::unique_ptr<learn::Objective> StepLoop::make_objective() {
  tokenizer_.check_model(start_.spec.shape.vocab);
  machine::use_device(run_.device, run_.options.train.deterministic, run_.roles.world);
  run_.memory.admit(
      run_.options,
      {.command = run_.command,
       .actor = start_.spec,
       .critic = std::nullopt,
       .length = {.iterations = iterations_,
                  .evaluated = held_out_ ? held_out_->size() : 0,
                  .longest = std::max(rows_.longest(), held_out_ ? held_out_->longest() : 0)}},
      run_.roles, run_.device);
  if (!config::has_reference_model(run_.options, run_.command))
    return learn::make_objective(run_.options, run_.command, nullptr);
  const learn::ModelStart start = learn::reference_start(run_.options, start_);
  auto reference = learn::make_reference(run_.options, run_.roles, start, run_.device);
  reference_ = reference.get();
  return learn::make_objective(run_.options, run_.command, std::move(reference));
}

std::unique_ptr<zero::ShardedModel> StepLoop::make_model() const {
  return learn::make_sharded(
      run_.roles.trainers, start_.spec, run_.device,
      learn::trained_options(run_.options, run_.roles, start_.spec, run_.memory));
}

RunState StepLoop::resume_or_start() {
  const auto& options = run_.options;
  model_->load(start_.reader());
  machine::log_device_links("trainers", run_.roles.trainers.along(comm::Axis::shard),
                            run_.roles.world, run_.device);
  if (options.train.enable_ema) model_->enable_average(options.train.ema_beta);
  auto start = control_.resume_or_begin(iterations_);
  finished_ = start.state.iteration;
  if (start.resumed) {
    sampler_.restore(start.state.sampler);
    rate_ = std::make_unique<zero::LearningRate>(options.actor, start.state.schedule_steps);
  }
  return start.state;
}

ExitCode StepLoop::run() {
  RunState state = resume_or_start();
  run_.starting.reset();
  while (run_.policy.goes_on(state)) {
    const base::Stopwatch watch;
    const int64_t iteration = state.iteration + 1;
    run_.policy.begins(iteration);
    trace::reset_phases();
    const trace::Region region{"iteration", iteration};
    run_.output.begin("train", iteration, iterations_);
    report::IterationMetrics metrics;
    metrics.iteration = iteration;
    machine::ThreadMeter meter;
    meter.start();
    // The same rows on every rank, no message.
    state.outcome = train(sampler_.draw(run_.options.train.batch_size), metrics);
    meter.stop();
    add_thread_metrics(meter.worked(), metrics);
    metrics.epoch = sampler_.epochs_drawn();
    state.sampler = sampler_.state();
    state.iteration = finished_ = iteration;
    state.training.actor_steps = model_->steps();
    if (run_.policy.evaluates(iteration)) {
      evaluate_held_out(metrics);
      state.outcome.judged = judged_value(run_.options.ckpt, metrics.values);
    }
    std::vector<ModelMemory> models{{"actor", model_->memory()}};
    if (reference_) models.emplace_back("reference", reference_->memory());
    add_memory_metrics(run_.roles, std::move(models), nullptr, metrics);
    control_.report(metrics, state, watch.seconds());
    if (const auto code = control_.end_iteration(state, watch.seconds())) return *code;
  }
  return control_.finish(state);
}

void StepLoop::add_thread_metrics(int worked, report::IterationMetrics& metrics) const {
  metrics.threads["trainer"] = run_.roles.world.min(int64_t{run_.threads.trainer.count});
  const int64_t fewest = run_.roles.world.min(int64_t{worked});
  if (fewest > 0) metrics.threads["trainer_worked"] = fewest;
}

Outcome StepLoop::train(const std::vector<int64_t>& rows, report::IterationMetrics& metrics) {
  const trace::Phase phase{"train", metrics.iteration};
  const auto batches = learn::share_out(rows_, rows, run_.roles.trainers.batch(),
                                        run_.options.train.micro_batch_tokens);
  const learn::BatchTotals totals = learn::totals_of(batches, run_.roles.trainers.batch());
  learn::DeviceSums sums(std::ssize(objective_->quantities()));
  objective_->begin_step({*model_, batches, run_.roles.trainers.batch(), run_.device});
  for (size_t number = 0; number < batches.size(); ++number) {
    const learn::RowBatch& part = batches[number];
    const learn::ActionBatch batch = learn::make_action_batch(part.samples, run_.device);
    objective_->prepare(*model_, batch);
    model_->forward_backward(
        batch.packed,
        [&](const at::Tensor& hidden, const kernels::HeadWeight& head_weight) {
          return objective_->loss({hidden, head_weight, batch, part, number, totals}, sums);
        },
        zero::reduce_before(static_cast<int64_t>(batches.size() - number) - 1));
  }
  const double rate = rate_->at_or_last(model_->steps());
  const auto result = model_->step(learn::adamw_options(run_.options.actor, rate));
  std::vector<double> means = sums.read();
  learn::sum_over(run_.roles.trainers.batch(), means);
  Outcome outcome;
  for (const auto& [name, value] : objective_->metrics(means, totals)) {
    metrics.set(name, value);
    if (name == "loss") outcome.curve = value;
    if (name == "kl") outcome.kl = value;
  }
  metrics.set("grad_norm", result.grad_norm);
  metrics.set("lr", rate);
  metrics.set("target_tokens", totals.targets);
  metrics.tokens = static_cast<int64_t>(totals.tokens);
  if (!result.updated) bad_batches_.save(batches, metrics.iteration);
  skips_.count("model", result, run_.roles.world.rank() == 0);
  return outcome;
}

void StepLoop::evaluate_held_out(report::IterationMetrics& metrics) {
  const trace::Phase phase{"evaluate", metrics.iteration};
  run_.output.begin("evaluate", metrics.iteration, iterations_);
  std::vector<int64_t> rows(static_cast<size_t>(held_out_->size()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  const auto batches = learn::share_out(*held_out_, rows, run_.roles.trainers.batch(),
                                        run_.options.train.micro_batch_tokens);
  const learn::BatchTotals totals = learn::totals_of(batches, run_.roles.trainers.batch());
  learn::DeviceSums sums(std::ssize(objective_->quantities()));
  objective_->begin_step({*model_, batches, run_.roles.trainers.batch(), run_.device});
  for (size_t number = 0; number < batches.size(); ++number) {
    const learn::RowBatch& part = batches[number];
    const learn::ActionBatch batch = learn::make_action_batch(part.samples, run_.device);
    objective_->prepare(*model_, batch);
    model_->forward(batch.packed,
                    [&](const at::Tensor& hidden, const kernels::HeadWeight& head_weight) {
                      objective_->loss({hidden, head_weight, batch, part, number, totals}, sums);
                    });
  }
  std::vector<double> means = sums.read();
  learn::sum_over(run_.roles.trainers.batch(), means);
  for (const auto& [name, value] : objective_->metrics(means, totals))
    metrics.set("eval_" + name, value);
  if (const auto moments = objective_->reward_moments(means, totals)) {
    reward_scale_ = {finished_, moments->mean, std::max(moments->deviation, smallest_deviation)};
  }
}

void StepLoop::export_trained(const std::string& name) {
  learn::ModelStart start = start_;
  if (run_.command == config::Command::rm && held_out_) {
    if (reward_scale_.iteration != finished_) {
      report::IterationMetrics unreported;
      unreported.iteration = finished_;
      evaluate_held_out(unreported);
    }
    start.spec.shape.score_mean = reward_scale_.mean;  // for reward.normalize_enable (F5)
    start.spec.shape.score_std = reward_scale_.deviation;
  }
  const model::ModelExport::Options how{.type = run_.export_type(start.spec), .kept = kept_files_};
  learn::export_model(run_.roles, start, model_.get(), run_.folder.path() / name, how);
  if (run_.options.train.enable_ema) {
    learn::export_model(run_.roles, start, model_.get(),
                        run_.folder.path() / (name + report::ema_suffix), how,
                        learn::Weights::average);
  }
}

namespace {

ExitCode run_steps(const config::Options& options, const comm::Session& session,
                   config::Command command) {
  return StepLoop(options, session, command).run();
}

}  // namespace

ExitCode run_sft(const config::Options& options, const comm::Session& session) {
  return run_steps(options, session, config::Command::sft);
}
ExitCode run_rm(const config::Options& options, const comm::Session& session) {
  return run_steps(options, session, config::Command::rm);
}
ExitCode run_dpo(const config::Options& options, const comm::Session& session) {
  return run_steps(options, session, config::Command::dpo);
}

}  // namespace trireme::driver
