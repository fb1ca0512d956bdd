#include "torch/torch.hpp"

#include "driver/rollout_phase.hpp"

#include <set>

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

}  // namespace

RolloutPhase::RolloutPhase(Run& run, PpoRoles& roles, RunControl& control, const text::Tokenizer& tokenizer, const data::PromptSet& prompts,
                           data::PromptSampler& sampler, int64_t iterations)
    : run_(run), roles_(roles), control_(control), tokenizer_(tokenizer), prompts_(prompts), sampler_(sampler), iterations_(iterations),
      exchange_(run.roles.world) {}

PromptBatch RolloutPhase::draw(int64_t iteration, int64_t draws_before) {
  const int64_t count = run_.options.rollout.batch_size;
  return {iteration, draws_before * count, sampler_.draw(count)};  // the same on every rank, no message
}

std::optional<Samples> RolloutPhase::collect(int64_t iteration, Progress& progress) {
  if (pending) return score(std::exchange(pending, std::nullopt), prompts_, iteration);
  if (run_.options.algo.dynamic_filtering_enable) return collect_informative(iteration, progress.skipped_prompts);
  run_.context.begin("rollout", iteration, iterations_);
  return score(generate(draw(iteration, 0)), prompts_, iteration);
}

std::optional<Samples> RolloutPhase::generate(const PromptBatch& batch) {
  const trace::Phase phase{"rollout", batch.iteration};
  if (!roles_.generator) return Samples{};
  // One step ahead, the weights that it is sampled from are gone at the next optimizer step: it is brought to its end.
  const bool may_leave = run_.options.train.async_depth == 0;
  return roles_.generator->rollout(prompts_, batch, training_plan(run_.options), [&] { return may_leave && control_.stop_wanted(); });
}

std::optional<Samples> RolloutPhase::score(std::optional<Samples> samples, const data::PromptSet& prompts, int64_t iteration) {
  bool leaves = false;
  {
    const trace::Phase phase{"rollout", iteration};
    control_.meet();
    leaves = control_.agree_to_leave(run_.roles.world);
  }
  const bool training = &prompts == &prompts_;
  if (leaves) {
    const bool whole = run_.roles.world.all(samples.has_value());
    if (whole && training && !run_.options.algo.dynamic_filtering_enable) pending = std::move(samples);
    return std::nullopt;
  }
  const trace::Phase phase{"reward", iteration};
  run_.context.begin("reward", iteration, iterations_);
  samples = exchange_.spread(*samples, run_.roles.map.reward);
  const bool scored = !roles_.judge || roles_.judge->score(*samples, prompts, iteration);
  control_.meet();
  if (control_.agree_to_leave(run_.roles.world)) {
    if (!run_.roles.world.all(scored)) {
      if (training && !run_.options.algo.dynamic_filtering_enable) pending = samples->unscored();
      return std::nullopt;
    }
  }
  return samples;
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
    const std::optional<Samples> drawn = score(generate(draw(iteration, draws)), prompts_, iteration);
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

Rollout RolloutPhase::to_trainers(const Samples& samples, int64_t iteration) {
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

bool RolloutPhase::evaluate(const data::PromptSet& held_out, report::IterationMetrics& metrics) {
  const trace::Phase phase{"evaluate", metrics.iteration};
  PromptBatch batch;
  batch.iteration = metrics.iteration;
  batch.first_ordinal = int64_t{1} << 19;  // apart from the training prompts of the same iteration
  for (int64_t row = 0; row < held_out.size(); ++row) batch.rows.push_back(row);
  const auto& options = run_.options;
  const SamplingPlan plan{options.eval.n_samples_per_prompt, options.eval.temperature, static_cast<uint64_t>(options.run.seed)};
  std::optional<Samples> samples = Samples{};
  if (roles_.generator) samples = roles_.generator->rollout(held_out, batch, plan, [this] { return control_.stop_wanted(); });
  samples = score(std::move(samples), held_out, metrics.iteration);
  if (!samples) return false;
  learn::add_evaluation_metrics(run_.roles.world, *samples, plan.n, metrics);
  return true;
}

}  // namespace trireme::driver
