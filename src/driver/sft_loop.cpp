#include "torch/torch.hpp"

#include "driver/sft_loop.hpp"

#include <algorithm>
#include <array>

#include "driver/datasets.hpp"
#include "driver/device.hpp"
#include "driver/refuse.hpp"
#include "driver/scoring.hpp"
#include "driver/trainer.hpp"
#include "trireme/base/log.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

config::Options all_ranks_train(config::Options options) {
  options.ranks = {};
  return options;
}

Roles trainers_only(Roles roles) {
  roles.generator = false;
  roles.reward = false;
  return roles;
}

int64_t iterations_of(const config::Options& options, const data::PromptSampler& sampler) {
  if (options.run.iterations > 0) return options.run.iterations;
  return options.train.max_epochs * sampler.draws_per_epoch(options.train.batch_size);
}

}  // namespace

SftLoop::SftLoop(const config::Options& options, const comm::Session& session)
    : options_(all_ranks_train(options)),
      session_(session),
      roles_(trainers_only(make_roles(options_, session.world()))),
      folder_(options_, roles_.world),
      context_(options_, roles_, folder_),
      threads_(plan_threads(options_, roles_)),
      device_(choose_device(options_, roles_)),
      tokenizer_(data::Tokenizer::load(options_.tokenizer_path())),
      examples_(load_sft(options_, tokenizer_, roles_.world)),
      sampler_(make_sampler(options_, options_.data.dataset_probs, examples_.counts())),
      start_(actor_start(options_)),
      iterations_(iterations_of(options_, sampler_)) {
  log_start(options_, roles_, session_, "sft");
  use_device(device_, options_.train.deterministic);
  tokenizer_.check_model(start_.spec.shape.vocab);
  const std::optional<comm::CommView> replicas =
      roles_.shard_groups > 1 ? std::optional(roles_.shard_replicas.view()) : std::nullopt;
  model_ = std::make_unique<zero::ShardedModel>(
      start_.spec, roles_.shard_group.view(), replicas, device_,
      zero::ShardedModelOptions{.name = "actor", .compute = options_.model.dtype, .recompute = options_.train.recompute});
  rate_ = std::make_unique<zero::LearningRate>(options_.actor, iterations_);
  checkpoint_ = std::make_unique<Checkpointing>(options_, roles_, folder_, device_, session_.facts().thread_multiple);
  checkpoint_->add({"actor", &start_.spec, model_.get(), options_.train.enable_ema});
}

Progress SftLoop::resume_or_start() {
  model_->load(start_.reader());
  if (options_.train.enable_ema) model_->enable_average(options_.train.ema_beta);
  Progress progress;
  std::string pending;
  if (const auto found = checkpoint_->resume(pending)) {
    progress = *found;
    VALIDATE(progress.command == "sft", ExitCode::bad_data, "the checkpoint in ", folder_.checkpoints().string(),
             " is one of `trireme ", progress.command, "`: choose another run.dir or ckpt.resume = \"never\"");
    sampler_.restore(progress.sampler);
    rate_ = std::make_unique<zero::LearningRate>(options_.actor, progress.schedule_steps);
    if (roles_.world.rank() == 0) log::info(base::text("resumed after iteration ", progress.iteration));
  } else {
    progress.command = "sft";
    progress.schedule_steps = iterations_;
  }
  progress.deck = folder_.deck();
  if (roles_.world.rank() == 0) {
    metrics_file_ = std::make_unique<MetricsFile>(folder_.path() / "metrics.jsonl", progress.metrics_cursor);
  }
  return progress;
}

ExitCode SftLoop::run() {
  progress_ = resume_or_start();
  at::set_num_threads(threads_.trainer);
  starting_.reset();
  while (progress_.iteration < iterations_) {
    const base::Stopwatch watch;
    const int64_t iteration = progress_.iteration + 1;
    trace::reset_phases();
    const trace::Region region{"iteration", iteration};
    context_.begin("train", iteration, iterations_);
    IterationMetrics metrics;
    metrics.iteration = iteration;
    step(share_of(sampler_.draw(options_.train.batch_size)), metrics);
    progress_.sampler = sampler_.state();
    progress_.iteration = iteration;
    progress_.actor_steps = model_->steps();
    report(metrics, watch.seconds());
    context_.walltime().phase_took(watch.seconds());
    const auto stop = context_.agree_to_stop();
    if (stop > comm::StopReason::save_and_go_on && iteration < iterations_) {
      if (roles_.world.rank() == 0) log::info(base::text("stopping (", comm::to_string(stop), "): saving"));
      save(true);
      context_.finish("loss", progress_.rewards, last_);
      return ExitCode::stopped_with_checkpoint;
    }
    if (iteration < iterations_ && (checkpoint_->due(iteration) || stop == comm::StopReason::save_and_go_on)) {
      save(false);
      comm::clear_save_request();
    }
  }
  return finish();
}

