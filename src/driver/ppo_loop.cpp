#include "torch/torch.hpp"

#include "driver/ppo_loop.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>

#include "driver/datasets.hpp"
#include "driver/device.hpp"
#include "driver/ppo_metrics.hpp"
#include "driver/refuse.hpp"
#include "driver/sample_log.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/plan/model_bytes.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

// Rollouts that dynamic filtering may draw for one iteration before it gives up.
constexpr int64_t kMaxDraws = 64;

SamplingPlan training_plan(const config::Options& options) {
  return {.n = options.rollout.n_samples_per_prompt,
          .temperature = options.rollout.temperature,
          .seed = static_cast<uint64_t>(options.run.seed)};
}

int64_t iterations_of(const config::Options& options, const data::PromptSampler& sampler) {
  if (options.run.iterations > 0) return options.run.iterations;
  return options.train.num_episodes * sampler.draws_per_epoch(options.rollout.batch_size);
}

int64_t schedule_steps(const config::Options& options, int64_t iterations) {
  return std::max<int64_t>(1, iterations * options.train.max_epochs *
                                  ppo::optimizer_steps(options.sequences_per_iteration(), options.train.batch_size));
}

std::vector<std::string> reward_names(const config::Options& options) {
  std::vector<std::string> names;
  for (size_t i = 0; i < options.reward.source.size(); ++i) names.push_back(reward::source_name(options.reward.source[i], i));
  return names;
}

std::string to_frame(const std::optional<Samples>& samples) {
  if (!samples || samples->size() == 0) return {};
  const std::string bytes = samples->to_bytes();
  const uint64_t size = bytes.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + bytes;
}

Samples from_frames(std::string_view frames) {
  Samples all;
  while (!frames.empty()) {
    uint64_t size = 0;
    VALIDATE(frames.size() >= sizeof size, ExitCode::bad_data, "the waiting rollout of the checkpoint is cut short");
    std::memcpy(&size, frames.data(), sizeof size);
    frames.remove_prefix(sizeof size);
    VALIDATE(size <= frames.size(), ExitCode::bad_data, "the waiting rollout of the checkpoint is cut short");
    const Samples part = Samples::from_bytes(frames.substr(0, size));
    for (int64_t i = 0; i < part.size(); ++i) all.append(part, i);
    frames.remove_prefix(size);
  }
  return all;
}

}  // namespace

PpoLoop::PpoLoop(const config::Options& options, const comm::Session& session)
    : Loop(options, session, config::Command::ppo),
      tokenizer_(data::Tokenizer::load(options_.tokenizer_path())),
      prompts_(load_prompts(options_, options_.data.prompt_dataset, tokenizer_, roles_.world)),
      sampler_(make_sampler(options_, options_.data.prompt_probs, prompts_.counts())),
      actor_start_(actor_start(options_)),
      exchange_(roles_.world) {
  iterations_ = iterations_of(options_, sampler_);
  if (!options_.eval.dataset.empty()) held_out_ = load_prompts(options_, options_.eval.dataset, tokenizer_, roles_.world);
  if (options_.actor.ptx_coef > 0) {
    texts_ = load_training(options_, options_.data.pretrain_dataset, config::Command::sft, tokenizer_, roles_.world);
    texts_sampler_ = make_sampler(options_, options_.data.pretrain_probs, texts_->counts());
  }
  tokenizer_.check_model(actor_start_.spec.shape.vocab);
  if (options_.has_critic()) critic_start_ = critic_start(options_, actor_start_);
  check_positions(options_, actor_start_, critic_start_);
  make_roles_of_this_rank();
  weight_sync_ = std::make_unique<WeightBridge>(options_, roles_, actor_start_.spec, device_);
  checkpoint_->add({"actor", &actor_start_.spec, trainer_ ? &trainer_->actor() : nullptr, options_.train.enable_ema});
  if (critic_start_) checkpoint_->add({"critic", &critic_start_->spec, trainer_ ? trainer_->critic() : nullptr, false});
}

