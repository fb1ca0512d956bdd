// PPO and its relatives. Read run() first: it is the algorithm, and says which ranks do what and where they meet.
#pragma once

#include <optional>

#include "trireme/learn/datasets.hpp"
#include "driver/exchange.hpp"
#include "driver/ppo_roles.hpp"
#include "driver/run.hpp"
#include "driver/run_control.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::driver {

class PpoLoop {
 public:
  // Collective over world: loads data and models, starts plugins.
  PpoLoop(const config::Options& options, const comm::Session& session);
  PpoLoop(const PpoLoop&) = delete;
  // Collective.
  ExitCode run();

 private:
  // Where the run stands: at a checkpoint, or before its first iteration.
  Progress resume_or_start();
  PromptBatch draw(int64_t iteration, int64_t draws_before);
  // Scored samples, on the reward ranks.
  Samples collect(int64_t iteration, Progress& progress);
  // The same with dynamic filtering: draws until enough groups of samples have something to teach; `skipped` counts the prompts that
  // had nothing.
  Samples collect_informative(int64_t iteration, int64_t& skipped);
  Samples generate(const PromptBatch& batch);
  Samples score(Samples samples, const data::PromptSet& prompts, int64_t iteration);
  Rollout to_trainers(Samples samples, int64_t iteration);
  // What the trainers carry on; the same on every rank.
  TrainingState learn(Rollout rollout, const Progress& progress, IterationMetrics& metrics);
  void sync_weights(const Progress& progress);
  void evaluate_held_out(IterationMetrics& metrics);

  Run run_;
  text::Tokenizer tokenizer_;
  data::PromptSet prompts_;
  data::PromptSampler sampler_;
  int64_t iterations_;  // of the whole run
  std::optional<data::PromptSet> held_out_;
  std::optional<learn::PretrainingTexts> texts_;  // actor.ptx_coef
  Exchange exchange_;
  PpoRoles roles_;
  std::optional<Samples> pending_;  // the next iteration's rollout (train.async_depth = 1)
  RunControl control_;              // last: it saves what stands above
};

}  // namespace trireme::driver
