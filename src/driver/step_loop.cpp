#include "torch/torch.hpp"

#include "driver/step_loop.hpp"

#include <algorithm>
#include <numeric>

#include "driver/datasets.hpp"
#include "driver/ppo_metrics.hpp"
#include "driver/refuse.hpp"
#include "driver/trainer.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/kernels/runtime.hpp"

namespace trireme::driver {
namespace {

// Rewards that are all the same must not be divided by 0 (OpenRLHF: RewardModelTrainer.evaluate).
constexpr double kSmallestDeviation = 1e-8;

int64_t steps_of(const config::Options& options, const data::PromptSampler& sampler) {
  if (options.run.iterations > 0) return options.run.iterations;
  return options.train.max_epochs * sampler.draws_per_epoch(options.train.batch_size);
}

}  // namespace

StepLoop::StepLoop(const config::Options& options, const comm::Session& session, config::Command command)
    : Loop(options, session, command),
      tokenizer_(data::Tokenizer::load(options_.tokenizer_path())),
      rows_(load_training(options_, options_.data.dataset, command, tokenizer_, roles_.world)),
      sampler_(make_sampler(options_, options_.data.dataset_probs, rows_.counts())),
      start_(trained_start(options_, head_of(command))) {
  iterations_ = steps_of(options_, sampler_);
  if (!options_.eval.dataset.empty()) {
    held_out_ = load_training(options_, options_.eval.dataset, command, tokenizer_, roles_.world);
  }
  tokenizer_.check_model(start_.spec.shape.vocab);
  start_device();
  check_memory(start_.spec, std::nullopt);
  objective_ = make_objective(options_, command, roles_, start_, device_);
  const std::optional<comm::CommView> replicas =
      roles_.shard_groups > 1 ? std::optional(roles_.shard_replicas.view()) : std::nullopt;
  model_ = std::make_unique<zero::ShardedModel>(
      start_.spec, roles_.shard_group.view(), replicas, device_,
      zero::ShardedModelOptions{.name = "actor", .compute = options_.model.compute(), .recompute = options_.train.recompute});
  rate_ = std::make_unique<zero::LearningRate>(options_.actor, iterations_);
  checkpoint_->add({"actor", &start_.spec, model_.get(), options_.train.enable_ema});
}

void StepLoop::resume_or_start() {
  model_->load(start_.reader());
  if (options_.train.enable_ema) model_->enable_average(options_.train.ema_beta);
  std::string no_rollout;
  if (!resume_or_begin(iterations_, no_rollout)) return;
  sampler_.restore(progress_.sampler);
  rate_ = std::make_unique<zero::LearningRate>(options_.actor, progress_.schedule_steps);
}

ExitCode StepLoop::run() {
  resume_or_start();
  starting_.reset();
  while (progress_.iteration < iterations_) {
    const base::Stopwatch watch;
    const int64_t iteration = progress_.iteration + 1;
    trace::reset_phases();
    const trace::Region region{"iteration", iteration};
    context_.begin("train", iteration, iterations_);
    IterationMetrics metrics;
    metrics.iteration = iteration;
    ThreadMeter meter;
    meter.start();
    train(sampler_.draw(options_.train.batch_size), metrics);  // the same rows on every rank, no message
    meter.stop();
    add_thread_metrics(meter.worked(), metrics);
    progress_.sampler = sampler_.state();
    progress_.iteration = iteration;
    progress_.actor_steps = model_->steps();
    if (evaluation_due(iteration)) evaluate_held_out(metrics);
    metrics.memory["host_peak"] = roles_.world.max(trace::host_memory().peak);
    report(metrics, watch.seconds());
    if (const auto code = settle(metrics, watch.seconds())) return *code;
  }
  return finish();
}

void StepLoop::add_thread_metrics(int worked, IterationMetrics& metrics) const {
  metrics.threads["trainer"] = roles_.world.min(int64_t{threads_.trainer.count});
  const int64_t fewest = roles_.world.min(int64_t{worked});
  if (fewest > 0) metrics.threads["trainer_worked"] = fewest;
}

void StepLoop::train(const std::vector<int64_t>& rows, IterationMetrics& metrics) {
  const trace::Phase phase{"train", metrics.iteration};
  const auto batches = share_out(rows_, rows, roles_.trainers.view(), options_.train.micro_batch_tokens);
  const BatchTotals totals = totals_of(batches, roles_.trainers.view());
  std::vector<double> means(objective_->quantities().size(), 0.0);
  for (const RowBatch& part : batches) {
    const ActionBatch batch = make_action_batch(part.samples, device_);
    objective_->prepare(batch);
    model_->forward_backward(batch.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      return objective_->loss({hidden, head_weight, batch, part.margins, totals}, means);
    });
  }
  const double rate = learning_rate(*rate_, model_->steps());
  checkpoint_->before_step();
  const auto result = model_->step(adamw_options(options_.actor, rate));
  sum_over(roles_.trainers.view(), means);
  objective_->add_metrics(means, totals, "", metrics);
  metrics.set("grad_norm", result.grad_norm);
  metrics.set("lr", rate);
  metrics.set("target_tokens", totals.targets);
  metrics.tokens = static_cast<int64_t>(totals.tokens);
  if (!result.updated && roles_.world.rank() == 0) log::warning("the optimizer step was left out: its gradient is not finite");
}

void StepLoop::evaluate_held_out(IterationMetrics& metrics) {
  const trace::Phase phase{"evaluate", metrics.iteration};
  context_.begin("evaluate", metrics.iteration, iterations_);
  std::vector<int64_t> rows(static_cast<size_t>(held_out_->size()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  const auto batches = share_out(*held_out_, rows, roles_.trainers.view(), options_.train.micro_batch_tokens);
  const BatchTotals totals = totals_of(batches, roles_.trainers.view());
  std::vector<double> means(objective_->quantities().size(), 0.0);
  for (const RowBatch& part : batches) {
    const ActionBatch batch = make_action_batch(part.samples, device_);
    objective_->prepare(batch);
    model_->forward(batch.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      objective_->loss({hidden, head_weight, batch, part.margins, totals}, means);
    });
  }
  sum_over(roles_.trainers.view(), means);
  objective_->add_metrics(means, totals, "eval_", metrics);
  if (command_ != config::Command::rm) return;
  reward_scale_ = {progress_.iteration, metrics.get("eval_reward_mean"),
                   std::max(metrics.get("eval_reward_std"), kSmallestDeviation)};
}

void StepLoop::export_trained(const std::string& name) {
  model::ModelSpec spec = start_.spec;
  if (command_ == config::Command::rm && held_out_) {
    if (reward_scale_.iteration != progress_.iteration) {
      IterationMetrics unreported;
      unreported.iteration = progress_.iteration;
      evaluate_held_out(unreported);
    }
    spec.shape.score_mean = reward_scale_.mean;  // for reward.normalize_enable (F5)
    spec.shape.score_std = reward_scale_.deviation;
  }
  export_model(options_, roles_, spec, model_.get(), device_, folder_.path() / name, export_type(spec));
  if (options_.train.enable_ema) {
    export_model(options_, roles_, spec, model_.get(), device_, folder_.path() / (name + "-ema"), export_type(spec), Weights::average);
  }
}

namespace {

ExitCode run_steps(const config::Options& options, const comm::Session& session, config::Command command) {
  refuse_unbuilt(options, command);
  const kernels::Runtime kernels;
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