void PpoLoop::make_roles_of_this_rank() {
  if (roles_.reward) {
    judge_ = std::make_unique<Judge>(options_, roles_, tokenizer_, folder_.path() / "logs", device_, threads_.reward);
  }
  start_device();  // after the judge's child processes, before any weight
  check_memory(actor_start_.spec, critic_start_ ? std::optional(critic_start_->spec) : std::nullopt);
  if (roles_.reward) {
    judge_->make_sources();
    if (needs_reference(options_)) {
      const ModelStart reference = reference_start(options_, actor_start_);
      judge_->add_reference(reference.spec, reference.reader());
    }
  }
  if (roles_.trainer) {
    const auto critic = critic_start_ ? std::optional(critic_start_->spec) : std::nullopt;
    trainer_ = std::make_unique<Trainer>(options_, roles_, actor_start_.spec, critic, device_, threads_.trainer,
                                         schedule_steps(options_, iterations_));
    trainer_->before_step = [this] { checkpoint_->before_step(); };
    if (texts_) trainer_->pretraining = [this](int64_t step) { return texts_of(step); };
  }
  if (roles_.generator) {
    generator_ = std::make_unique<Generator>(options_, roles_, actor_start_.spec, tokenizer_, device_, threads_.generator);
  }
  start_generators();
  std::vector<std::string> differences;
  std::string orders;
  if (generator_) differences = generator_->differences_from_training();
  if (device_.is_cpu() && (trainer_ || generator_)) orders = summation_orders(actor_start_.spec.shape, options_.model.compute());
  const OldLogProbs old_log_probs(options_, bit_differences(roles_.world, differences, orders));
  if (trainer_) trainer_->set_old_log_probs(old_log_probs);
  if (roles_.world.rank() == 0) log::info(old_log_probs.describe());
}

void PpoLoop::start_generators() {
  const int sharers = generators_on_device(roles_, device_);
  roles_.world.barrier();  // the weights of all roles of all ranks are there: what is free now is what they leave
  threads_.trainer.use();  // the generator compares its sums with those of training, made as training makes them
  if (generator_) {
    generator_->start(free_memory(device_) / std::max(1, sharers));
    if (roles_.world.rank() == roles_.map.generator.front()) {
      for (const auto& line : generator_->describe()) log::info("generator: " + line);
    }
  }
  const int64_t least = roles_.world.min(generator_ ? generator_->kv_bytes() : std::numeric_limits<int64_t>::max());
  const auto shortage = kv_shortage(kv_need(options_, mean_prompt_tokens(prompts_), roles_.replicas), least,
                                    plan::kv_bytes_per_token(actor_start_.spec.shape, roles_.tensor_parallel,
                                                             config::bytes_per_element(options_.model.compute())));
  if (roles_.world.rank() == 0 && !shortage.empty()) log::warning(shortage);
}

void PpoLoop::resume_or_start() {
  if (trainer_) {
    trainer_->actor().load(actor_start_.reader());
    if (trainer_->critic()) trainer_->critic()->load(critic_start_->reader());
    trainer_->start_average();
  }
  std::string pending;
  if (resume_or_begin(schedule_steps(options_, iterations_), pending)) {
    sampler_.restore(progress_.sampler);
    if (texts_sampler_ && !progress_.ptx_sampler.taken.empty()) texts_sampler_->restore(progress_.ptx_sampler);
    if (trainer_) {
      trainer_->set_kl_coefficient(progress_.kl_coefficient);
      trainer_->set_schedule(progress_.schedule_steps);
    }
    if (roles_.world.sum(static_cast<int64_t>(pending.size())) > 0) pending_ = from_frames(pending);
  } else {
    progress_.kl_coefficient = options_.algo.kl.init_coef;
    progress_.version = 1;  // the weights that the run starts from
  }
  if (roles_.world.rank() == 0) trim_sample_log(folder_.path() / "samples.jsonl", progress_.iteration);
}

ExitCode PpoLoop::run() {
  resume_or_start();  // collective: all ranks agree where they stand
  sync_weights();     // trainers -> generators: the weights that the first rollout samples from
  starting_.reset();
  while (progress_.iteration < iterations_) {
    const base::Stopwatch watch;
    const int64_t iteration = progress_.iteration + 1;
    trace::reset_phases();
    const trace::Region region{"iteration", iteration};
    IterationMetrics metrics;
    metrics.iteration = iteration;

    Samples samples = collect(iteration);  // generators write, reward ranks score
    add_rollout_metrics(roles_.world, samples, reward_names(options_), options_.max_len(), metrics);
    samples = to_trainers(std::move(samples), iteration);  // balanced by tokens
    // One step ahead: generators write the next batch while trainers learn from this one.
    if (options_.train.async_depth > 0 && iteration < iterations_) pending_ = generate(draw(iteration + 1, 0));
    learn(std::move(samples), metrics);  // trainers
    ++progress_.version;
    sync_weights();                      // trainers -> generators
    progress_.iteration = iteration;

    if (evaluation_due(iteration)) evaluate_held_out(metrics);
    add_thread_metrics(roles_.world, threads_, trainer_.get(), generator_.get(), metrics);
    add_memory(metrics);
    report(metrics, watch.seconds());
    if (const auto code = settle(metrics, watch.seconds())) return *code;  // stopped; saves when it is time
  }
  return finish();
}

