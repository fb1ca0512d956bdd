// The first half of a PPO iteration: generators write, reward ranks score, and the samples go to the trainers.
#pragma once

#include <cstdint>
#include <optional>

#include "driver/exchange.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "driver/ppo_roles.hpp"
#include "driver/run.hpp"
#include "driver/run_control.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/driver/progress.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::driver {

// Its methods are collective over world.
class RolloutPhase {
 public:
  // Keeps references; `control` may be constructed later. `iterations`: of the whole run.
  RolloutPhase(Run& run, PpoRoles& roles, RunControl& control, const text::Tokenizer& tokenizer, const data::PromptSet& prompts,
               data::PromptSampler& sampler, int64_t iterations);

  // Scored samples, on the reward ranks. nullopt: the run stops; a rollout that is whole waits in `pending`.
  std::optional<Samples> collect(int64_t iteration, Progress& progress);
  // One step ahead of the trainers: the rollout of this iteration waits in `pending`.
  void begin(int64_t iteration) { pending = generate(draw(iteration, 0)); }
  // Balanced by tokens, and into samples.jsonl.
  Rollout to_trainers(const Samples& samples, int64_t iteration);
  // False: the run stops.
  bool evaluate(const data::PromptSet& held_out, report::IterationMetrics& metrics);

  std::optional<Samples> pending;  // the next iteration's rollout (train.async_depth = 1), or one that a stop found whole

 private:
  PromptBatch draw(int64_t iteration, int64_t draws_before);
  // With dynamic filtering: draws until enough groups of samples have something to teach; `skipped` counts the prompts that had nothing.
  std::optional<Samples> collect_informative(int64_t iteration, int64_t& skipped);
  // nullopt: the run stops, and this replica's texts are not whole.
  std::optional<Samples> generate(const PromptBatch& batch);
  // nullopt: the run stops.
  std::optional<Samples> score(std::optional<Samples> samples, const data::PromptSet& prompts, int64_t iteration);

  Run& run_;
  PpoRoles& roles_;
  RunControl& control_;
  const text::Tokenizer& tokenizer_;
  const data::PromptSet& prompts_;
  data::PromptSampler& sampler_;
  int64_t iterations_;
  Exchange exchange_;
};

}  // namespace trireme::driver