Samples SftLoop::share_of(const std::vector<int64_t>& rows) const {
  std::vector<int64_t> lengths;
  for (const int64_t row : rows) lengths.push_back(static_cast<int64_t>(examples_[row].ids.size()));
  const auto bins = ppo::balanced_bins(lengths, roles_.trainers->size(), ppo::BinSize::any);
  Samples samples;
  for (const int64_t place : bins[static_cast<size_t>(roles_.trainers->rank())]) {
    const auto& example = examples_[rows[static_cast<size_t>(place)]];
    samples.id.push_back(static_cast<uint64_t>(place));
    samples.prompt_row.push_back(rows[static_cast<size_t>(place)]);
    samples.prompt_len.push_back(0);
    samples.finish_reason.push_back(FinishReason::stop);
    samples.ids.insert(samples.ids.end(), example.ids.begin(), example.ids.end());
    samples.action_mask.insert(samples.action_mask.end(), example.loss_mask.begin(), example.loss_mask.end());
    samples.cu_seqlens.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  samples.log_probs.assign(samples.ids.size(), 0.0f);
  samples.version.assign(samples.ids.size(), -1);
  return samples;
}

void SftLoop::step(const Samples& mine, IterationMetrics& metrics) {
  const trace::Phase phase{"train", metrics.iteration};
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < mine.size(); ++i) lengths.push_back(mine.length(i));
  auto bins = ppo::micro_batches(lengths, options_.train.micro_batch_tokens, 1);
  bins.resize(static_cast<size_t>(roles_.trainers->max(static_cast<int64_t>(bins.size()))));
  std::vector<ActionBatch> batches;
  std::array<double, 4> sums{};  // target tokens, sequences with any, loss, tokens
  for (const auto& bin : bins) {
    batches.push_back(make_action_batch(mine, bin, device_));
    sums[0] += static_cast<double>(batches.back().columns.numel());
    const auto& cu = batches.back().segments.cu_seqlens();
    for (size_t s = 1; s < cu.size(); ++s) sums[1] += cu[s] > cu[s - 1];
  }
  sums[3] = static_cast<double>(mine.tokens());
  roles_.trainers->all_reduce(sums.data(), 4, comm::DType::f64, comm::Op::sum);
  const ppo::Normalizer normalizer{sums[0], sums[1], 1};
  double loss_here = 0;
  for (const ActionBatch& batch : batches) {
    model_->forward_backward(batch.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      const auto head = kernels::token_log_probs(hidden.index_select(0, batch.rows), head_weight, batch.targets, 1.0,
                                                 kernels::Entropy::skip);
      at::Tensor loss = ppo::sft_loss(head.log_probs, at::ones_like(batch.columns, at::kByte), batch.segments,
                                      config::LossAggregation::token_mean, normalizer);
      loss_here += loss.item<double>();
      return loss;
    });
  }
  const double rate = learning_rate(*rate_, model_->steps());
  checkpoint_->before_step();
  const auto result = model_->step(adamw_options(options_.actor, rate));
  metrics.set("loss", roles_.trainers->sum(loss_here));
  metrics.set("grad_norm", result.grad_norm);
  metrics.set("lr", rate);
  metrics.set("target_tokens", sums[0]);
  metrics.tokens = static_cast<int64_t>(sums[3]);
  if (!result.updated && roles_.world.rank() == 0) log::warning("the optimizer step was left out: its gradient is not finite");
}

void SftLoop::report(IterationMetrics& metrics, double seconds) {
  const trace::Phase phase{"report", metrics.iteration};
  progress_.rewards.push_back(metrics.get("loss"));
  for (const auto& [name, phase_seconds] : trace::phase_seconds()) metrics.seconds[name] = phase_seconds;
  metrics.seconds["total"] = seconds;
  metrics.memory["host_peak"] = roles_.world.max(trace::host_memory().peak);
  if (metrics_file_) {
    metrics_file_->append(to_json(metrics));
    log::info(to_console(metrics, iterations_));
  }
  progress_.metrics_cursor = roles_.world.broadcast_value(metrics_file_ ? metrics_file_->cursor() : int64_t{0}, 0);
  last_ = metrics;
}

void SftLoop::save(bool wait) {
  context_.set_io_deadline(true);
  context_.walltime().save_took(checkpoint_->save(progress_, {}, wait));
  context_.set_io_deadline(false);
  context_.write_trace();
}

ExitCode SftLoop::finish() {
  if (checkpoint_->committed() != progress_.iteration) save(true);
  if (options_.ckpt.save_hf != config::SaveHf::never) {
    export_model(options_, roles_, start_.spec, model_.get(), device_, folder_.path() / "hf");
  }
  context_.finish("loss by iteration", progress_.rewards, last_);
  return ExitCode::done;
}

ExitCode run_sft(const config::Options& options, const comm::Session& session) {
  refuse_unbuilt(options, config::Command::sft);
  const kernels::Runtime kernels;
  return SftLoop(options, session).run();
}

}  // namespace trireme::driver