PromptBatch PpoLoop::draw(int64_t iteration, int64_t draws_before) {
  const int64_t count = options_.rollout.batch_size;
  PromptBatch batch{iteration, draws_before * count, sampler_.draw(count)};  // the same on every rank, no message
  progress_.sampler = sampler_.state();
  return batch;
}

Samples PpoLoop::collect(int64_t iteration) {
  if (pending_) {
    Samples samples = std::move(*pending_);
    pending_.reset();
    return score(std::move(samples), prompts_, iteration);
  }
  if (options_.algo.dynamic_filtering_enable) return collect_informative(iteration);
  context_.begin("rollout", iteration, iterations_);
  return score(generate(draw(iteration, 0)), prompts_, iteration);
}

Samples PpoLoop::generate(const PromptBatch& batch) {
  const trace::Phase phase{"rollout", batch.iteration};
  return generator_ ? generator_->rollout(prompts_, batch, training_plan(options_)) : Samples{};
}

Samples PpoLoop::score(Samples samples, const data::PromptSet& prompts, int64_t iteration) {
  {
    const trace::Phase phase{"rollout", iteration};
    context_.meet("wait for the rollout");
  }
  const trace::Phase phase{"reward", iteration};
  context_.begin("reward", iteration, iterations_);
  samples = exchange_.spread(samples, roles_.map.reward);
  if (judge_) judge_->score(samples, prompts, iteration);
  context_.meet("wait for the rewards");
  return samples;
}

Samples PpoLoop::collect_informative(int64_t iteration) {
  Samples kept;
  std::set<uint64_t> groups;
  const auto wanted = static_cast<size_t>(options_.rollout.batch_size);
  for (int64_t draws = 0; groups.size() < wanted; ++draws) {
    VALIDATE(draws < kMaxDraws, ExitCode::bad_data, "dynamic filtering found only ", groups.size(), " of ", wanted,
             " prompts whose mean reward lies inside algo.dynamic_filtering_range after ", draws,
             " rollouts: the task is too easy or too hard for this model, or the range too narrow");
    context_.begin("rollout", iteration, iterations_);
    const Samples drawn = score(generate(draw(iteration, draws)), prompts_, iteration);
    for (const uint64_t group : informative_groups(roles_.world, drawn, options_.algo.dynamic_filtering_range)) {
      if (groups.size() < wanted) groups.insert(group);
    }
    for (int64_t i = 0; i < drawn.size(); ++i) {
      if (groups.count(group_of(drawn.id[static_cast<size_t>(i)]))) kept.append(drawn, i);
    }
    progress_.skipped_prompts += options_.rollout.batch_size;
  }
  progress_.skipped_prompts -= static_cast<int64_t>(wanted);
  return kept;
}

Samples PpoLoop::to_trainers(Samples samples, int64_t iteration) {
  const trace::Phase phase{"exchange", iteration};
  save_samples(samples, iteration);
  cards_ = exchange_.cards(samples);
  owner_ = Trainer::place(options_, cards_, static_cast<int>(roles_.map.trainer.size()), iteration);
  std::vector<int> rank_of;
  for (const int trainer : owner_) rank_of.push_back(roles_.map.trainer[static_cast<size_t>(trainer)]);
  return exchange_.move(samples, cards_, rank_of);
}

void PpoLoop::learn(Samples samples, IterationMetrics& metrics) {
  const trace::Phase phase{"train", metrics.iteration};
  context_.begin("train", metrics.iteration, iterations_);
  draw_texts();
  if (trainer_) {
    ppo::Experience experience = ppo::Experience::from(std::move(samples));
    const Mismatch mismatch = trainer_->evaluate(experience, progress_.version);  // log-probs, values
    const auto pipeline = trainer_->shape(experience, cards_);  // KL, returns, whitening
    const auto update = trainer_->update(experience, cards_, owner_, metrics.iteration - 1);  // epochs, optimizer steps
    const auto kl = trainer_->kl_to_reference(pipeline, update);
    add_training_metrics(options_, roles_, *trainer_, pipeline, mismatch, update, kl, metrics);
    trainer_->adapt_kl(kl, options_.sequences_per_iteration());
    progress_.actor_steps = trainer_->actor().steps();
    progress_.critic_steps = trainer_->critic() ? trainer_->critic()->steps() : 0;
    progress_.kl_coefficient = trainer_->kl_coefficient();
  }
  context_.meet("wait for the trainers");
  share_training_state(roles_, metrics, progress_);
}

