// PPO and its relatives. Read run() first: it is the algorithm, and says which ranks do what and where they meet.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/exchange.hpp"
#include "driver/generator.hpp"
#include "driver/judge.hpp"
#include "driver/loop.hpp"
#include "driver/models.hpp"
#include "driver/trainer.hpp"
#include "driver/weight_bridge.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/learn/training_set.hpp"

namespace trireme::driver {

class PpoLoop : public Loop {
 public:
  // Collective over world: loads data and models, starts plugins.
  PpoLoop(const config::Options& options, const comm::Session& session);
  ~PpoLoop() override { checkpoint_.reset(); }  // first: its writer reads the models
  // Collective.
  ExitCode run();

 private:
  void make_roles_of_this_rank();
  // Sizes the KV caches by what the weights of all roles leave. Collective.
  void start_generators();
  void resume_or_start();
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
  // The pretraining rows of the iteration; this rank's share of one optimizer step.
  void draw_texts();
  std::vector<learn::RowBatch> texts_of(int64_t step) const;
  void evaluate_held_out(IterationMetrics& metrics);
  void add_memory(IterationMetrics& metrics);
  void save_samples(const Samples& samples, int64_t iteration);
  // The actor, its moving average and the critic, as far as the deck wants them.
  void export_trained(const std::string& name) override;
  std::string pending_rollout() const override;

  text::Tokenizer tokenizer_;
  data::PromptSet prompts_;
  std::optional<data::PromptSet> held_out_;
  data::PromptSampler sampler_;
  std::optional<learn::TrainingSet> texts_;  // actor.ptx_coef
  std::optional<data::PromptSampler> texts_sampler_;
  ModelStart actor_start_;
  std::optional<ModelStart> critic_start_;
  Exchange exchange_;
  std::unique_ptr<Judge> judge_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Generator> generator_;
  std::unique_ptr<WeightBridge> weight_sync_;
  Cards cards_;             // of the rollout that is being learned from, in id order
  std::vector<int> owner_;  // trainer of each
  std::vector<int64_t> text_rows_;  // of all optimizer steps of the iteration
  std::optional<Samples> pending_;  // the next iteration's rollout (train.async_depth = 1)
};

}  // namespace trireme::driver
