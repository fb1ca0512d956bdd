// PPO and its relatives. Read run() first: it is the algorithm, and says which ranks do what and where they meet.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "driver/checkpointing.hpp"
#include "driver/exchange.hpp"
#include "driver/generator.hpp"
#include "driver/judge.hpp"
#include "driver/metrics.hpp"
#include "driver/models.hpp"
#include "driver/progress.hpp"
#include "driver/roles.hpp"
#include "driver/run_context.hpp"
#include "driver/run_folder.hpp"
#include "driver/trainer.hpp"
#include "driver/weight_bridge.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {

class PpoLoop {
 public:
  // Collective over world: loads data and models, starts plugins.
  PpoLoop(const config::Options& options, const comm::Session& session);
  // Collective.
  ExitCode run();

 private:
  Progress resume_or_start();
  PromptBatch draw(int64_t iteration, int64_t draws_before);
  // Scored samples, on the reward ranks.
  Samples collect(int64_t iteration);
  // The same with dynamic filtering: draws until enough groups of samples have something to teach.
  Samples collect_informative(int64_t iteration);
  Samples generate(const PromptBatch& batch);
  Samples score(Samples samples, const data::PromptSet& prompts, int64_t iteration);
  Samples to_trainers(Samples samples, int64_t iteration);
  void learn(Samples samples, IterationMetrics& metrics);
  void sync_weights();
  bool evaluation_due(int64_t iteration) const;
  void evaluate_held_out(IterationMetrics& metrics);
  void report(IterationMetrics& metrics, double seconds);
  void save_samples(const Samples& samples, int64_t iteration);
  void save(bool wait);
  // The actor, and the critic where the deck wants it, as Hugging Face folders of the run folder.
  void export_trained(const std::string& name);
  ExitCode leave(comm::StopReason reason);
  ExitCode finish();

  std::optional<trace::Phase> starting_{std::in_place, trace::Name{"start"}};  // until the first iteration
  config::Options options_;
  const comm::Session& session_;
  Roles roles_;
  RunFolder folder_;
  RunContext context_;
  ThreadPlan threads_;
  at::Device device_;
  data::Tokenizer tokenizer_;
  data::PromptSet prompts_;
  std::optional<data::PromptSet> held_out_;
  data::PromptSampler sampler_;
  ModelStart actor_start_;
  std::optional<ModelStart> critic_start_;
  int64_t iterations_ = 0;
  Exchange exchange_;
  std::unique_ptr<Judge> judge_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Generator> generator_;
  std::unique_ptr<WeightBridge> weight_sync_;
  std::unique_ptr<Checkpointing> checkpoint_;
  std::unique_ptr<MetricsFile> metrics_file_;  // on rank 0
  Progress progress_;
  Cards cards_;             // of the rollout that is being learned from, in id order
  std::vector<int> owner_;  // trainer of each
  std::optional<Samples> pending_;  // the next iteration's rollout (train.async_depth = 1)
  IterationMetrics last_;
};

}  // namespace trireme::driver