void PpoLoop::sync_weights() {
  const trace::Phase phase{"sync", progress_.iteration};
  const auto counters = weight_sync_->run(progress_.version, trainer_ ? &trainer_->actor() : nullptr,
                                          generator_ ? &generator_->weights() : nullptr);
  const std::string line = weight_sync_->describe(counters);
  if (roles_.world.rank() == 0) log::debug(line);
}

void PpoLoop::draw_texts() {
  if (!texts_sampler_) return;
  const int64_t steps = options_.train.max_epochs *
                        ppo::optimizer_steps(static_cast<int64_t>(cards_.size()), options_.train.batch_size);
  text_rows_ = texts_sampler_->draw(steps * options_.ptx_batch_size());  // the same on every rank, no message
  progress_.ptx_sampler = texts_sampler_->state();
}

std::vector<RowBatch> PpoLoop::texts_of(int64_t step) const {
  const auto count = static_cast<size_t>(options_.ptx_batch_size());
  const auto rows = std::span(text_rows_).subspan(static_cast<size_t>(step) * count, count);
  return share_out(*texts_, rows, roles_.trainers.view(), options_.train.micro_batch_tokens);
}

void PpoLoop::evaluate_held_out(IterationMetrics& metrics) {
  const trace::Phase phase{"evaluate", metrics.iteration};
  PromptBatch batch;
  batch.iteration = metrics.iteration;
  batch.first_ordinal = int64_t{1} << 19;  // apart from the training prompts of the same iteration
  for (int64_t row = 0; row < held_out_->size(); ++row) batch.rows.push_back(row);
  const SamplingPlan plan{options_.eval.n_samples_per_prompt, options_.eval.temperature, static_cast<uint64_t>(options_.run.seed)};
  Samples samples = generator_ ? generator_->rollout(*held_out_, batch, plan) : Samples{};
  samples = score(std::move(samples), *held_out_, metrics.iteration);
  add_evaluation_metrics(roles_.world, samples, plan.n, metrics);
}

void PpoLoop::add_memory(IterationMetrics& metrics) {
  std::vector<ModelMemory> models = judge_ ? judge_->memory() : std::vector<ModelMemory>{};
  if (trainer_) {
    models.emplace_back("actor", trainer_->actor().memory());
    if (trainer_->critic()) models.emplace_back("critic", trainer_->critic()->memory());
  }
  const auto generator = generator_ ? std::optional(generator_->memory()) : std::nullopt;
  add_memory_metrics(roles_.world, models, generator ? &*generator : nullptr, metrics);
}

void PpoLoop::save_samples(const Samples& samples, int64_t iteration) {
  if (options_.rollout.save_samples == 0) return;
  append_sample_log(roles_.world, folder_.path() / "samples.jsonl", samples, prompts_, tokenizer_, iteration,
                    options_.rollout.save_samples);
}

std::string PpoLoop::pending_rollout() const { return to_frame(pending_); }

void PpoLoop::export_trained(const std::string& name) {
  zero::ShardedModel* actor = trainer_ ? &trainer_->actor() : nullptr;
  const model::ModelSpec& spec = actor_start_.spec;
  export_model(options_, roles_, spec, actor, device_, folder_.path() / name, export_type(spec));
  if (options_.train.enable_ema) {
    export_model(options_, roles_, spec, actor, device_, folder_.path() / (name + "-ema"), export_type(spec), Weights::average);
  }
  if (!options_.critic.save_value_network || !critic_start_) return;
  export_model(options_, roles_, critic_start_->spec, trainer_ ? trainer_->critic() : nullptr, device_,
               folder_.path() / (name + "-critic"), export_type(critic_start_->spec));
}

ExitCode run_ppo(const config::Options& options, const comm::Session& session) {
  refuse_unbuilt(options, config::Command::ppo);
  const kernels::Runtime kernels;
  return PpoLoop(options, session).run();
}

}  // namespace trireme::driver
